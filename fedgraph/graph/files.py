"""Reading of client graphs from published formats, and writing of ``graph.npz`` and ``graph.json``."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedgraph.graph.constructors import warn_of_attribute
from fedgraph.graph.inputs import client_name
from fedgraph.graph.tables import EdgeTable, read_relations
from fedgraph.graph.value import ClientGraph, Symmetriser
from fedgraph.support.errors import GraphError
from fedgraph.support.files import write_atomically
from fedgraph.support.safe_pickle import read_pickle

if TYPE_CHECKING:
    import networkx as nx

JSON_FORMAT = "fedgraph client graph"
KNOWN_FORMATS = (
    "graph.npz or graph.json as written by write_graph; .npz with a matrix (adj, adjacency, adj_mx, matrix or weights) "
    "and names (sensor_ids, names or ids); .csv or .tsv (also .gz) with an edge list (from,to,cost or "
    "from,to,weight or from,to) or a square matrix; .json in NetworkX node-link form; .pkl as published with DCRNN; "
    ".graphml; .gml"
)
_MATRIX_KEYS = ("adj", "adjacency", "adj_mx", "matrix", "weights")
_NAME_KEYS = ("sensor_ids", "names", "ids")
_CUT = 0.1
_NO_DISTANCES = (
    "sigma and cut are about a list of distances (from,to,distance), and this file has weights: leave them out"
)


@dataclass(frozen=True)
class _Options:
    names: Sequence[str] | None
    directed: bool | None
    sigma: float | None
    cut: float
    weight: str
    allow_negative: bool
    about_distances: bool
    notes: list[str]


def read_graph(
    path: str | os.PathLike[str],
    names: Sequence[str] | None = None,
    *,
    missing: Literal["error", "isolate"] = "error",
    directed: bool | None = None,
    symmetrise: Symmetriser | None = None,
    sigma: float | None = None,
    cut: float | None = None,
    weight: str = "weight",
    allow_negative: bool = False,
    notes: list[str] | None = None,
) -> ClientGraph:
    """Read a client graph from a file in one of ``KNOWN_FORMATS``.

    Pickles are read without executing code. Returns a ClientGraph over ``names``, or the names in the file. Raises
    GraphError, which starts with the path, for an unreadable or unsupported file, sigma or cut without a list of
    distances, a client of ``names`` that the file lacks, and an asymmetric graph read with ``directed=False``.

    Parameters
    ----------
    path : str or path
        Its extension and content determine the format.
    names : sequence of str, optional
        The clients, in order; others in the file are dropped. If the file has no names (a bare matrix), they name its
        rows.
    missing : {"error", "isolate"}
        Whether a client of ``names`` that is not in the file is an error or has no edges.
    directed : bool, optional
        By default as stated in the file, or else directed if it is not symmetric. If False, an edge list may contain
        each pair only once.
    symmetrise : {"maximum", "mean", "minimum"}, optional
        Combination of both directions that makes a directed graph undirected.
    sigma, cut : float, optional
        Gaussian kernel for a list of distances, see :meth:`ClientGraph.from_distance_list`: its default sigma is over
        the distances between ``names``, its default cut 0.1.
    weight : str
        The edge attribute with the weight in NetworkX files.
    allow_negative : bool
        Accept weights below zero (always accepted in files from :func:`write_graph`).
    notes : list of str, optional
        Receives notes on a CSV file: the number of distances that become edges, whether a list is read as directed or
        as distances for want of a header, and an encoding other than UTF-8.
    """
    path = Path(path)
    options = _Options(
        names,
        directed if symmetrise is None else True,
        sigma,
        _CUT if cut is None else cut,
        weight,
        allow_negative,
        sigma is not None or cut is not None,
        [] if notes is None else notes,
    )
    try:
        reader = _reader(path)
        if options.about_distances and reader is not _read_csv:
            raise GraphError(_NO_DISTANCES)
        graph = reader(path, options)
        if symmetrise is not None:
            graph = graph.symmetrised(symmetrise)
        return graph if names is None else graph.reindex(names, missing=missing, extra="drop")
    except GraphError as error:
        raise error.at(str(path)) from None
    except OSError as error:
        raise GraphError(
            f"{path}: cannot be read ({error.strerror or error}); known formats: {KNOWN_FORMATS}"
        ) from None
    except Exception as error:  # the parsers of damaged files raise almost anything
        problem = f"{type(error).__name__}: {error}"
        raise GraphError(f"{path}: is not a graph file ({problem}); known formats: {KNOWN_FORMATS}") from error


def write_graph(graph: ClientGraph, path: str | os.PathLike[str]) -> None:
    """Write a client graph as ``.npz`` (names, edge_index, weights, directed) and as ``.json``.

    Each file is written atomically; folders are created. Raises GraphError for another extension than ``.npz``.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise GraphError(f"{path}: a client graph is written as .npz, with .json beside it; name it like graph.npz")
    once = graph.edge_index[0] <= graph.edge_index[1]
    listed = once | graph.directed
    table = {
        "format": JSON_FORMAT,
        "directed": graph.directed,
        "names": list(graph.names),
        "edges": [[graph.names[row], graph.names[column]] for row, column in graph.edge_index[:, listed].T.tolist()],
        "weights": graph.weights[listed].tolist(),
    }
    arrays: dict[str, Any] = {
        "names": np.array(graph.names),
        "edge_index": graph.edge_index.numpy(),
        "weights": graph.weights.numpy(),
        "directed": np.array(graph.directed),
    }
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    write_atomically(path, packed.getvalue())
    write_atomically(path.with_suffix(".json"), json.dumps(table).encode())


