"""The table of a method with all of its defaults filled in, as run folders keep it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedgraph.support.settings import Settings, parse, with_nulls

NODE_MINIMA = ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")
"""Arguments of Flower's strategies whose defaults follow from the nodes of a run, unless they are given."""


def resolved_table(
    strategy_class: Any, table: Mapping[str, Any], where: str, write: Callable[[Settings], dict[str, Any]]
) -> dict[str, Any]:
    """Return the table of a method with all defaults filled in.

    Parameters
    ----------
    strategy_class : type
        The strategy. Its settings class says the keys; of a stock Flower strategy they are the arguments of its
        constructors that have plain values.
    table : mapping
        The table as given.
    where : str
        Names the table in messages.
    write : callable
        How settings are written: ``Settings.as_table`` or ``Settings.as_written``.

    Raises
    ------
    ExperimentError
        When the table does not fit the settings class.
    """
    kind = getattr(strategy_class, "settings_type", None)
    if isinstance(kind, type) and issubclass(kind, Settings):
        return write(parse(kind, table, where))
    return _with_arguments(strategy_class, dict(table)) if isinstance(strategy_class, type) else dict(table)


def constructor_arguments(strategy_class: type) -> dict[str, Any]:
    """Return the keys of a stock strategy's table with their defaults: the arguments that can be given to it."""
    return {name.replace("_", "-"): parameter.default for name, parameter in _arguments(strategy_class).items()}


def _arguments(strategy_class: type) -> dict[str, inspect.Parameter]:
    """Return the named arguments of a class, and of those it extends as far as its constructors hand others on."""
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


def _with_arguments(strategy_class: type, table: dict[str, Any]) -> dict[str, Any]:
    """Add the values that a stock strategy, made from ``table``, has for its other arguments."""
    given = {key.replace("-", "_"): value for key, value in with_nulls(table).items()}
    try:
        before = vars(strategy_class(**given))
    except Exception:  # what is wrong with the table is said where the method is checked
        return table
    values = {name: before.get(name, parameter.default) for name, parameter in _arguments(strategy_class).items()}
    values = {name: value for name, value in values.items() if name not in {*given, *NODE_MINIMA} and _is_plain(value)}

    def is_same(more: Mapping[str, Any]) -> bool:
        return _plain_attributes(strategy_class, {**given, **more}) == _plain(before)

    # A constructor may fix an argument of the class it extends, which cannot be given then.
    found = values if is_same(values) else {name: value for name, value in values.items() if is_same({name: value})}
    return {**table, **{name.replace("_", "-"): value for name, value in found.items()}}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))


def _plain_attributes(strategy_class: type, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the plain attributes of a strategy; None if it cannot be made, as when it fixes an argument itself."""
    try:
        return _plain(vars(strategy_class(**arguments)))
    except Exception:
        return None


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if _is_plain(value)}
