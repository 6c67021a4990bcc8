"""The clients of an app and an algorithm's state, extended as clients join, and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedgraph.algorithms import Algorithm, Clients, ModelRows, State, check_models, check_state, matrix, written
from fedgraph.defence import bounded_counts, counts_notes
from fedgraph.graph import ClientGraph
from fedgraph.messages import from_record, to_record
from fedgraph.models import PersonalLayers, PersonalLayersSettings
from fedgraph.strategies.engine.app_exchange import named
from fedgraph.support.errors import quoted


class AppState:
    """The clients and the state of the algorithm.

    Parameters
    ----------
    graph : the client graph, whose clients are all present from the start.
    seed : seed of the algorithm's random numbers.
    initial_of : returns a client's own initial model ``[parameters]``, or None if all start with the same.
    most_examples : see :func:`fedgraph.defence.bounded_counts`.

    Attributes
    ----------
    clients : None before the first round.
    state : the state of the algorithm.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        graph: ClientGraph | None,
        seed: int,
        initial_of: Callable[[str], Tensor | None],
        most_examples: float | None = None,
    ) -> None:
        self._algorithm, self._graph, self._seed, self._initial_of = algorithm, graph, seed, initial_of
        self.clients: Clients | None = None
        self.state: State = {}
        self._private: dict[str, Tensor] = {}
        self._most_examples = most_examples
        self._claimed: dict[str, float] = {}

    @property
    def all_clients(self) -> Clients:
        """The clients, after the first round."""
        assert self.clients is not None
        return self.clients

    @property
    def models(self) -> ModelRows:
        """Their models."""
        rows: ModelRows = self.state["models"]
        return rows

    def readout(self) -> ArrayRecord | None:
        """Return the read-out, or None before the first round and for a method without one.

        Personal layers have their initial values.
        """
        row = None if self.clients is None else self._algorithm.readout(self.clients, self.state)
        return None if row is None else to_record({**named(self.models, 0, row), **self._private})

    def client_arrays(self) -> Mapping[str, ArrayRecord]:
        """Return the model of each client, by name."""
        return {} if self.clients is None else _ClientArrays(self.clients.names, self.models)

    def admit(self, names: Iterable[str], arrays: ArrayRecord) -> list[str]:
        """Create the clients, or add new ones of ``names`` with the model ``arrays``; return the new ones."""
        if self.clients is None:
            all_names = tuple(sorted(names if self._graph is None else self._graph.names))
            model = from_record(arrays)
            rows = ModelRows.repeated(model, len(all_names), self._own_layers(model))
            self._private = {name: model[name] for name in rows.own}
            self.clients = self._as_clients(all_names, torch.ones(len(all_names), dtype=torch.float64), rows)
            self._algorithm.check(self.clients)
            self.state = self._begun(self.clients, rows)
            return []
        new = sorted(set(names) - set(self.clients.names))
        if new:
            self._grow(self.clients, new, arrays)
        return new

    def take(self, number: int, returned: object) -> None:
        """Set the state returned by a round, whose models may be one tensor."""
        after = self._algorithm.after(self.state, returned)
        where = f"{self._algorithm.class_name}.round, in round {number}, returned"
        self.state = _with_rows(where, after, self.models)

    def count(self, numbers: Mapping[str, float], assume_mean: bool = False) -> list[str]:
        """Set the weights of clients: numbers of training examples, or what else their replies have as such.

        They are bounded (:func:`fedgraph.defence.bounded_counts`); returns a note on those that are. A client that has
        never answered has the weight 1, or with ``assume_mean`` the mean of those that have.
        """
        self._claimed |= numbers
        counts, names = self.all_clients.num_examples, list(self._claimed)
        claimed = torch.tensor(list(self._claimed.values()), dtype=torch.float64)
        bounded = bounded_counts(claimed, self._most_examples)
        counts.fill_(float(bounded.mean()) if assume_mean and names else 1.0)
        place = {name: place for place, name in enumerate(self.all_clients.names)}
        counts[[place[name] for name in names]] = bounded
        return counts_notes(names, claimed, bounded)

    def saved(self) -> State | None:
        """Return everything as plain state with the types of arrays; None before the first round."""
        if self.clients is None:
            return None
        rows = self.models
        return {
            "names": list(self.clients.names),
            "num-examples": self.clients.num_examples,
            "claimed": [list(each) for each in self._claimed.items()],
            "models": {str(place): model for place, model in enumerate(rows.models)},
            "layers": list(rows.models[0]),
            "private": self._private,
            "state": {name: value for name, value in self.state.items() if name != "models"},
        }

    def load(self, saved: State) -> None:
        """Restore what :meth:`saved` returned."""
        models = [saved["models"][str(place)] for place in range(len(saved["names"]))]
        rows = ModelRows([{name: model[name] for name in saved["layers"]} for model in models], saved["private"])
        self._private = saved["private"]
        # Earlier versions kept only what counted.
        whole = zip(saved["names"], saved["num-examples"].tolist(), strict=True)
        self._claimed = dict(saved.get("claimed", whole))
        self.clients = self._as_clients(tuple(saved["names"]), saved["num-examples"].double(), rows)
        self.state = {**saved["state"], "models": rows}

    def _grow(self, old: Clients, new: Sequence[str], arrays: ArrayRecord) -> None:
        """Add clients with model ``arrays``; their state is that of a run that starts with all clients."""
        names = tuple(sorted({*old.names, *new}))
        places = torch.tensor([names.index(name) for name in old.names])
        rows = ModelRows.repeated(from_record(arrays), len(names), self.models.own)
        counts = torch.ones(len(names), dtype=torch.float64).index_copy(0, places, old.num_examples)
        self.clients = self._as_clients(names, counts, rows)
        fresh = self._begun(self.clients, rows)
        for place, model in zip(places.tolist(), self.models.models, strict=True):
            rows.models[place] = model
        self.state = {**{name: extended(self.state[name], fresh[name], places) for name in fresh}, "models": rows}

    def _begun(self, clients: Clients, rows: ModelRows) -> State:
        """Return the state before the first round, given a model of each client."""
        first = self._algorithm.first_state(clients, rows)
        return _with_rows(f"{self._algorithm.class_name}.init returned", first, rows)

    def _own_layers(self, model: Mapping[str, Tensor]) -> list[str]:
        """Return the names of personal layers."""
        settings = self._algorithm.settings
        if not isinstance(settings, PersonalLayersSettings) or not settings.personal_layers:
            return []
        layers = PersonalLayers.of(ModelRows([dict(model)]).layout, settings.personal_layers)
        return list(layers.personal.names)

    def _as_clients(self, names: tuple[str, ...], counts: Tensor, rows: ModelRows) -> Clients:
        graph = None if self._graph is None else self._graph.subgraph(names)
        own = self._initial_of if names and self._initial_of(names[0]) is not None else None
        return Clients(names, counts, rows.layout, graph, self._seed, own)  # type: ignore[arg-type]


