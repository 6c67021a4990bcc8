"""Python objects in an experiment: data frames, graphs and classes instead of paths.

A graph of PyTorch Geometric is the client graph under ``graph``, and data of clients elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any

from fedgraph.data import GIVEN, as_file, name_given_files
from fedgraph.data.graphs import are_graphs
from fedgraph.experiment import Overrides, overrides_by_key
from fedgraph.graph import ClientGraph, is_labelled_matrix, write_graph
from fedgraph.support.errors import ExperimentError, FedgraphError, GraphError
from fedgraph.support.files import write_atomically
from fedgraph.support.plugins import dotted_path

_OF_GRAPHS = ("graph", "graph.path", "data.graph")
"""Keys that have the client graph."""


_PLAIN = (str, PathLike, bool, int, float, date, time, NoneType)
"""Types that TOML has, and paths."""


@contextmanager
def named_by_key() -> Iterator[None]:
    """In errors, name data frames and graphs by the key that has them, not by the file they were written to.

    For ``with``, and as a decorator.
    """
    try:
        yield
    except FedgraphError as error:
        error.args = tuple(name_given_files(str(part)) for part in error.args)
        error.quoted = name_given_files(error.quoted)
        raise


def in_words(
    experiment: str | Path | Mapping[str, Any],
    overrides: Overrides,
    sites: Mapping[str, Any],
    out: str | Path | None,
) -> tuple[str | Path | Mapping[str, Any], dict[str, Any], dict[str, Any]]:
    """Return an experiment, its overrides and sites with paths instead of data frames, graphs and classes.

    Data frames and graphs become files in a hidden folder next to the run folders, for nodes in other processes and
    resumed runs. A graph as the table ``[graph]`` is written to a file. Raises ExperimentError for unsupported values.

    Returns
    -------
    experiment : str, Path or mapping
        As given, or the tables.
    overrides : dict
        By ``table.key``.
    sites : dict
        The data of each site, as a path.
    """
    keys = dict(overrides) if isinstance(overrides, Mapping) else overrides_by_key(overrides)
    tables = experiment if isinstance(experiment, Mapping) else {}
    head = keys.get("output.dir") or dict(tables.get("output") or {}).get("dir") or "runs"
    writer = _Writer(Path(out or str(head)) / GIVEN)
    plain = {key: writer.plain(value, key) for key, value in keys.items()}
    if isinstance(experiment, Mapping):
        experiment = {name: writer.plain(table, str(name)) for name, table in experiment.items()}
    of_sites = {name: writer.plain(value, f"sites.{name}") for name, value in sites.items()}
    return experiment, plain, of_sites


class _Writer:
    """Converts values to plain values of an experiment, and writes files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plain(self, value: Any, key: str) -> Any:
        """Convert a value to TOML; ``key`` is its name, such as ``data.path``."""
        of_client_graph = key == "graph" or key.startswith("graph.") or key == "data.graph"
        if not of_client_graph and are_graphs(value):
            return self._frame(value, key, as_text=False)
        if isinstance(value, Mapping):
            if odd := [name for name in value if isinstance(name, tuple)]:
                raise ExperimentError(
                    f"{key} has the key {odd[0]!r}, and keys are names: edges by pair of clients are a graph, "
                    "fedgraph.ClientGraph.from_edges(...)"
                )
            return {name: self.plain(each, f"{key}.{name}") for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(each, key) for each in value]
        if isinstance(value, type):
            return dotted_path(value)
        graph = _matrix_graph(value, key) if key in _OF_GRAPHS else None
        graph = graph or _graph_of(value)
        if graph is not None or hasattr(value, "__dataframe__") or hasattr(value, "iloc"):
            place = self._frame(value, key, of_client_graph) if graph is None else self._graph(graph, key)
            return {"source": "file", "path": place} if key == "graph" else place
        if type(value).__name__ in ("ndarray", "Tensor"):
            raise ExperimentError(
                f"{key} is given an array: give a data frame or the path of a file, or make a data set of it "
                "(`fedgraph new dataset NAME`)"
            )
        if re.match(r"(data\.path|sites)(\.|$)", key) and not isinstance(value, _PLAIN):
            raise ExperimentError(
                f"{key} is a {type(value).__name__}, and cannot be read: give the path of a file, a data frame, or a "
                "graph of PyTorch Geometric (Data) or a list of them (list(data_set) of a data set)"
            )
        return value

    def _graph(self, graph: ClientGraph, key: str) -> str:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "graph.npz"
            write_graph(graph, file)
            return self._kept(file, key)

    def _frame(self, frame: Any, key: str, as_text: bool) -> str:
        with TemporaryDirectory() as folder:
            if as_text and hasattr(frame, "to_csv"):
                file = Path(folder) / "table.csv"
                plain = frame.index.dtype.kind in "iu"
                frame.to_csv(file, index=not plain)
            else:
                name = "graphs" if are_graphs(frame) else "table"
                file = as_file(frame, Path(folder), name, f"the data given as {key}")
            return self._kept(file, key)

    def _kept(self, file: Path, key: str) -> str:
        content, name = file.read_bytes(), re.sub(r"[^\w.-]", "_", key)
        place = self.folder / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}{file.suffix}"
        if not place.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(place, content)
        return str(place.absolute())


def _matrix_graph(value: Any, key: str) -> ClientGraph | None:
    """Return the client graph of a labelled matrix, as a file of it may lose labels; None for anything else."""
    if not is_labelled_matrix(value):
        return None
    try:
        return ClientGraph.from_adjacency(value)
    except GraphError as error:
        raise error.at(f"the data given as {key}") from None


def _graph_of(value: Any) -> ClientGraph | None:
    """Return a client graph for one, or for a graph of NetworkX or PyTorch Geometric; None for anything else."""
    if isinstance(value, ClientGraph):
        return value
    if hasattr(value, "edge_index") and hasattr(value, "num_nodes"):
        return ClientGraph.from_pyg(value)
    if hasattr(value, "adj") and hasattr(value, "is_directed"):
        return ClientGraph.from_networkx(value)
    return None
