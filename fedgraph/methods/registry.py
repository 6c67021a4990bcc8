"""Find a method: a built-in one by its short name, or a strategy by its dotted path."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object

PACKAGE = "strategies"
"""Built-in methods are the classes in its modules that have a ``name``; name, title, needs and paper stand on them."""


@dataclass(frozen=True)
class Method:
    """What an experiment asks for.

    strategy : dotted path of the strategy.
    client   : dotted path of the client class; empty: the one that the strategy names.
    """

    name: str
    strategy: str
    client: str = ""

    @property
    def strategy_class(self) -> Any:
        """The strategy. Raises ExperimentError when it cannot be found."""
        return load_object(self.strategy, "[experiment] strategy")

    @property
    def title(self) -> str:
        """What it is, in words."""
        return getattr(self.strategy_class, "title", "") or self.name


def built_in(name: str) -> type | None:
    """The strategy of a built-in method: ``sfl-per`` is looked for in ``sfl_per.py``, then in ``sfl.py``."""
    words = name.split("-")
    for module in ("_".join(words[:end]) for end in range(len(words), 0, -1)):
        found = _named(module).get(name) if module in _modules() else None
        if found is not None:
            return found
    return None


def built_ins() -> dict[str, type]:
    """The strategies of all built-in methods by name."""
    return {name: found for module in _modules() for name, found in _named(module).items()}


def resolve(method: str | None, strategy: str | None, client: str | None) -> Method:
    """The method an experiment names, by short name, by dotted paths, or by a short name with one side replaced.

    Raises
    ------
    ExperimentError
        When nothing or an unknown short name is given.
    """
    known = None if method is None else built_in(method)
    if method is not None and known is None:
        raise ExperimentError(
            f"[experiment] method '{method}' is not a built-in; known: {', '.join(sorted(built_ins()))}. "
            'For your own, give [experiment] strategy = "package.module:Class"'
        )
    if strategy is not None:
        replaced = getattr(known, "default_client", "")
        return Method(strategy.rpartition(":")[2], strategy, client or replaced)
    if known is None:
        raise ExperimentError(
            f'[experiment] needs a method ({", ".join(sorted(built_ins()))}) or a strategy = "package.module:Class"'
        )
    return Method(str(method), f"{known.__module__}:{known.__name__}", client or "")


@cache
def _modules() -> list[str]:
    folders = importlib.import_module(PACKAGE).__path__
    return [found.name for found in pkgutil.iter_modules(folders) if not found.ispkg]


@cache
def _named(module: str) -> dict[str, type]:
    path = f"{PACKAGE}.{module}"
    classes = [found for found in vars(importlib.import_module(path)).values() if isinstance(found, type)]
    return {found.name: found for found in classes if found.__module__ == path and vars(found).get("name")}  # type: ignore[attr-defined]
