"""The client graph of an experiment, over the clients that actually take part, and where these are on earth."""

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
"""Names of the columns of a file with coordinates, those that are looked for first before the others."""


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
        Data folder. A relative ``path`` of a file is looked up from the current folder, then here. (A file or run
        beside the experiment file comes before both: its path is made absolute when the experiment is loaded.)
    notes : list of str, optional
        Gets sentences on what a reader of the results should know about a graph from a file.

    Returns
    -------
    ClientGraph or None
        Graph over ``federation.names``; None for ``source = "none"``.

    Raises
    ------
    GraphError
        When the data has no published graph or no labels, the file or run is missing or unusable, or its clients are
        not those of the federation (naming them).
    """
    table = experiment.graph
    if table.source == "none":
        return None
    told: list[str] = []
    graph = _build(experiment, federation, data_dir, told)
    try:
        graph = graph.reindex(federation.names, *_differing(experiment, graph, federation))
    except GraphError as error:
        raise GraphError(f"{table.path}: {error}" if table.path else str(error)) from None
    if table.source in ("file", "data"):
        told += _about_isolated(graph)
    for note in told:
        log.info("%s", note)
    if notes is not None:
        notes += told
    if table.neighbours is not None:
        graph = graph.strongest(table.neighbours)
    if table.binarise:
        graph = graph.binarised()
    if table.symmetrise:
        graph = graph.symmetrised()
    return graph if table.permute_seed is None else graph.permuted(generator(table.permute_seed, "permuted graph"))


def _about_isolated(graph: ClientGraph) -> list[str]:
    """Say how many clients have no neighbour, if some have."""
    alone = graph.isolated
    if not alone or len(alone) == graph.num_clients:  # of a graph without edges the results say so anyway
        return []
    return [f"{len(alone):,} of {graph.num_clients:,} clients are isolated in the client graph: they have no edge"]


def _differing(
    experiment: Experiment, graph: ClientGraph, federation: Federation
) -> tuple[Literal["error", "isolate"], Literal["error", "drop"]]:
    """Return what is done about clients that only the federation, or only the graph has.

    Where clients may be absent, neither ends the run: those of the graph are likely the absent ones, and a node that
    brings clients of its own must not keep others from starting.
    """
    table = experiment.graph
    if experiment.experiment.on_missing == "fail":
        return table.missing, table.extra
    here, known = set(federation.names), set(graph.names)
    for names, what in ((here - known, "the client graph lacks %s, who get no edges"),
                        (known - here, "the client graph has %s, who do not take part")):  # fmt: skip
        if names:
            log.warning(what, quoted(sorted(names)))
    return "isolate", "drop"


def _build(experiment: Experiment, federation: Federation, data_dir: Path, notes: list[str]) -> ClientGraph:
    table = experiment.graph
    if table.source == "complete":
        return ClientGraph.complete(federation.names)
    if table.source == "labels":
        if federation.label_counts is None:
            raise GraphError('[graph] source = "labels" needs data with classes; this data has none')
        return ClientGraph.from_labels(federation.label_counts, federation.names, main=table.main_labels)
    if table.source == "file":
        path = _find(str(table.path), data_dir)
        return read_graph(path, directed=table.directed, sigma=table.sigma, cut=table.cut, notes=notes)
    if table.source == "run":
        return _of_run(str(table.path), experiment)
    graph = open_source(experiment.data, data_dir).given_graph()
    if graph is None:
        raise GraphError('[graph] source = "data", but this data set comes without a graph; use another source')
    present = set(federation.names)
    return graph.subgraph([name for name in graph.names if name in present])


def client_coordinates(experiment: Experiment, names: Sequence[str], data_dir: Path) -> dict[str, tuple[float, float]]:
    """Return latitude and longitude of those clients whose place is known, for reports.

    They are read from ``[graph] coordinates`` or, failing that, from the file that comes with the data set, if any.

    Parameters
    ----------
    experiment : Experiment
        The experiment.
    names : sequence of str
        Clients that take part.
    data_dir : Path
        Data folder of the server.

    Raises
    ------
    GraphError
        When the file of ``[graph] coordinates`` is missing, or a file cannot be read.
    """
    if experiment.graph.coordinates is not None:
        path = _find(experiment.graph.coordinates, data_dir, "coordinates")
    else:
        try:
            found = getattr(open_source(experiment.data, data_dir), "coordinates", None)
        except FedgraphError:  # a server need not have the data
            found = None
        if found is None:
            return {}
        path = Path(found)
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
            raise GraphError(f"{path}: needs columns name, latitude and longitude; it has {', '.join(heads)}") from None
    try:
        return {row[columns[0]].strip(): (float(row[columns[1]]), float(row[columns[2]])) for row in rows}
    except (IndexError, ValueError) as error:
        raise GraphError(f"{path}: a line is not name, latitude, longitude ({error})") from None


def _find(path: str, data_dir: Path, key: str = "path") -> Path:
    for candidate in (Path(path).expanduser(), data_dir / path):
        if candidate.is_file():
            return candidate
    raise GraphError(f"[graph] {key}: no file '{path}' from {Path.cwd()}, nor in the data folder {data_dir}")


def _of_run(path: str, experiment: Experiment) -> ClientGraph:
    """Return the graph of another run, with a warning where the same names may be those of other clients."""
    try:
        folder = RunFolder.open(Path(path).expanduser())
        graph = folder.client_graph()
    except RunError as error:
        raise GraphError(f"[graph] path: {error}") from None
    differing = folder.other_data(experiment.data)
    # FedNGM and SFL read the rows of the same clients as different sets.
    if differing and "set" not in differing:
        log.warning(
            "[graph] path: the run %s has other [data] (%s): its clients are taken to be those of the same names here",
            folder.path, "; ".join(differing.values()),
        )  # fmt: skip
    return graph