def _reader(path: Path) -> Callable[[Path, _Options], ClientGraph]:
    lower = path.name.lower()
    readers = {
        ".npz": _read_npz,
        **{f".{text}{packed}": _read_csv for text in ("csv", "tsv") for packed in ("", ".gz")},
        ".json": _read_json,
        ".pkl": _read_pickle,
        ".pickle": _read_pickle,
        ".graphml": _read_graphml,
        ".gml": _read_gml,
    }
    for extension, reader in readers.items():
        if lower.endswith(extension):
            return reader
    raise GraphError(f"unknown kind of graph file; known formats: {KNOWN_FORMATS}")


def _read_npz(path: Path, options: _Options) -> ClientGraph:
    with np.load(path, allow_pickle=False) as archive:
        if {"names", "edge_index", "weights", "directed"} <= set(archive.files):
            names = tuple(str(name) for name in archive["names"])
            stated = bool(archive["directed"])
            graph = ClientGraph(names, archive["edge_index"], archive["weights"], stated, allow_negative=True)
            return graph if options.directed is None else _with_direction(graph, options)
        return _named_matrix({key: archive[key] for key in archive.files}, options)


def _read_csv(path: Path, options: _Options) -> ClientGraph:
    table = read_relations(path)
    options.notes.extend(table.notes)
    if options.about_distances and not (isinstance(table, EdgeTable) and table.are_distances):
        raise GraphError(_NO_DISTANCES)
    if not isinstance(table, EdgeTable):
        return _from_matrix(table.names, table.matrix, options)
    directed = options.directed is not False
    listed = dict.fromkeys([*table.sources, *table.targets])
    if table.are_distances:
        names = [name for name in options.names or () if name in listed] or None

        def kernel(sigma: float | None) -> ClientGraph:
            return ClientGraph.from_distance_list(
                table.sources, table.targets, table.values, names, sigma, options.cut, directed
            )

        graph = kernel(options.sigma)
        if graph.without_self_loops().num_edges == 0 and any(map(str.__ne__, table.sources, table.targets)):
            raise GraphError(
                f"no edge is left of {len(table.values):,} distances: the Gaussian kernel gives all a weight below "
                f"cut = {options.cut:g}, as it does where they hardly differ: set [graph] sigma, a distance that is "
                "still near, or a lower cut. If the numbers are weights, give the file the header from,to,weight"
            )
        if 2 * (isolated_clients := len(graph.isolated)) > graph.num_clients and 0 < options.cut < 1:
            near = _near(table, graph.names, options.cut)
            kept = f"{graph.without_self_loops().num_edges:,} of {len(table.values):,} edges"
            problem = (
                f"leaves {kept} of the list of distances, and {isolated_clients:,} of {graph.num_clients:,} clients "
                "without edges"
            )
            if options.sigma is not None:
                raise GraphError(
                    f"[graph] sigma = {options.sigma:g} {problem}: set a larger one, such as {near:.4g}, with which "
                    f"nine in ten clients have an edge; or a lower cut than {options.cut:g}"
                )
            options.notes.append(
                f"the usual sigma, the deviation of distances, {problem}; so sigma is {near:.4g}, with which nine in "
                "ten clients have an edge ([graph] sigma)"
            )
            graph = kernel(near)
    else:
        graph = ClientGraph.from_lists(
            list(listed), *table[:3], directed=directed, allow_negative=options.allow_negative
        )
    graph = _with_direction(graph, options)
    options.notes.extend(_about_list(table, graph, options))
    return graph


def _near(table: EdgeTable, names: Sequence[str], cut: float) -> float:
    """Return the width of the kernel for which nine in ten clients have an edge to their nearest neighbour."""
    nearest = dict.fromkeys(names, np.inf)
    for source, target, distance in zip(table.sources, table.targets, table.values.tolist(), strict=True):
        for name in (source, target) if source != target else ():
            if name in nearest:
                nearest[name] = min(nearest[name], distance)
    present = [distance for distance in nearest.values() if np.isfinite(distance)]
    return float(np.quantile(present, 0.9)) / float(np.sqrt(-np.log(cut))) * (1 + 1e-6)