def _with_rows(where: str, state: State, rows: ModelRows) -> State:
    """Return a state with its models written to ``rows``. Raises RunError for an invalid state."""
    check_state(where, {name: value for name, value in state.items() if name != "models"})
    models = state["models"]
    if models is not rows:
        whole = matrix(models) if isinstance(models, ModelRows) else models
        check_models(f"{where} models", whole, rows)
        written(rows, torch.arange(len(rows)), whole)
    return {**state, "models": rows}


class _ClientArrays(Mapping[str, ArrayRecord]):
    """Models of clients by name, encoded on access."""

    def __init__(self, names: Sequence[str], models: ModelRows) -> None:
        self._models = dict(zip(names, models.models, strict=True))

    def __getitem__(self, name: str) -> ArrayRecord:
        if str(name) not in self._models:
            raise KeyError(f"unknown client '{name}'; known are {quoted(list(self._models))}")
        return to_record(self._models[str(name)])

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def graph_state(graph: ClientGraph | None) -> State | None:
    """Return a client graph as plain state."""
    if graph is None:
        return None
    kind = {"directed": graph.directed, "allow-negative": graph.allow_negative}
    return {"names": list(graph.names), "edge-index": graph.edge_index, "weights": graph.weights, **kind}


def graph_of(state: State | None) -> ClientGraph | None:
    """Return the graph of :func:`graph_state`."""
    if state is None:
        return None
    kind = state["directed"], state["allow-negative"]
    return ClientGraph(tuple(state["names"]), state["edge-index"], state["weights"], *kind)


def extended(before: Any, fresh: Any, places: Tensor) -> Any:
    """Return the entries of a state by client, extended by more clients.

    Parameters
    ----------
    before : a tensor with client axes of the length of ``places``, a dict of such, or anything else.
    fresh : the same of a run that starts with all clients, for the new ones.
    places : positions of the clients of ``before`` among all.
    """
    if isinstance(before, dict) and isinstance(fresh, dict):
        return {name: extended(value, fresh.get(name), places) for name, value in before.items()}
    if not isinstance(before, Tensor) or not isinstance(fresh, Tensor) or before.shape == fresh.shape:
        return before
    whole = fresh.clone()
    if before.dim() >= 2 and before.shape[:2] == (len(places), len(places)):
        whole[places[:, None], places] = before
    elif len(before) == len(places) and len(fresh):
        whole[places] = before
    return whole
