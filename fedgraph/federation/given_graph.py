"""The given client graph of an experiment, over the clients that actually take part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedgraph.data import DataSource
from fedgraph.federation.federation import Federation
from fedgraph.graph import ClientGraph, GraphTable, from_labels, read_graph
from fedgraph.support.errors import GraphError
from fedgraph.support.randomness import generator


def given_graph(
    table: GraphTable, federation: Federation, source: Callable[[], DataSource], data_dir: Path
) -> ClientGraph | None:
    """Build the client graph that ``[graph]`` describes, over the clients of the federation.

    Parameters
    ----------
    table : GraphTable
        The table ``[graph]``.
    federation : Federation
        Clients that take part.
    source : callable
        Opens the experiment's data set at the server; called only for ``source = "data"``.
    data_dir : Path
        Data folder. A relative ``path`` is looked up from the current folder, then here. (A file beside the experiment
        file comes before both: its path is made absolute when the experiment is loaded.)

    Returns
    -------
    ClientGraph or None
        Graph over ``federation.names``; None for ``source = "none"``.

    Raises
    ------
    GraphError
        When the data has no published graph or no labels, the file is missing or unusable, or its clients are not those
        of the federation (naming them).
    """
    if table.source == "none":
        return None
    graph = _build(table, federation, source, data_dir)
    if table.binarise:
        graph = graph.binarised()
    if table.symmetrise:
        graph = graph.symmetrised()
    graph = graph.reindex(federation.names, missing=table.missing, extra=table.extra)
    return graph if table.permute_seed is None else graph.permuted(generator(table.permute_seed, "permuted graph"))


def _build(table: GraphTable, federation: Federation, source: Callable[[], DataSource], data_dir: Path) -> ClientGraph:
    if table.source == "complete":
        return ClientGraph.complete(federation.names)
    if table.source == "labels":
        if federation.label_counts is None:
            raise GraphError('[graph] source = "labels" needs data with classes; this data has none')
        return from_labels(federation.names, federation.label_counts, main=table.main_labels)
    if table.source == "file":
        return read_graph(_find(str(table.path), data_dir), directed=table.directed)
    graph = source().given_graph()
    if graph is None:
        raise GraphError('[graph] source = "data", but this data set comes without a graph; use another source')
    present = set(federation.names)
    return graph.subgraph([name for name in graph.names if name in present])


def _find(path: str, data_dir: Path) -> Path:
    for candidate in (Path(path).expanduser(), data_dir / path):
        if candidate.is_file():
            return candidate
    raise GraphError(f"[graph] path: no file '{path}' from {Path.cwd()}, nor in the data folder {data_dir}")
