"""Conversion between objects and dotted paths ``package.module:Class``; plug-ins need no registration.

Paths come from experiments, which may be somebody else's: all go through :func:`load_object`, which says no to what is
not of the kind that a key demands before anything of it is called.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import ismethod
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from fedgraph.support.errors import ExperimentError
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

_LONGEST_PATH = 500
_OURS = ("strategies", "clients")
Demand: TypeAlias = Callable[[Any], str]
"""What is wrong with an object, to follow its path in a sentence; empty for one of the kind that is demanded."""
_HANDED: dict[str, Any] = {}
"""Objects by dotted path, including local classes and functions."""
_IMPORTED: dict[str, tuple[object, int]] = {}
"""The import of each module, and when its file had last been changed."""


def add_plugin_paths(folders: Sequence[str]) -> None:
    """Append folders to ``sys.path``, for modules by dotted path, except checkouts of this project."""
    new, here = [folder for folder in dict.fromkeys(folders) if folder not in sys.path], str(_here())
    place = sys.path.index(here) if here in sys.path else len(sys.path)
    sys.path[place:place] = new


def is_run_folder(folder: str | Path, run_config: Mapping[str, Any]) -> bool:
    """Return whether a folder with an experiment is that of the run itself, in which no module is looked for."""
    return f"output.resume={folder}" in shlex.split(str(run_config.get("set", "")))


def dotted_path(found: type | Callable[..., Any] | str) -> str:
    """Return the dotted path of a class or function for :func:`load_object`; a path is returned unchanged.

    A class of a notebook or a local class is found only in this process; of two with the same name, the last one.
    """
    if isinstance(found, str):
        return found
    path = f"{found.__module__}:{found.__name__}"
    _HANDED[path] = found
    return path


def is_importable(path: str) -> bool:
    """Return whether other processes can import the class of a dotted path."""
    module_name, _, attribute = path.partition(":")
    if module_name == "__main__" or _of_python(module_name):
        return False
    found = getattr(importlib.import_module(module_name), attribute, None)
    return found is _HANDED.get(path, found)


def derived(*bases: type, named: str = "") -> Demand:
    """Return the demand for a class derived from one of ``bases``, which are ``named`` so in messages."""
    named = named or " or ".join(f"{base.__module__}.{base.__name__}" for base in bases)
    return lambda found: "" if _is_class(found, *bases) else f"is not a class derived from {named}"


def a_class(*methods: str) -> Demand:
    """Return the demand for a class, not one of Python's own, that has these methods."""

    def demand(found: Any) -> str:
        if not _is_class(found, object) or _of_python(found.__module__):
            return "is not a class of a package, or of your own"
        lacking = [name for name in methods if not callable(getattr(found, name, None))]
        return f"has no function {', '.join(lacking)}" if lacking else ""

    return demand


def a_client(found: Any) -> str:
    """Demand a client class: its class method ``handle`` answers the messages of the server."""
    fine = not a_class()(found) and ismethod(getattr(found, "handle", None))
    return "" if fine else "is not a client class: it has no classmethod `handle`"


def a_function(found: Any) -> str:
    """Demand a function that is written in Python, neither in Python's own modules nor in those of this project."""
    module = getattr(found, "__module__", None) or ""
    if not isinstance(found, FunctionType):
        return "is not a function"
    ours = module.startswith("fedgraph.") and not module.startswith("fedgraph.simulations.")
    return "is not a function of a package, or of your own" if ours or _of_python(module) else ""


def load_object(path: str, key: str, demand: Demand) -> Any:
    """Import the object that a dotted path names, and check that it is of the kind that its key demands.

    Returns the attribute of the module, which has not been called. Raises ExperimentError when the path has no colon,
    the module is one of Python's own, which is not imported, it cannot be imported or has no such attribute, or this is
    of another kind.

    Parameters
    ----------
    path : str
        ``package.module:Class``.
    key : str
        The experiment key that holds the path, for messages.
    demand : callable
        Returns what is wrong with the object, such as :func:`derived`, :func:`a_class` and :func:`a_function`.
    """
    found = _HANDED[path] if path in _HANDED else _imported(path, key)
    problem = demand(found)
    if problem:
        raise ExperimentError(f"{key} = '{path}' {problem}")
    return found


