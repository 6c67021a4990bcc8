"""The folder of a Flower app: its run config, and isolated import of its components."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedgraph.support.errors import AppError, closest_first, if_any, quoted, similar

Value: TypeAlias = bool | int | float | str
"""The types of values in Flower's run config and node config."""
RunConfig: TypeAlias = Mapping[str, Any] | Sequence[str] | str | Path
"""A run config as a mapping, or as for ``flwr run --run-config``: ``"key=value key=value"``, or a TOML file."""

_PAIR = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")
_NEVER_REPLACED = ("fedgraph", "flwr")

_Component = TypeVar("_Component")


def read_run_config(given: RunConfig, name: str = "the run config") -> dict[str, Value]:
    """Read a run config, or a node config; keys of nested tables are joined by dots, as Flower does.

    Returns values by key. Raises AppError when it cannot be read, or a value is of a type that Flower does not send.

    Parameters
    ----------
    given : keys and values; or ``"num-server-rounds=3 lr=0.1"``, one or several of these; or the path of a TOML file.
    """
    if isinstance(given, Mapping):
        return flattened(given, name)
    texts = [str(given)] if isinstance(given, str | Path) else list(given)
    if any(text.endswith(".toml") for text in texts):
        if len(texts) > 1:
            raise AppError(f"{name} is a TOML file or key=value pairs, not both, and one file at most")
        return flattened(_read_toml(Path(texts[0]).expanduser()), texts[0])
    config: dict[str, Value] = {}
    for text in texts:
        config |= _read_pairs(text, name)
    return config


def _read_pairs(text: str, name: str) -> dict[str, Value]:
    left = _PAIR.sub("", text).strip()
    if left:
        raise AppError(f"'{left}' of {name} is not a key=value pair, such as 'rounds=3 name=\"a b\"'")
    pairs = "\n".join(f"{key} = {value}" for key, value in _PAIR.findall(text))
    try:
        return flattened(tomllib.loads(pairs), name)
    except tomllib.TOMLDecodeError as error:
        raise AppError(
            f"{name} '{text}' cannot be read ({error}); values are true, false, numbers, or text in quotes: "
            "'rounds=3 lr=0.1 name=\"mlp\"'"
        ) from None


def flattened(table: Mapping[str, Any], where: str, parent: str = "") -> dict[str, Value]:
    """Join the keys of nested tables by dots, and raise AppError for a value that Flower does not send."""
    flat: dict[str, Value] = {}
    for name, given in table.items():
        key = f"{parent}.{name}" if parent else str(name)
        value = given.item() if isinstance(given, np.generic) else given
        if isinstance(value, Mapping):
            flat |= flattened(value, where, key)
        elif isinstance(value, Value):
            flat[key] = value
        else:
            raise AppError(f"{key} of {where} is {type(value).__name__}; Flower sends bool, int, float and str")
    return flat


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AppError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise AppError(f"{path} is not valid TOML: {error}") from None


@dataclass(frozen=True)
class FlowerApp:
    """The folder of a Flower app, as ``flwr run`` takes it.

    Attributes
    ----------
    components : ``[tool.flwr.app.components]`` of its ``pyproject.toml``.
    defaults : ``[tool.flwr.app.config]``, flattened.
    """

    folder: Path
    components: dict[str, str]
    defaults: dict[str, Value]

    @classmethod
    def open(cls, folder: str | Path) -> FlowerApp:
        """Read the ``pyproject.toml`` of a folder; AppError when it is not a Flower app."""
        path = Path(folder).expanduser().absolute()
        project = path / "pyproject.toml"
        if not path.is_dir():
            raise AppError(f"no folder {path}: name the folder of a Flower app, which has a pyproject.toml")
        if not project.is_file():
            raise AppError(f"{path} is not a Flower app: it has no pyproject.toml")
        table: Any = _read_toml(project)
        for key in ("tool", "flwr", "app"):
            table = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise AppError(f"{project} has no table [tool.flwr.app]: {path} is not a Flower app")
        components = table.get("components", {})
        for name in ("serverapp", "clientapp"):
            if not re.fullmatch(r"[\w.]+:[\w.]+", str(components.get(name))):
                raise AppError(f'[tool.flwr.app.components] of {project} needs {name} = "package.module:attribute"')
        return cls(path, components, flattened(table.get("config", {}), f"[tool.flwr.app.config] of {project}"))

    def run_config(self, overrides: RunConfig) -> dict[str, Value]:
        """Return the run config with overrides; AppError for a key that the app does not have, as in Flower."""
        given = read_run_config(overrides)
        unknown = [key for key in given if key not in self.defaults]
        if unknown:
            raise AppError(
                f"the run config of {self.folder.name} has no key {quoted(unknown)}"
                f"{similar(unknown, [*self.defaults])}"
                f"{if_any('; known: ', closest_first(unknown, [*self.defaults]))}"
            )
        return {**self.defaults, **given}

    @contextmanager
    def imported(self) -> Iterator[tuple[ServerApp, ClientApp]]:
        """Import both components; within the block the folder comes first on ``sys.path``.

        Its modules are imported again, and unloaded afterwards, as other apps may have modules with the same names, and
        files may have changed.
        """
        with _at_home(self.folder):
            yield self._component("serverapp", ServerApp), self._component("clientapp", ClientApp)

    def _component(self, name: str, kind: type[_Component]) -> _Component:
        module, _, attributes = self.components[name].partition(":")
        what = f'{name} = "{self.components[name]}" of {self.folder / "pyproject.toml"}'
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            inside = f" in {where.filename}, line {where.lineno}" if Path(where.filename).is_file() else ""
            raise AppError(f"{what} cannot be imported: {error}{inside}") from error
        except Exception as error:
            error.add_note(f"Raised while importing {what}")
            raise
        try:
            for attribute in attributes.split("."):
                found = getattr(found, attribute)
        except AttributeError:
            raise AppError(f"{what}: module '{module}' has no '{attribute}'") from None
        if not isinstance(found, kind):
            raise AppError(f"{what} is {type(found).__name__}, not a {kind.__name__}")
        return found


@contextmanager
def _at_home(folder: Path) -> Iterator[None]:
    """Put a folder first on ``sys.path``; its modules replace others of these names within the block."""
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    names -= {*sys.stdlib_module_names, *_NEVER_REPLACED}
    aside = _taken_out(names)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        _taken_out(names)
        sys.modules.update(aside)


def _taken_out(names: set[str]) -> dict[str, ModuleType]:
    """Remove the modules and packages of these names, with their submodules, from those that are imported."""
    return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in names}
