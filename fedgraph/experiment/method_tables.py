"""The table of a method with all defaults, as stored in run folders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedgraph.support.plugins import derived, load_object
from fedgraph.support.settings import Settings, parse, with_nulls

NODE_MINIMA = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
"""Arguments of Flower's strategies whose defaults depend on the clients of a run."""


def resolved_table(
    strategy_class: Any, table: Mapping[str, Any], where: str, write: Callable[[Settings], dict[str, Any]]
) -> dict[str, Any]:
    """Return the table of a method with all defaults filled in.

    Raises ExperimentError when the table does not fit the settings class.

    Parameters
    ----------
    strategy_class : the strategy. Keys are those of its settings class, or the arguments with plain values of a stock
        Flower strategy.
    where : name of the table in messages.
    write : ``Settings.as_table`` or ``Settings.as_written``.
    """
    kind = getattr(strategy_class, "settings_type", None)
    if isinstance(kind, type) and issubclass(kind, Settings):
        return write(parse(kind, table, where))
    return _with_arguments(strategy_class, dict(table)) if isinstance(strategy_class, type) else dict(table)


def constructor_arguments(strategy_class: type) -> dict[str, Any]:
    """Return the keys of a stock strategy's table with their defaults."""
    return {name.replace("_", "-"): parameter.default for name, parameter in _arguments(strategy_class).items()}


def _arguments(strategy_class: type) -> dict[str, inspect.Parameter]:
    """Return the named arguments of a class, and of base classes to which its constructor forwards others."""
    several: list[dict[str, inspect.Parameter]] = []
    for base in strategy_class.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        every = inspect.signature(vars(base)["__init__"]).parameters
        rest = [name for name, each in every.items() if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        several.insert(0, {name: each for name, each in every.items() if name not in ("self", *rest)})
        if not rest:
            break
    return {name: each for own in several for name, each in own.items()}


def _with_arguments(strategy_class: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """Add the values of other arguments of a stock strategy, constructed from ``table``.

    A wrapped strategy is a table with its dotted path as ``name``.
    """
    table = dict(table)
    try:
        if "strategy" in table:
            table["strategy"] = _wrapped(table["strategy"])
        before = _plain(vars(_made(strategy_class, table)))
    except Exception:  # checking the method raises the error in the table
        return table
    values = {
        name.replace("_", "-"): before.get(name, parameter.default)
        for name, parameter in _arguments(strategy_class).items()
        if name not in NODE_MINIMA
    }
    values = {key: value for key, value in values.items() if key not in with_nulls(table) and _is_plain(value)}

    def is_same(more: Mapping[str, Any]) -> bool:
        try:
            return _plain(vars(_made(strategy_class, {**table, **more}))) == before
        except Exception:
            return False

    # A constructor may fix an argument of its base class.
    found = values if is_same(values) else {key: value for key, value in values.items() if is_same({key: value})}
    return {**table, **found}


def _wrapped(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a wrapped strategy, which may be given as its dotted path."""
    table = {"name": given} if isinstance(given, str) else dict(given)
    path = table.pop("name")
    return {"name": path, **_with_arguments(load_object(path, "strategy", derived(Strategy)), table)}


def _made(strategy_class: type, table: Mapping[str, Any]) -> Any:
    """Construct a stock strategy, and the one that it wraps."""
    arguments = {key.replace("-", "_"): value for key, value in with_nulls(table).items()}
    inner = arguments.get("strategy")
    if isinstance(inner, Mapping):
        rest = {key: value for key, value in inner.items() if key != "name"}
        arguments["strategy"] = _made(load_object(inner["name"], "strategy", derived(Strategy)), rest)
    return strategy_class(**arguments)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if _is_plain(value)}