def check_options(options: Mapping[str, Any], key: str) -> None:
    """Raise ExperimentError for options with a text that could be a call, or a folder for pickles.

    Some classes evaluate texts, such as the types in a signature (Sequential of PyTorch Geometric), and scikit-learn's
    read what they find in the folder ``memory``.
    """
    level: list[Any] = [options]
    while level:
        if any(isinstance(value, str) and "(" in value for value in level):
            raise ExperimentError(f"{key} has a text with a parenthesis, which may be code: it is not passed on")
        if any(isinstance(value, Mapping) and "memory" in value for value in level):
            raise ExperimentError(f"{key} has the key 'memory', a folder with pickles: it is not passed on")
        level = [
            inner
            for value in level
            for inner in ((*value, *value.values()) if isinstance(value, Mapping) else _entries(value))
        ]


def _entries(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()


def _is_class(found: Any, *bases: type) -> bool:
    return isinstance(found, type) and issubclass(found, bases)


def _of_python(module_name: str) -> bool:
    return module_name.partition(".")[0] in sys.stdlib_module_names


def _imported(path: str, key: str) -> Any:
    module_name, _, attribute = path.partition(":")
    # The path may be from a server: long ones are truncated.
    if len(path) > _LONGEST_PATH or not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        kind = "function" if key.endswith("function") else "Class"
        raise ExperimentError(
            f"{key} = '{in_short(path, 200)}' is not a dotted path; write it as 'package.module:{kind}'"
        )
    if _of_python(module_name):
        raise ExperimentError(
            f"{key} = '{path}': '{module_name}' is a module of Python itself, and has nothing to plug in: rename your "
            "module, if you have one of this name"
        )
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        advice = (
            f"{_moved_hint(module_name)}Its folder must be on PYTHONPATH, or be the folder you start from; that "
            "which a run folder names is used with --trust (in Python trust=True)"
        )
        missing = error.name or module_name
        if missing.startswith("fedgraph."):
            advice = "This version of fedgraph does not have it: CHANGELOG.md says what took its place"
        elif missing != module_name and not module_name.startswith(f"{missing}."):
            advice = f"It imports '{missing}': install that, or put its folder on PYTHONPATH"
        raise ExperimentError(f"{key} = '{path}': cannot import '{module_name}' ({error}). {advice}") from error
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}"
        raise ExperimentError(f"{key} = '{path}': syntax error in {where}: {error.msg}") from error
    _warn_if_changed(module_name, module)
    try:
        return getattr(module, attribute)
    except AttributeError:
        if module_name == "__main__":
            raise ExperimentError(
                f"{key} = '{path}': this class was defined in another script or notebook, and is known there alone. "
                "Define it here, or move it to a module. Its runs are resumed where it is: fedgraph.resume(FOLDER)"
            ) from None
        where = getattr(module, "__file__", None) or module_name
        hint = f"{where} has no '{attribute}'. {_moved_hint(module_name)}".strip().removesuffix(".")
        raise ExperimentError(f"{key} = '{path}': {hint}") from None


def _warn_if_changed(name: str, module: ModuleType) -> None:
    """Warn once of each change of the file of a module since its import or reload: Python keeps the old code."""
    file, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
    try:
        changed = os.stat(file).st_mtime_ns if file else 0
    except OSError:  # in an archive, or gone
        return
    before, _IMPORTED[name] = _IMPORTED.get(name), (spec, changed)
    if before is not None and before[0] is spec and before[1] != changed:
        log.warning(
            "%s has changed since it was imported, and Python goes on with the old code: restart it, or call "
            "importlib.reload first", file,
        )  # fmt: skip


def other_checkouts() -> list[Path]:
    """Return other checkouts of this project, at or above the current folder and on ``sys.path``."""
    here = Path.cwd()
    folders = [here, *here.parents, *(Path(entry or ".") for entry in sys.path)]
    found = dict.fromkeys(folder.resolve() for folder in folders)
    return [folder for folder in found if folder != _here() and _is_checkout(folder)]


def _is_checkout(folder: Path) -> bool:
    return all((folder / name / "__init__.py").is_file() for name in ("fedgraph", *_OURS))


def _here() -> Path:
    return Path(__file__).resolve().parents[2]


def _moved_hint(module_name: str) -> str:
    """Return a hint for paths to ``clients`` and ``strategies`` outside the package ``fedgraph``."""
    ours = module_name.partition(".")[0] in _OURS and importlib.util.find_spec(f"fedgraph.{module_name}") is not None
    return f"fedgraph's own module is called 'fedgraph.{module_name}'. " if ours else ""
