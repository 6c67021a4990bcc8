"""The feature graph, a frozen graph of direct dependencies between named features, and its files.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.1.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedgraph.graph.drawing import GraphChart, in_a_circle
from fedgraph.graph.tables import read_pairs
from fedgraph.graph.value import ClientGraph
from fedgraph.support.errors import GraphError, quoted
from fedgraph.support.files import write_atomically
from fedgraph.support.notebook import picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pair = tuple[str, str]


@dataclass(frozen=True)
class Score:
    """Agreement of the edges of a graph with the true ones; directions do not count.

    Attributes
    ----------
    precision : fraction of true edges among found ones; 0 if none was found, unless there are no true ones.
    recall : fraction of found edges among true ones; 1 without true edges.
    f1 : harmonic mean of both, ``2 hits / (found + true)``.
    shd : structural Hamming distance: the number of missing and false edges.
    """

    precision: float
    recall: float
    f1: float
    shd: int


@dataclass(frozen=True)
class FeatureGraph:
    """An undirected graph over named features without self loops.

    Raises GraphError for names that are empty, duplicate or not text, and for invalid edges.

    Attributes
    ----------
    names : tuple of str
        Unique, in the order of the rows of ``adjacency``.
    edges : tuple of Pair
        Unique pairs of names; the names of a pair, and the pairs, are sorted in the order of ``names``.
    """

    names: tuple[str, ...]
    edges: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        for name in self.names:
            if not isinstance(name, str) or not name:
                raise GraphError(f"feature names must be non-empty text; got {name!r}")
        position = {name: at for at, name in enumerate(self.names)}
        if len(position) < len(self.names):
            twice = [name for name, times in Counter(self.names).items() if times > 1]
            raise GraphError(f"duplicate feature names: {quoted(twice)}")
        pairs = set()
        for edge in self.edges:
            _check_edge(edge, position)
            first, second = sorted(position[name] for name in edge)
            pairs.add((first, second))
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "edges", tuple((self.names[i], self.names[j]) for i, j in sorted(pairs)))

    @classmethod
    def from_adjacency(cls, names: Sequence[str], adjacency: Tensor) -> FeatureGraph:
        """Build a graph from a symmetric matrix, bool ``[features, features]`` with a diagonal of False.

        Raises GraphError for a matrix of another shape or type, without symmetry, or with self loops.
        """
        if adjacency.shape != (len(names), len(names)) or adjacency.dtype != torch.bool:
            raise GraphError(
                f"the adjacency of {len(names)} features is bool [{len(names)}, {len(names)}]; got {adjacency.dtype} "
                f"{list(adjacency.shape)}"
            )
        if bool(adjacency.diagonal().any()) or not torch.equal(adjacency, adjacency.T):
            raise GraphError("the adjacency of features must be symmetric without self loops")
        return cls(tuple(names), tuple((names[i], names[j]) for i, j in adjacency.triu().nonzero().tolist()))

    @classmethod
    def moral(cls, names: Sequence[str], parents: Mapping[str, Iterable[str]]) -> FeatureGraph:
        """Build the moral graph of a Bayesian network, with edges between child and parents, and among parents.

        Parameters
        ----------
        names : sequence of str
            All features.
        parents : mapping of str to iterable of str
            Parents of the features that have any, by name.
        """
        families = [(child, *of) for child, of in parents.items()]
        return cls(tuple(names), tuple(pair for family in families for pair in combinations(family, 2)))

    @property
    def adjacency(self) -> Tensor:
        """Symmetric matrix bool ``[features, features]`` in the order of ``names``."""
        matrix = torch.zeros(len(self.names), len(self.names), dtype=torch.bool)
        position = {name: at for at, name in enumerate(self.names)}
        for first, second in self.edges:
            matrix[position[first], position[second]] = matrix[position[second], position[first]] = True
        return matrix

    def plot(self, strengths: Mapping[Pair, float] | None = None) -> Figure:
        """Draw the graph in a circle, with edge widths by ``strengths`` of pairs, if given."""
        figure = picture(4.8, 4.8)
        self.draw(figure.subplots(), strengths)
        return figure

    def draw(self, axes: Any, strengths: Mapping[Pair, float] | None = None) -> None:
        """Draw the graph into axes of Matplotlib as :meth:`plot`, with reproducible positions."""
        self.chart(strengths).draw(axes)

    def chart(self, strengths: Mapping[Pair, float] | None = None, **about: Any) -> GraphChart:
        """Describe the picture of the graph; see :class:`GraphChart`."""
        edges = ((*pair, (strengths or {}).get(pair, 1.0)) for pair in self.edges)
        return GraphChart.of(edges, in_a_circle(self.names), named=True, **about)

    def subgraph(self, names: Sequence[str]) -> FeatureGraph:
        """Return the subgraph of ``names``, in this order. Raises GraphError for unknown features."""
        absent = [name for name in names if name not in self.names]
        if absent:
            raise GraphError(f"unknown features: {quoted(absent)}; the graph has {quoted(self.names, 20)}")
        kept = set(names)
        return FeatureGraph(tuple(names), tuple(edge for edge in self.edges if kept.issuperset(edge)))

    def score(self, truth: FeatureGraph) -> Score:
        """Compare the edges with those of ``truth``, in any order of names.

        Raises GraphError for graphs over different features.
        """
        if set(self.names) != set(truth.names):
            apart = sorted(set(self.names) ^ set(truth.names))
            raise GraphError(
                f"graphs over different features cannot be compared; only one has {quoted(apart)}: use the subgraph of "
                "common features"
            )
        found, true = set(map(frozenset, self.edges)), set(map(frozenset, truth.edges))
        hits, empty = len(found & true), not found and not true
        return Score(
            precision=hits / len(found) if found else float(empty),
            recall=hits / len(true) if true else 1.0,
            f1=2 * hits / (len(found) + len(true)) if not empty else 1.0,
            shd=len(found ^ true),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the graph as JSON data."""
        return {"names": list(self.names), "edges": [list(edge) for edge in self.edges]}

    @classmethod
    def from_json(cls, table: Any) -> FeatureGraph:
        """Read untrusted output of :meth:`as_json`. Raises GraphError if it is malformed."""
        if not isinstance(table, dict) or set(table) != {"names", "edges"}:
            raise GraphError("a feature graph must be a table with only `names` and `edges`")
        for key in ("names", "edges"):
            if not isinstance(table[key], list):
                raise GraphError(f"the {key} of a feature graph must be a list; got {type(table[key]).__name__}")
        edges = tuple(tuple(edge) if isinstance(edge, list) else edge for edge in table["edges"])
        return cls(tuple(table["names"]), edges)