def _about_list(table: EdgeTable, graph: ClientGraph, options: _Options) -> Iterator[str]:
    """Yield notes on the conversion of a list of edges or distances to a graph."""
    position = {name: at for at, name in enumerate(graph.names)}
    ends = zip(table.sources, table.targets, np.isfinite(table.values), strict=True)
    listed = {(source, target) for source, target, finite in ends if finite and source != target}
    listed = {pair for pair in listed if pair[0] in position and pair[1] in position}
    pairs = {frozenset(pair) for pair in listed}
    if table.are_distances:
        kept, every = graph.without_self_loops().num_edges, len(listed if graph.directed else pairs)
        if kept < every:
            yield (
                f"the client graph has {kept:,} of the {every:,} edges of its list of distances: the Gaussian kernel "
                f"gives the others a weight below {options.cut:g} ([graph] cut and sigma)"
            )
    if graph.directed and options.directed is None and len(pairs) == len(listed):
        yield (
            "the list of the client graph has each pair once and is read as directed, so that only `from` listens to "
            "`to` ([graph] directed = false: both listen to each other)"
        )


def _read_json(path: Path, options: _Options) -> ClientGraph:
    table = json.loads(path.read_bytes())
    if isinstance(table, dict) and table.get("format") == JSON_FORMAT:
        sources, targets = [edge[0] for edge in table["edges"]], [edge[1] for edge in table["edges"]]
        graph = ClientGraph.from_lists(
            table["names"], sources, targets, table["weights"], directed=table["directed"], allow_negative=True
        )
        return graph if options.directed is None else _with_direction(graph, options)
    if isinstance(table, dict) and "nodes" in table and ("links" in table or "edges" in table):
        edges = table["links"] if "links" in table else table["edges"]
        warn_of_attribute(options.weight, edges)
        graph = ClientGraph.from_lists(
            [client_name(node["id"], "the nodes") for node in table["nodes"]],
            [client_name(edge["source"], "the edges") for edge in edges],
            [client_name(edge["target"], "the edges") for edge in edges],
            [float(edge.get(options.weight, 1.0)) for edge in edges],
            directed=bool(table.get("directed", False)),
            allow_negative=options.allow_negative,
        )
        return graph if options.directed is None else _with_direction(graph, options)
    raise GraphError(f"unknown kind of JSON; known formats: {KNOWN_FORMATS}")


def _read_pickle(path: Path, options: _Options) -> ClientGraph:
    try:
        with path.open("rb") as stream:
            content = read_pickle(stream)
    except ValueError as error:
        raise GraphError(str(error)) from None
    if isinstance(content, list | tuple) and len(content) == 3:
        content = {"sensor_ids": content[0], "adj_mx": content[2]}
    elif isinstance(content, np.ndarray):
        content = {"adj_mx": content}
    if not isinstance(content, dict):
        raise GraphError(
            f"a pickled graph is [sensor_ids, sensor_id_to_index, matrix]; this one is a {type(content).__name__}"
        )
    return _named_matrix(content, options)


def _read_graphml(path: Path, options: _Options) -> ClientGraph:
    import networkx as nx  # takes a fifth of a second

    return _from_networkx(nx.read_graphml(path), options)


def _read_gml(path: Path, options: _Options) -> ClientGraph:
    import networkx as nx

    return _from_networkx(nx.read_gml(path), options)


def _from_networkx(found: nx.Graph, options: _Options) -> ClientGraph:
    graph = ClientGraph.from_networkx(found, options.weight, options.allow_negative)
    return graph if options.directed is None else _with_direction(graph, options)


def _named_matrix(content: dict[str, Any], options: _Options) -> ClientGraph:
    matrix_key = next((key for key in _MATRIX_KEYS if key in content), None)
    if matrix_key is None:
        raise GraphError(
            f"no matrix under any of the names {', '.join(_MATRIX_KEYS)}; it holds {', '.join(map(str, content))}"
        )
    names_key = next((key for key in _NAME_KEYS if key in content), None)
    names = None if names_key is None else [_name(value) for value in content[names_key]]
    return _from_matrix(names, np.asarray(content[matrix_key]), options)


def _from_matrix(names: Sequence[str] | None, matrix: np.ndarray, options: _Options) -> ClientGraph:
    names = options.names if names is None else names
    if names is None:
        raise GraphError(
            "the file names no clients: add the array `names`, or a header row to a CSV file, in the order of the rows "
            "(in Python read_graph(..., names=[...]))"
        )
    graph = ClientGraph.from_dense(names, matrix, directed=True, allow_negative=options.allow_negative)
    return _with_direction(graph, options)


def _with_direction(graph: ClientGraph, options: _Options) -> ClientGraph:
    """Return the graph as directed as the caller requests, else as the weights are."""
    if options.directed is None:
        return graph.undirected_if_symmetric()
    return ClientGraph(
        graph.names, graph.edge_index, graph.weights, options.directed, options.allow_negative or graph.allow_negative
    )


def _name(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else client_name(value, "the names in the file")
