"""Finding of methods: built-in ones by short name, strategies by dotted path."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedgraph.algorithms import STOCK_CLIENT
from fedgraph.algorithms import Method as Base
from fedgraph.support.errors import ExperimentError, similar
from fedgraph.support.plugins import derived, dotted_path, load_object

PACKAGES = ("fedgraph.algorithms", "fedgraph.strategies")
"""Built-in methods are the classes in their modules that have a ``name``, a title, needs and a paper."""


@dataclass(frozen=True)
class Method:
    """A method that an experiment names.

    Attributes
    ----------
    name : str
        Short name of a built-in method, or class name of a strategy.
    strategy : str
        Dotted path of the strategy.
    client : str
        Dotted path of the client class; empty for the default of the strategy.
    """

    name: str
    strategy: str
    client: str = ""

    @property
    def strategy_class(self) -> Any:
        """The class of the strategy, or its algorithm.

        Raises ExperimentError when it cannot be found, is something else, or extends a strategy for custom Flower apps.
        """
        return run_by_experiments(load_object(self.strategy, "[experiment] strategy", _a_strategy))

    @property
    def client_class(self) -> str:
        """Dotted path of the client class; empty if neither experiment nor strategy has one."""
        return self.client or dotted_path(getattr(self.strategy_class, "default_client", STOCK_CLIENT))

    @property
    def terms(self) -> str:
        """Dotted path of the client class from which a custom one must be derived. Empty for methods without their own
        client class, and for strategies of Flower.
        """
        default = getattr(self.strategy_class, "default_client", "")
        built_in = bool(vars(self.strategy_class).get("name"))
        return default if self.client and built_in and default != self.client else ""

    @property
    def title(self) -> str:
        """Title of the method, by default its name."""
        return getattr(self.strategy_class, "title", "") or self.name


def _a_strategy(found: Any) -> str:
    """Demand an algorithm, or a strategy of Flower."""
    if not derived(Base, Strategy)(found):
        return ""
    older = any(base.__module__.startswith("flwr.server.") for base in getattr(found, "__mro__", ()))
    instead = "but one of Flower's older interface: derive it from flwr.serverapp.strategy"
    advice = instead if older else "nor an algorithm, which is derived from fedgraph.algorithms.Algorithm"
    return f"is not a Flower Strategy class, {advice}"


def run_by_experiments(found: Any) -> Any:
    """Return the class that experiments run: the ``algorithm_class`` of a strategy for users' own Flower apps, else
    itself.

    Raises ExperimentError for a class derived from such a strategy, as an experiment would ignore its additions.
    """
    algorithm = getattr(found, "algorithm_class", None)
    if algorithm is None:
        return found
    if "algorithm_class" not in vars(found):
        raise ExperimentError(
            f"{found.__name__} is a strategy for custom Flower apps, but experiments run its algorithm: derive it "
            f"from {algorithm.__module__}:{algorithm.__name__}, or call its start in a ServerApp"
        )
    return algorithm


def built_in(name: str) -> type | None:
    """Return the algorithm or strategy of a built-in method, or None."""
    words = name.split("-")
    # Most are in a module with their name or its first words, and no other is imported.
    alike = ["_".join(words[:end]) for end in range(len(words), 0, -1)]
    modules = sorted(_modules(), key=lambda module: module.rpartition(".")[2] not in alike)
    return next((_named(module)[name] for module in modules if name in _named(module)), None)


def built_ins() -> dict[str, type]:
    """Return the algorithms and strategies of all built-in methods by name."""
    every: dict[str, type] = {}
    for module in _modules():
        every = {**_named(module), **every}
    return dict(sorted(every.items()))


def resolve(method: str | None, strategy: str | None, client: str | None) -> Method:
    """Find the method that an experiment names.

    Raises ExperimentError when neither method nor strategy is given, or both are, or the short name is unknown.

    Parameters
    ----------
    method : str or None
        Short name of a built-in method.
    strategy : str or None
        Dotted path of a strategy, instead of a method.
    client : str or None
        Dotted path of a client class, instead of the default.
    """
    if method is not None and strategy is not None:
        raise ExperimentError(
            f"[experiment] has method = '{method}' and strategy = '{strategy}': give a method or a strategy, not both"
        )
    if strategy is not None:
        return Method(strategy.rpartition(":")[2], strategy, client or "")
    known = None if method is None else built_in(method)
    if method is not None and known is None:
        names = sorted(built_ins())
        raise ExperimentError(
            f"[experiment] method '{method}' is not a built-in; known: {', '.join(names)}"
            f"{similar([method], names) or '.'} For your own, give [experiment] strategy = 'package.module:Class'"
        )
    if known is None:
        raise ExperimentError(
            f'[experiment] needs a method ({", ".join(sorted(built_ins()))}) or a strategy = "package.module:Class"'
        )
    return Method(str(method), f"{known.__module__}:{known.__name__}", client or "")


@cache
def _modules() -> list[str]:
    """Return the dotted names of the modules of built-in methods."""
    return [
        f"{package}.{found.name}"
        for package in PACKAGES
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if not found.ispkg
    ]


@cache
def _named(module: str) -> dict[str, type]:
    present = [found for found in vars(importlib.import_module(module)).values() if isinstance(found, type)]
    return {vars(found)["name"]: found for found in present if found.__module__ == module and vars(found).get("name")}
