"""The client graph as a frozen value: named clients and the weights of the edges between them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from fedgraph.graph.build import Builders
from fedgraph.graph.constructors import unknown_clients
from fedgraph.graph.drawing import MOST_EDGES, GraphChart, spring_layout
from fedgraph.graph.edges import (
    asymmetric,
    canonical,
    exactly_symmetric,
    opposite_weights,
    strongest,
    symmetrised,
    with_self_loops,
)
from fedgraph.graph.inputs import real_tensor
from fedgraph.graph.propagation import Normalisation, PropagationMatrix, normalise
from fedgraph.support.errors import GraphError, quoted, similar
from fedgraph.support.notebook import picture, table_as_html

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from matplotlib.figure import Figure

log = logging.getLogger("fedgraph")

Symmetriser = Literal["maximum", "mean", "minimum"]


@dataclass(frozen=True, eq=False)
class ClientGraph(Builders):
    """A weighted graph over N named clients, with the adjacency matrix A.

    ``A[i, j]`` is the weight with which client i takes the values of client j into account ("i listens to j"). Self
    loops ``A[i, i]`` are kept as given: ``num_edges`` and ``degree`` count them, ``neighbours`` does not, and
    normalisation adds a self loop only where there is none. Raises GraphError for empty or repeated names, indices out
    of range, weights that are not finite or are negative, an edge with two weights, and an undirected graph whose two
    directions of a pair differ by more than 1e-5 of the larger plus 1e-7 of the largest weight of all (smaller
    differences are averaged).

    Attributes
    ----------
    names : tuple of str
        Unique client names, in the order of the rows of A.
    edge_index : Tensor
        int64 ``[2, E]``: ``A[edge_index[0, e], edge_index[1, e]] = weights[e]``. Stored sorted by (row, column),
        without repeats and zeros, whatever the order given; an undirected graph contains both directions of every edge.
    weights : Tensor
        float32 ``[E]``, finite; non-negative unless ``allow_negative``.
    directed : bool
        Whether ``A[i, j]`` and ``A[j, i]`` may differ.
    allow_negative : bool
        Whether weights below zero are accepted.
    """

    names: tuple[str, ...]
    edge_index: Tensor
    weights: Tensor
    directed: bool = False
    allow_negative: bool = False
    _matrices: dict[tuple[Normalisation, bool], PropagationMatrix] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        names = _checked_names(self.names)
        edge_index = torch.as_tensor(self.edge_index).detach().to("cpu")
        if bool((broken := edge_index != edge_index.to(torch.int64)).any()):
            number = float(edge_index[broken][0])
            raise GraphError(f"clients are numbered by whole numbers from 0; an edge has {number:g}")
        edge_index = edge_index.to(torch.int64)
        given = real_tensor(self.weights, "weights", "[E]").detach().to("cpu")
        weights = given.to(torch.float32)
        if edge_index.ndim != 2 or edge_index.shape[0] != 2 or weights.shape != edge_index.shape[1:]:
            raise GraphError(
                f"edges are an index of shape [2, E] and weights of shape [E]; got {list(edge_index.shape)} and "
                f"{list(weights.shape)}"
            )
        outside = edge_index[(edge_index < 0) | (edge_index >= len(names))]
        if outside.numel():
            raise GraphError(
                f"an edge names client number {int(outside[0])}, but the {len(names)} clients are numbered from 0"
            )
        for wrong, problem in (
            (~weights.isfinite(), "weights must be finite"),
            (
                (weights < 0) & (not self.allow_negative),
                "weights must not be below zero (in Python allow_negative=True)",
            ),
        ):
            if bool(wrong.any()):
                at = int(wrong.nonzero()[0])
                row, column = edge_index[:, at].tolist()
                raise GraphError(f"'{names[row]}' to '{names[column]}' weighs {float(weights[at]):g}: {problem}")
        _warn_of_lost(names, edge_index, given)
        edge_index, weights = canonical(names, edge_index, weights)
        if not self.directed:
            edge_index, weights = exactly_symmetric(names, edge_index, weights)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "edge_index", edge_index)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "directed", bool(self.directed))

    @property
    def num_clients(self) -> int:
        """Number of clients, N."""
        return len(self.names)

    @property
    def num_edges(self) -> int:
        """Number of edges, including self loops.

        Of a directed graph these are the non-zero entries of A, else pairs of clients.
        """
        if self.directed:
            return self.weights.numel()
        return int((self.edge_index[0] <= self.edge_index[1]).sum())

    @property
    def is_symmetric(self) -> bool:
        """Whether ``A[i, j] = A[j, i]`` within the tolerance."""
        opposite, _ = opposite_weights(self.num_clients, self.edge_index, self.weights)
        return not bool(asymmetric(self.weights, opposite).any())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientGraph):
            return NotImplemented
        return (
            self.names == other.names
            and self.directed == other.directed
            and torch.equal(self.edge_index, other.edge_index)
            and torch.equal(self.weights, other.weights)
        )

    def __hash__(self) -> int:
        return hash((self.names, self.directed, self.weights.numel()))

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "undirected"
        return f"ClientGraph({self.num_clients} clients, {self.num_edges} edges, {kind})"

    def dense(self) -> Tensor:
        """Return the adjacency matrix A, float32 ``[N, N]``."""
        return PropagationMatrix(self.edge_index, self.weights, self.num_clients).dense()

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return the clients to which ``name`` listens, without itself. Raises GraphError for an unknown name."""
        if name not in self.names:
            raise GraphError(unknown_clients([name], self.names))
        row = self.names.index(name)
        received = self.edge_index[1, self.edge_index[0] == row].tolist()
        return tuple(self.names[column] for column in received if column != row)

    def degree(self) -> Tensor:
        """Return the row sums of A, float32 ``[N]``; ``binarised().degree()`` counts edges."""
        return torch.zeros(self.num_clients).index_add(0, self.edge_index[0], self.weights)

    def describe(self) -> str:
        """Summarise the numbers of neighbours, and the share of its model that a client keeps in a random-walk hop."""
        others = self.without_self_loops()
        received = torch.bincount(others.edge_index[0], minlength=self.num_clients)
        walk = self.normalised("random-walk")
        kept = walk.weights[walk.edge_index[0] == walk.edge_index[1]].sum() / self.num_clients
        return (
            f"{self.num_clients} clients with {float(received.double().mean()):.1f} neighbours on average, "
            f"{int((received == 0).sum())} of them with none; after one hop {float(kept):.0%} of a model is the "
            "client's own"
        )

    def agreement(self, groups: Sequence[str]) -> dict[str, float]:
        """Compare the edges with groups of clients: ``[N]``, the group of each client.

        Returns ``precision``, the share of edges between clients of one group; ``recall``, the share of pairs of one
        group that have an edge; ``weight``, the share of the weights that lies within groups. NaN where there is no
        edge, or no pair. Self loops do not count.
        """
        if len(groups) != self.num_clients:
            raise GraphError(f"groups must name the group of each of {self.num_clients} clients; got {len(groups)}")
        place = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        own = torch.tensor([place[group] for group in groups])
        edges = self.without_self_loops()
        within = own[edges.edge_index[0]] == own[edges.edge_index[1]]
        pairs = int((own[:, None] == own).sum()) - self.num_clients
        weights, found = edges.weights.double().abs(), int(within.sum())
        return {
            "precision": found / within.numel() if within.numel() else math.nan,
            "recall": found / pairs if pairs else math.nan,
            "weight": float(weights[within].sum() / weights.sum()),
        }

    def reindex(
        self,
        names: Sequence[str],
        missing: Literal["error", "isolate"] = "error",
        extra: Literal["error", "drop"] = "error",
    ) -> ClientGraph:
        """Return the graph over ``names``, in that order.

        Raises GraphError for such clients, naming them and similar names.

        Parameters
        ----------
        names : sequence of str
            The clients of the new graph.
        missing : {"error", "isolate"}
            Whether clients that the graph lacks are an error or get no edges.
        extra : {"error", "drop"}
            Whether clients of the graph that are not in ``names`` are an error or are left out with their edges.
        """
        if missing not in ("error", "isolate") or extra not in ("error", "drop"):
            raise GraphError(
                f"missing is 'error' or 'isolate' and extra is 'error' or 'drop'; got {missing!r} and {extra!r}"
            )
        position = {name: at for at, name in enumerate(names)}
        known = set(self.names)
        absent = [name for name in position if name not in known]
        surplus = [name for name in self.names if name not in position]
        if absent and missing == "error":
            raise GraphError(
                f"the graph has no client {quoted(absent)} (it has {quoted(surplus or self.names, 3)})"
                f"{similar(surplus, absent)}; correct the name, or give such clients no edges: [graph] missing = "
                '"isolate" (in Python reindex(names, missing="isolate"))'
            )
        if surplus and extra == "error":
            raise GraphError(
                f"unknown client name in the graph: {quoted(surplus)} (the clients are {quoted(list(names), 3)})"
                f"{similar(surplus, list(names))}; correct the name, or leave such clients out: [graph] extra = "
                '"drop" (in Python reindex(names, extra="drop"))'
            )
        moved = torch.tensor([position.get(name, -1) for name in self.names])[self.edge_index]
        kept = (moved >= 0).all(0)
        return ClientGraph(tuple(names), moved[:, kept], self.weights[kept], self.directed, self.allow_negative)

    def subgraph(self, names: Sequence[str]) -> ClientGraph:
        """Return the graph among ``names``, in that order. Raises GraphError naming clients that the graph lacks."""
        return self.reindex(names, extra="drop")

    def permuted(self, generator: torch.Generator) -> ClientGraph:
        """Return the graph with its clients permuted at random over its vertices, as ``generator`` draws."""
        moved = torch.randperm(self.num_clients, generator=generator)[self.edge_index]
        return replace(self, edge_index=moved)

    def strongest(self, neighbours: int) -> ClientGraph:
        """Return the directed graph in which each client listens only to ``neighbours`` others of the largest weights.

        Of equal weights those of the first clients are kept. Self loops stay, and do not count.
        """
        kept = strongest(self.edge_index, self.weights, neighbours)
        return replace(self, edge_index=self.edge_index[:, kept], weights=self.weights[kept], directed=True)

    def binarised(self) -> ClientGraph:
        """Return the graph with weight 1 wherever there is an edge, whatever its sign."""
        return replace(self, weights=torch.ones_like(self.weights))

    def symmetrised(self, how: Symmetriser = "maximum") -> ClientGraph:
        """Make the graph undirected by the maximum, mean or minimum of ``A[i, j]`` and ``A[j, i]`` (0 = no edge)."""
        combine = {"maximum": torch.maximum, "mean": lambda a, b: (a + b) / 2, "minimum": torch.minimum}.get(how)
        if combine is None:
            raise GraphError(f"a graph is symmetrised by 'maximum', 'mean' or 'minimum'; got {how!r}")
        edge_index, weights = symmetrised(self.num_clients, self.edge_index, self.weights, combine)
        return ClientGraph(self.names, edge_index, weights, allow_negative=self.allow_negative)

    def undirected_if_symmetric(self) -> ClientGraph:
        """Return the same graph, marked undirected if both directions of every edge agree."""
        return replace(self, directed=False) if self.is_symmetric else self

    @property
    def isolated(self) -> tuple[str, ...]:
        """The clients without an edge to or from another one."""
        joined = set(self.without_self_loops().edge_index.flatten().tolist())
        return tuple(name for place, name in enumerate(self.names) if place not in joined)

    def without_self_loops(self) -> ClientGraph:
        """Return the graph with ``A[i, i] = 0``."""
        kept = self.edge_index[0] != self.edge_index[1]
        return replace(self, edge_index=self.edge_index[:, kept], weights=self.weights[kept])

    def with_self_loops(self, weight: float = 1.0, only: Tensor | None = None) -> ClientGraph:
        """Return the graph with ``A[i, i] = weight`` for clients without a self loop (of ``only``, a mask ``[N]``)."""
        edge_index, weights = with_self_loops(self.num_clients, self.edge_index, self.weights, weight, only)
        return replace(self, edge_index=edge_index, weights=weights)

    def normalised(self, normalisation: Normalisation = "random-walk", self_loops: bool = True) -> PropagationMatrix:
        """Return the propagation matrix, which never contains NaN.

        The result is cached, so that repeated calls are cheap.

        Parameters
        ----------
        normalisation : {"random-walk", "symmetric", "none"}
            ``D^-1 (A + I)``, whose rows are means; ``D^-1/2 (A + I) D^-1/2`` of graph convolutions, whose rows need not
            sum to one; or ``A + I``. D contains the row sums of ``|A + I|`` (absolute values matter for negative
            weights only). A self loop that is already present is not doubled.
        self_loops : bool
            Whether to add I; without it, the first two kinds still add a self loop to a client that listens to no
            client.
        """
        key = (normalisation, bool(self_loops))
        if key not in self._matrices:
            self._matrices[key] = normalise(self.num_clients, self.edge_index, self.weights, normalisation, self_loops)
        return self._matrices[key]

    def propagate(
        self, stacked: Tensor, hops: int = 1, normalisation: Normalisation = "random-walk", self_loops: bool = True
    ) -> Tensor:
        """Compute ``normalised(...)^hops @ stacked`` for values ``[N, ...]``.

        By default each hop replaces a client's values by the weighted mean of its own and its neighbours'. Other
        normalisations also rescale: see :meth:`normalised`. Returns float32 of the same shape, on the device of
        ``stacked``; see :meth:`PropagationMatrix.apply` for the errors.
        """
        return self.normalised(normalisation, self_loops).apply(stacked, hops)

    def to_networkx(self) -> nx.Graph:
        """Convert to a NetworkX graph.

        Returns a ``networkx.Graph``, or ``DiGraph`` if directed, over client names with the edge attribute ``weight``.
        """
        import networkx as nx  # takes a fifth of a second

        result = nx.DiGraph() if self.directed else nx.Graph()
        result.add_nodes_from(self.names)
        result.add_weighted_edges_from(
            (self.names[row], self.names[column], value)
            for (row, column), value in zip(self.edge_index.T.tolist(), self.weights.tolist(), strict=True)
        )
        return result

    def to_pyg(self) -> Any:
        """Convert to a PyTorch Geometric ``Data``.

        Messages of a graph convolution flow from row 0 of its ``edge_index`` to row 1, and ``A[i, j]`` is the weight
        with which i listens to j: the rows are those of :attr:`edge_index` swapped, so that a convolution computes ``A
        @ x``. Returns a torch_geometric.data.Data with ``edge_index``, ``edge_weight``, ``num_nodes`` and ``names``.
        """
        from torch_geometric.data import Data  # here, because its import takes a second

        return Data(
            edge_index=self.edge_index.flip(0).contiguous(),
            edge_weight=self.weights.clone(),
            num_nodes=self.num_clients,
            names=list(self.names),
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the edges as a data frame with the columns ``client``, ``neighbour`` and ``weight``.

        Of an undirected graph every pair is there once.
        """
        import pandas as pd

        kept = slice(None) if self.directed else self.edge_index[0] <= self.edge_index[1]
        one, other = ([self.names[place] for place in row.tolist()] for row in self.edge_index[:, kept])
        return pd.DataFrame({"client": one, "neighbour": other, "weight": self.weights[kept].tolist()})

    def plot(
        self,
        values: Mapping[str, float] | None = None,
        label: str = "",
        places: Mapping[str, tuple[float, float]] | None = None,
    ) -> Figure:
        """Draw the graph, with edges as wide as they weigh; of many, the strongest.

        A notebook shows it; ``savefig`` writes it.

        Parameters
        ----------
        values : mapping of str to float, optional
            What colours each client, such as a column of ``run.clients``.
        label : str
            What the colours are.
        places : mapping of str to pair of float, optional
            Where each client is drawn, ``(x, y)``; by default neighbours are together.
        """
        figure = picture(6.4, 4.8)
        self.draw(figure.subplots(), values, label, places)
        return figure

    def draw(
        self,
        axes: Any,
        values: Mapping[str, float] | None = None,
        label: str = "",
        places: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        """Draw the graph into axes of Matplotlib, as :meth:`plot` does."""
        self.chart(values=values, label=label, places=places).draw(axes)

    def chart(self, places: Mapping[str, tuple[float, float]] | None = None, **about: Any) -> GraphChart:
        """Describe the picture of the graph, in places or with neighbours together; see :class:`GraphChart`."""
        plain = self.without_self_loops()
        source, target = plain.edge_index.tolist()
        edges = ((self.names[one], self.names[other], weight) for one, other, weight in
                 zip(source, target, plain.weights.tolist(), strict=True))  # fmt: skip
        found = places or spring_layout(plain.to_networkx().to_undirected())
        at = {name: found[name] for name in self.names if name in found}
        return GraphChart.of(edges, at, MOST_EDGES, **about)

    def _repr_html_(self) -> str:
        degree = dict(zip(self.names, self.without_self_loops().degree().tolist(), strict=True))
        neighbours = {name: self.neighbours(name) for name in self.names}
        first = sorted(self.names, key=lambda name: -len(neighbours[name]))[:_SHOWN]
        rows = [(name, quoted(neighbours[name]), f"{degree[name]:.3g}") for name in first]
        more = f"and {self.num_clients - _SHOWN} more clients" if self.num_clients > _SHOWN else ""
        heads = ("client", "listens to", "sum of weights")
        return table_as_html(repr(self), self.describe(), heads, rows, more)


_SHOWN = 8
"""Clients that a notebook lists, those with the most neighbours."""


def _warn_of_lost(names: Sequence[str], edge_index: Tensor, weights: Tensor) -> None:
    """Warn of edges whose weight is 0 in float32, as the first."""
    lost = (weights != 0) & (weights.to(torch.float32) == 0)
    if bool(lost.any()):
        at = int(lost.nonzero()[0])
        row, column = edge_index[:, at].tolist()
        log.warning(
            "a weight too small for float32 is no edge, such as %g from '%s' to '%s': multiply all weights by one "
            "large number",
            float(weights[at]), names[row], names[column],
        )  # fmt: skip


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not len(names):
        raise GraphError(f"a client graph needs a list of one or more client names; got {names!r}")
    for name in names:
        if not isinstance(name, str):
            raise GraphError(f"client names are text; got {name!r} ({type(name).__name__})")
        if not name or "\0" in name:
            raise GraphError(f"a client name is not empty and holds no zero character; got {name!r}")
    seen: set[str] = set()
    repeated = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if repeated:
        raise GraphError(f"client names must be unique; given more than once: {quoted(repeated)}")
    return tuple(str(name) for name in names)
