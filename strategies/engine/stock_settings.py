"""The table of a stock Flower strategy, and its state for a resumed run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedgraph.experiment import NODE_MINIMA, constructor_arguments
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State
from fedgraph.support.plugins import derived, load_object
from fedgraph.support.settings import with_nulls

_TOLD = ("num-examples", "loss", "train_loss")
"""Metrics that clients send with a trained model."""


def build_stock(stock_class: type[Strategy], table: Mapping[str, Any], where: str, clients: int) -> Strategy:
    """Construct a stock strategy from its table; keys are its keyword arguments with dashes.

    Clients are its nodes. Its minimum numbers of nodes default to Flower's values, limited to the number of clients. A
    wrapped strategy is a dotted path, or a table with that path as ``name`` and its own keys. Raises ExperimentError
    for an unknown key, values the strategy refuses, and a strategy that overrides ``start``, which would not be called.
    """
    if stock_class.start is not Strategy.start:
        raise ExperimentError(
            f"{stock_class.__name__} overrides `start`, but fedgraph's loop only calls configure_train, "
            "aggregate_train, configure_evaluate and aggregate_evaluate: move the code into these, or use `flwr run` "
            "with a custom app"
        )
    known = constructor_arguments(stock_class)
    table = with_nulls(table)
    arguments = {key.replace("-", "_"): value for key, value in table.items()}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ExperimentError(f"{where} has no key '{unknown[0]}'; known keys: {', '.join(sorted(known))}")
    for name in NODE_MINIMA:
        default = known.get(name.replace("_", "-"))
        if isinstance(default, int):
            arguments.setdefault(name, min(default, clients))
    if "strategy" in arguments:
        arguments["strategy"] = _wrapped(arguments["strategy"], where, clients)
    try:
        stock = stock_class(**arguments)
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{where}: {stock_class.__name__} refuses these settings: {error}") from None
    key = getattr(stock, "weighted_by_key", _TOLD[0])
    if key not in _TOLD:
        raise ExperimentError(f"{where} weighted-by-key = '{key}' is not a metric of the clients: {', '.join(_TOLD)}")
    return stock


def _wrapped(given: Any, where: str, clients: int) -> Strategy:
    """Construct the strategy that another one wraps."""
    table = {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    path = table.pop("name", None)
    if not isinstance(path, str):
        raise ExperimentError(
            f'{where} strategy is the strategy to wrap: "flwr.serverapp.strategy:FedAvg", or with its keys '
            '{name = "flwr.serverapp.strategy:FedAvg", fraction-train = 0.5}'
        )
    return build_stock(load_object(path, f"{where} strategy", derived(Strategy)), table, f"{where} strategy", clients)


def stock_state(stock: Strategy) -> State:
    """Return arrays (also in lists or dicts) and numbers of a stock strategy and the one it wraps."""
    state: State = {}
    for name, value in vars(stock).items():
        if isinstance(value, Strategy):
            state[name] = {"strategy": stock_state(value)}
        elif isinstance(value, np.ndarray):
            state[name] = torch.from_numpy(value)
        elif isinstance(value, (list, dict)) and value:
            items = {str(key): item for key, item in (value.items() if isinstance(value, dict) else enumerate(value))}
            if all(isinstance(item, np.ndarray) for item in items.values()):
                tensors = {key: torch.from_numpy(np.asarray(item)) for key, item in items.items()}
                state[name] = {type(value).__name__: tensors}
        elif isinstance(value, (bool, int, float)):
            state[name] = value
    return state


def load_stock_state(stock: Strategy, state: State) -> None:
    """Restore what :func:`stock_state` returned."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            setattr(stock, name, value.numpy())
        elif isinstance(value, dict) and "strategy" in value:
            load_stock_state(getattr(stock, name), value["strategy"])
        elif isinstance(value, dict) and "list" in value:
            items = value["list"]
            setattr(stock, name, [items[str(index)].numpy() for index in range(len(items))])
        elif isinstance(value, dict):
            setattr(stock, name, {key: item.numpy() for key, item in value["dict"].items()})
        else:
            setattr(stock, name, value)
