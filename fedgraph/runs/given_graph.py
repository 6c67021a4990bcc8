"""The client graph of an experiment over the clients that take part, and their coordinates."""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fedgraph.data import open_source
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import FedgraphError, GraphError, RunError, quoted
from fedgraph.support.randomness import generator

log = logging.getLogger("fedgraph")

_LATITUDE = ("latitude", "lat")
_COLUMNS = (("sensor_id", "name", "client", "id"), _LATITUDE, ("longitude", "lon", "lng"))
"""Accepted column names of a file with coordinates, in order of preference."""


def given_graph(
    experiment: Experiment, federation: Federation, data_dir: Path, notes: list[str] | None = None
) -> ClientGraph | None:
    """Build the client graph that ``[graph]`` describes, over the clients of the federation.

    Parameters
    ----------
    experiment : Experiment
        The experiment with its table ``[graph]``.
    federation : Federation
        Clients that take part.
    data_dir : Path
        Data folder. A relative ``path`` of a file is looked up in the folder of the experiment file, the current
        folder, and here.
    notes : list of str, optional
        Receives remarks on a graph from a file, for readers of the results.

    Returns
    -------
    ClientGraph or None
        Graph over ``federation.names``; None for ``source = "none"``.

    Raises
    ------
    GraphError
        When the data has no published graph or no labels, the file or run is missing or invalid, or its clients
        differ from those of the federation.
    """
    table = experiment.graph
    if table.source == "none":
        return None
    remarks: list[str] = []
    graph = _build(experiment, federation, data_dir, remarks)
    try:
        graph = graph.reindex(federation.names, *_differing(experiment, graph, federation))
    except GraphError as error:
        raise error.at(str(table.path)) if table.path else error from None
    if table.source in ("file", "data"):
        remarks += _about_isolated(graph)
    for remark in remarks:
        log.info("%s", remark)
    if notes is not None:
        notes += remarks
    if table.neighbours is not None:
        graph = graph.strongest(table.neighbours)
    if table.binarise:
        graph = graph.binarised()
    if table.symmetrise:
        graph = graph.symmetrised()
    return graph if table.permute_seed is None else graph.permuted(generator(table.permute_seed, "permuted graph"))


def _about_isolated(graph: ClientGraph) -> list[str]:
    """Return a remark on isolated clients, if some but not all are."""
    isolated = graph.isolated
    if not isolated or len(isolated) == graph.num_clients:  # reports of a graph without edges say so anyway
        return []
    verb = "is" if len(isolated) == 1 else "are"
    return [f"{len(isolated):,} of {graph.num_clients:,} clients {verb} isolated in the client graph (no edges)"]


def _differing(
    experiment: Experiment, graph: ClientGraph, federation: Federation
) -> tuple[Literal["error", "isolate"], Literal["error", "drop"]]:
    """Return the ``missing`` and ``extra`` policies for clients that only the federation, or only the graph, has.

    If clients may be absent, neither ends the run: clients that only the graph has are likely absent, and a node with
    unknown clients must not keep others from starting.
    """
    table = experiment.graph
    if experiment.experiment.on_missing == "fail":
        return table.missing, table.extra
    present, known = set(federation.names), set(graph.names)
    for names, warning in ((present - known, "the client graph lacks %s: they get no edges"),
                           (known - present, "the client graph has clients that do not take part: %s")):  # fmt: skip
        if names:
            log.warning(warning, quoted(sorted(names)))
    return "isolate", "drop"


def _build(experiment: Experiment, federation: Federation, data_dir: Path, notes: list[str]) -> ClientGraph:
    table = experiment.graph
    if table.source == "complete":
        return ClientGraph.complete(federation.names)
    if table.source == "labels":
        if federation.label_counts is None:
            raise GraphError('[graph] source = "labels" needs data with classes')
        return ClientGraph.from_labels(federation.label_counts, federation.names, main=table.main_labels)
    if table.source == "file":
        path = _find(str(table.path), data_dir)
        # What is made symmetric is not said to be directed.
        directed = True if table.symmetrise and table.directed is None else table.directed
        return read_graph(path, directed=directed, sigma=table.sigma, cut=table.cut, notes=notes)
    if table.source == "run":
        return _of_run(str(table.path), experiment)
    graph = open_source(experiment.data, data_dir).given_graph()
    if graph is None:
        raise GraphError('[graph] source = "data", but the data set has no graph; use another source')
    present = set(federation.names)
    return graph.subgraph([name for name in graph.names if name in present])


def client_coordinates(experiment: Experiment, names: Sequence[str], data_dir: Path) -> dict[str, tuple[float, float]]:
    """Return latitude and longitude of the clients whose coordinates are known, for reports.

    They are read from ``[graph] coordinates``, or else from the data set's own file, if it has one. Raises GraphError
    when the file of ``[graph] coordinates`` is missing, or a file cannot be read.
    """
    if experiment.graph.coordinates is not None:
        path = _find(experiment.graph.coordinates, data_dir, "coordinates")
    else:
        try:
            file = getattr(open_source(experiment.data, data_dir), "coordinates", None)
        except FedgraphError:  # a server need not have the data
            file = None
        if file is None:
            return {}
        path = Path(file)
    places = _read_coordinates(path)
    return {name: places[name] for name in names if name in places}


def _read_coordinates(path: Path) -> dict[str, tuple[float, float]]:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.reader(stream) if row]
    columns = [0, 1, 2]
    heads = [head.strip().lower() for head in rows[0]] if rows else []
    if any(head in _LATITUDE for head in heads):
        rows = rows[1:]
        try:
            columns = [next(heads.index(head) for head in known if head in heads) for known in _COLUMNS]
        except StopIteration:
            raise GraphError(f"{path}: needs columns name, latitude and longitude; got {', '.join(heads)}") from None
    try:
        return {row[columns[0]].strip(): (float(row[columns[1]]), float(row[columns[2]])) for row in rows}
    except (IndexError, ValueError) as error:
        raise GraphError(f"{path}: each line must be name, latitude, longitude ({error})") from None


def _find(path: str, data_dir: Path, key: str = "path") -> Path:
    for candidate in (Path(path).expanduser(), data_dir / path):
        if candidate.is_file():
            return candidate
    raise GraphError(f"[graph] {key}: no file '{path}' in {Path.cwd()} or the data folder {data_dir}")


def _of_run(path: str, experiment: Experiment) -> ClientGraph:
    """Return the graph of another run, with a warning if equal names may denote different clients."""
    try:
        folder = RunFolder.open(Path(path).expanduser())
        graph = folder.client_graph()
    except RunError as error:
        raise GraphError(f"[graph] path: {error}") from None
    differing = folder.other_data(experiment.data)
    # FedNGM and SFL read the rows of the same clients as different data sets.
    if differing and "set" not in differing:
        log.warning(
            "[graph] path: the run %s has other [data] (%s); its clients are matched by name",
            folder.path, "; ".join(differing.values()),
        )  # fmt: skip
    return graph
