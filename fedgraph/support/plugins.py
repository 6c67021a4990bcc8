"""Conversion between classes and dotted paths ``package.module:Class``; plug-ins need no registration."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fedgraph.support.errors import ExperimentError
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

_LONGEST_PATH = 500
_OURS = ("strategies", "clients")
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
    if module_name == "__main__":
        return False
    found = getattr(importlib.import_module(module_name), attribute, None)
    return found is _HANDED.get(path, found)


def load_object(path: str, key: str) -> Any:
    """Import the object that a dotted path names.

    Returns the attribute of the module. Raises ExperimentError when the path has no colon, the module cannot be
    imported or has no such attribute.

    Parameters
    ----------
    path : str
        ``package.module:Class``.
    key : str
        The experiment key that holds the path, for messages.
    """
    if path in _HANDED:
        return _HANDED[path]
    module_name, _, attribute = path.partition(":")
    # The path may be from a server: long ones are truncated.
    if len(path) > _LONGEST_PATH or not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        kind = "function" if key.endswith("function") else "Class"
        raise ExperimentError(
            f"{key} = '{in_short(path, 200)}' is not a dotted path; write it as 'package.module:{kind}'"
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