def client_similarity(graphs: Mapping[str, FeatureGraph]) -> ClientGraph:
    """Build a client graph with the similarities of the clients' feature graphs.

    The result is undirected, with the weight ``2 |E_i and E_j| / (|E_i| + |E_j|)`` (F1, Dice) between clients i and j
    with edges E_i and E_j: 1 for equal graphs, 0 (no edge) for graphs without a common edge. Raises GraphError for
    graphs over different features.

    Parameters
    ----------
    graphs : mapping of str to FeatureGraph
        At least one, by client, all over the same features.
    """
    features = next(iter(graphs.values())).names
    if any(set(graph.names) != set(features) for graph in graphs.values()):
        raise GraphError("graphs over different features cannot be compared: use the subgraph of common features")
    edges = torch.stack([graph.subgraph(features).adjacency.triu().flatten() for graph in graphs.values()]).double()
    sizes = edges.sum(1)
    weights = 2 * (edges @ edges.T) / (sizes[:, None] + sizes).clamp(min=1)
    return ClientGraph.from_dense(tuple(graphs), weights.fill_diagonal_(0), directed=False)


def _check_edge(edge: Any, position: Mapping[str, int]) -> None:
    if not isinstance(edge, tuple) or len(edge) != 2 or not all(isinstance(name, str) for name in edge):
        raise GraphError(f"an edge must be a pair of feature names; got {edge!r}")
    unknown = [name for name in edge if name not in position]
    if unknown:
        raise GraphError(
            f"an edge between '{edge[0]}' and '{edge[1]}': there is no feature {quoted(unknown)} among "
            f"{quoted(list(position), 20)}"
        )
    if edge[0] == edge[1]:
        raise GraphError(f"an edge links '{edge[0]}' to itself; a feature graph has no self loops")


