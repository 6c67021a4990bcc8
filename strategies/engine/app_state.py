"""The state of a strategy of an app as it is saved, and as more clients join."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedgraph.algorithms import Clients, ModelRows, State
from fedgraph.graph import ClientGraph


def graph_state(graph: ClientGraph) -> State:
    """Return a client graph as plain state."""
    kind = {"directed": graph.directed, "allow-negative": graph.allow_negative}
    return {"names": list(graph.names), "edge-index": graph.edge_index, "weights": graph.weights, **kind}


def graph_of(state: State) -> ClientGraph:
    """Return the graph of :func:`graph_state`."""
    kind = state["directed"], state["allow-negative"]
    return ClientGraph(tuple(state["names"]), state["edge-index"], state["weights"], *kind)


def clients_state(clients: Clients, state: State) -> State:
    """Return clients and the state of an algorithm as plain state; arrays keep their types."""
    rows: ModelRows = state["models"]
    return {
        "names": list(clients.names),
        "num-examples": clients.num_examples,
        "models": {str(place): model for place, model in enumerate(rows.models)},
        "layers": list(rows.models[0]),
        "own": sorted(rows.own),
        "state": {name: value for name, value in state.items() if name != "models"},
    }


def clients_of(saved: State) -> tuple[tuple[str, ...], Tensor, State]:
    """Return names, numbers of examples and state of :func:`clients_state`."""
    models = [saved["models"][str(place)] for place in range(len(saved["names"]))]
    rows = ModelRows([{name: model[name] for name in saved["layers"]} for model in models], saved["own"])
    return tuple(saved["names"]), saved["num-examples"], {**saved["state"], "models": rows}


def grown(before: Any, fresh: Any, places: Tensor) -> Any:
    """Return what a state has by client with more clients.

    Parameters
    ----------
    before : Any
        A tensor whose axes of the length of ``places`` are of clients, a dict of such, or anything else.
    fresh : Any
        The same of a run that begins with all clients, from which the new ones are taken.
    places : Tensor
        Places of the clients of ``before`` among all.
    """
    if isinstance(before, dict) and isinstance(fresh, dict):
        return {name: grown(value, fresh.get(name), places) for name, value in before.items()}
    if not isinstance(before, Tensor) or not isinstance(fresh, Tensor) or before.shape == fresh.shape:
        return before
    whole = fresh.clone()
    if before.dim() >= 2 and before.shape[:2] == (len(places), len(places)):
        whole[places[:, None], places] = before
    elif len(before) == len(places) and len(fresh):
        whole[places] = before
    return whole