JSON_FORMAT = "fedgraph feature graph"
KNOWN_FORMATS = (
    ".json as written by write_feature_graph; .csv or .csv.gz with the header from,to (a feature without edges stands "
    "alone, with nothing in the other column); .txt as Tetrad writes it, with edges --> or ---"
)
_TETRAD_EDGE = re.compile(r"\d+\.\s+(\S+)\s+(-->|---)\s+(\S+)")


def read_feature_graph(path: str | os.PathLike[str], moral: bool = False) -> FeatureGraph:
    """Read a feature graph from a file in one of ``KNOWN_FORMATS``, without directions of edges.

    Raises GraphError, which starts with the path, for an unreadable or unsupported file, invalid edges, and a graph
    without directions read as moral.

    Parameters
    ----------
    path : str or path
        Its extension determines the format.
    moral : bool
        Whether to read the edges as those of a Bayesian network, from parent to child, and return the moral graph.
    """
    path = Path(path)
    try:
        names, pairs = _read(path, moral)
        if not moral:
            return FeatureGraph(names, tuple(pairs))
        parents: dict[str, list[str]] = {}
        for parent, child in pairs:
            parents.setdefault(child, []).append(parent)
        return FeatureGraph.moral(names, parents)
    except GraphError as error:
        raise error.at(str(path)) from None
    except Exception as error:  # parsers raise many types for damaged files
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise GraphError(f"{path}: cannot be read ({reason}); known formats: {KNOWN_FORMATS}") from None


def write_feature_graph(graph: FeatureGraph, path: str | os.PathLike[str]) -> None:
    """Write a feature graph as JSON, atomically; folders are created.

    Raises GraphError for another extension than .json.
    """
    if Path(path).suffix != ".json":
        raise GraphError(f"{path}: the extension must be .json")
    write_atomically(Path(path), json.dumps({"format": JSON_FORMAT, **graph.as_json()}, indent=1).encode())


def _read(path: Path, directed: bool) -> tuple[tuple[str, ...], Iterable[Pair]]:
    """Read names and edges."""
    lower = path.name.lower()
    if lower.endswith((".csv", ".csv.gz")):
        pairs = read_pairs(path)
        names = dict.fromkeys(name for pair in pairs for name in pair if name)
        return tuple(names), [pair for pair in pairs if all(pair)]
    if lower.endswith(".txt"):
        return _read_tetrad(path.read_text(encoding="utf-8-sig"), directed)
    if not lower.endswith(".json"):
        raise GraphError(f"unknown kind of graph file; known formats: {KNOWN_FORMATS}")
    table = json.loads(path.read_bytes())
    if not isinstance(table, dict) or table.pop("format", None) != JSON_FORMAT:
        raise GraphError(f"unknown kind of JSON; known formats: {KNOWN_FORMATS}")
    if directed:
        raise GraphError("its edges have no directions, and it cannot be read as a Bayesian network")
    graph = FeatureGraph.from_json(table)
    return graph.names, graph.edges


def _read_tetrad(text: str, directed: bool) -> tuple[tuple[str, ...], Iterable[Pair]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 3 or (lines[0], lines[2]) != ("Graph Nodes:", "Graph Edges:"):
        raise GraphError("the first lines are 'Graph Nodes:', the names with ; between them, and 'Graph Edges:'")
    pairs = []
    for line in lines[3:]:
        edge = _TETRAD_EDGE.fullmatch(line)
        if edge is None or (directed and edge[2] != "-->"):
            raise GraphError(f"the edge '{line}' is not like '1. a --> b'{'' if directed else ' or 1. a --- b'}")
        pairs.append((edge[1], edge[3]))
    return tuple(re.split(r"[;,]", lines[1])), pairs
