"""Files with the graphs of clients: ``.pt`` of PyTorch Geometric, and ``.npz``."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph.data.graphs.labelled import PARTS, Raw, as_tensor
from fedgraph.data.own import CLIENT, LOOKED_FOR
from fedgraph.support.csv_text import composed
from fedgraph.support.errors import DataError
from fedgraph.support.files import read_arrays, write_atomically

SUFFIXES = (".pt", ".pth", ".npz")


class GraphFiles:
    """The graphs in a file or a folder, by client.

    A folder has a file, or a folder of files, named after each client. A ``.pt`` file has the graph of one client, a
    list of its graphs, or a dict of these by client. No code of a file is executed. Raises DataError when there is
    nothing to read, or the client is unknown.

    Parameters
    ----------
    clients : the clients, if known; of several, each has a part with its name.
    unnamed : the client if neither ``clients`` nor the file names it; None makes that an error.
    """

    def __init__(self, place: Path, clients: Sequence[str] | None = None, unnamed: str | None = None) -> None:
        self.ignored = 0
        self._read: dict[str, list[Raw]] = {}
        self._places: dict[str, Path] = {}
        if CLIENT in str(place):
            self._places = {name: Path(str(place).replace(CLIENT, name)) for name in clients or ()}
        elif place.is_dir():
            self._places = self._in_folder(place)
            if clients is not None and not set(clients) <= set(self._places) and len(clients) == 1:
                self._places = {clients[0]: place}
        elif not place.is_file():
            raise DataError(f"there is no {place}: {LOOKED_FOR}")
        else:
            found = _loaded(place)
            only = clients[0] if clients is not None and len(clients) == 1 else unnamed
            if isinstance(found, Mapping):
                self._read = {composed(name): raw for name, raw in found.items()}
            elif only is not None:
                self._read = {only: found}
            else:
                raise DataError(
                    f"{place} does not name its client: make a folder with a file for each client, NAME.pt or "
                    "NAME.npz, or save a dict of graphs by client, torch.save({...}, 'all.pt')"
                )
        self.place = place
        if not self.names:
            raise DataError(f"{place} has no graphs: it needs a file NAME.pt or NAME.npz for each client")

    @property
    def names(self) -> list[str]:
        """The clients."""
        return list(self._places) if self._places else list(self._read)

    def where(self, client: str) -> str:
        """Name a client and the full path of its file, which never leaves the node."""
        return f"client '{client}' ({self._places.get(client, self.place)})"

    def read(self, client: str) -> list[Raw]:
        """Return the graphs of a client. Raises DataError for an unknown client or an unreadable file."""
        if client not in self.names:
            raise DataError(
                f"{self.place} has no graphs of client '{client}'; it has those of {', '.join(self.names[:8])}"
            )
        if client in self._read:
            return self._read[client]
        place = self._places[client]
        files = sorted(path for path in place.iterdir() if _is_graph(path)) if place.is_dir() else [place]
        if place.is_dir() and not files:
            raise DataError(f"client '{client}': {place} has no file {' or '.join(SUFFIXES)}")
        return [graph for file in files for graph in _load_single(file)]

    def _in_folder(self, folder: Path) -> dict[str, Path]:
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        found: dict[str, Path] = {}
        for path in entries:
            if not (path.is_dir() or _is_graph(path)):
                self.ignored += 1
                continue
            name = composed(path.name if path.is_dir() else path.stem)
            if name in found:
                raise DataError(f"{folder} has {found[name].name} and {path.name}, both of client '{name}': keep one")
            found[name] = path
        return found


def save_graphs(data: Any, file: Path) -> None:
    """Write graphs of PyTorch Geometric, of one client or by client, as plain tensors, for :class:`GraphFiles`."""
    plain = {str(name): _plain(own) for name, own in data.items()} if isinstance(data, Mapping) else _plain(data)
    # torch.save stores the name of a file in its content; by way of memory equal graphs give equal bytes.
    buffer = BytesIO()
    torch.save(plain, buffer)
    write_atomically(file, buffer.getvalue())


def are_graphs(value: Any) -> bool:
    """Return whether a value is a graph of PyTorch Geometric, a list of them, or a dict of either."""
    if isinstance(value, Mapping):
        return bool(value) and all(not isinstance(own, Mapping) and are_graphs(own) for own in value.values())
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_data, value))
    return _is_data(value)


def _is_data(value: Any) -> bool:
    return hasattr(value, "edge_index") and hasattr(value, "to_dict") and hasattr(value, "num_nodes")


def _is_graph(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in SUFFIXES


def _plain(data: Any) -> list[dict[str, torch.Tensor]]:
    every = [each.to_dict() for each in (data if isinstance(data, list | tuple) else [data])]
    return [{key: as_tensor(value) for key, value in each.items() if _is_numeric(key, value)} for each in every]


def _is_numeric(key: str, value: Any) -> bool:
    """Return whether a value is a tensor, or as a part that models use a number or an array, such as ``y=1``."""
    if isinstance(value, torch.Tensor) or key not in PARTS:
        return isinstance(value, torch.Tensor)
    return isinstance(value, bool | int | float | np.generic | np.ndarray) and np.asarray(value).dtype.kind in "biuf"


def _load_single(file: Path) -> list[Raw]:
    found = _loaded(file)
    if isinstance(found, Mapping):
        raise DataError(f"{file} has the graphs of several clients, {', '.join(list(found)[:5])}: one file is enough")
    return found


def _loaded(file: Path) -> list[Raw] | dict[str, list[Raw]]:
    """Read a file: the graphs of a client, or of several by name."""
    if file.suffix.lower() == ".npz":
        return _parts(read_arrays(file), file)
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(f"{file} is not a graph file; graph files are {', '.join(SUFFIXES)}")
    from torch_geometric.data.data import Data, DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        about = f" ({refused[1]})" if refused else ""
        raise DataError(
            f"{file} holds objects other than graphs{about}, which are not loaded for safety: save a Data object, "
            f"or a list of them, torch.save([data, ...], '{file.name}'), with tensors only; of a Batch, "
            "batch.to_data_list()"
        ) from None
    except Exception as error:  # a damaged file may raise almost anything
        kind, reason = type(error).__name__, str(error)
        raise DataError(f"{file} cannot be read by torch.load ({kind}: {reason})", quoted=reason) from None
    try:
        return _raw(found, file)
    except DataError:
        raise
    except Exception as error:  # objects of the file may be half made
        kind, reason = type(error).__name__, str(error)
        raise DataError(f"{file} has a graph that cannot be read ({kind}: {reason})", quoted=reason) from None


def _raw(found: Any, file: Path) -> list[Raw] | dict[str, list[Raw]]:
    if isinstance(found, Mapping) and not {"x", "edge_index"} & set(found):
        by_client = {str(name): _raw(own, file) for name, own in found.items()}
        if not by_client or any(isinstance(own, Mapping) for own in by_client.values()):
            raise DataError(f"{file} has a dict that does not map clients to graphs, or to lists of graphs")
        return by_client  # type: ignore[return-value]
    every = found if isinstance(found, list | tuple) else [found]
    return [_as_raw(each, file) for each in every]


def _as_raw(graph: Any, file: Path) -> Raw:
    from torch_geometric.data import Data

    if isinstance(graph, Data):
        graph = graph.to_dict()
    if not isinstance(graph, Mapping) or not {"x", "edge_index"} & set(graph):
        raise DataError(
            f"{file} has a {type(graph).__name__} where a graph is expected: save a torch_geometric.data.Data, "
            "a list of them, or a dict from client to graph; of a data set of PyTorch Geometric, list(dataset)"
        )
    return graph


def _parts(arrays: dict[str, np.ndarray], file: Path) -> list[Raw]:
    """Return the graphs of an .npz file: one, or as many as the array ``batch`` (graph of each node, from 0) says."""
    part = arrays.pop("batch", None)
    if part is None or "x" not in arrays or "edge_index" not in arrays:
        return [arrays]
    nodes, edges = len(arrays["x"]), arrays["edge_index"]
    if part.shape != (nodes,) or part.dtype.kind not in "iu" or bool((np.diff(part) < 0).any()) or (part < 0).any():
        raise DataError(f"{file}: batch must give the graph of each of {nodes} nodes, as non-decreasing whole numbers")
    if (
        edges.ndim != 2
        or len(edges) != 2
        or edges.dtype.kind not in "iu"
        or (edges.size and not 0 <= edges.min() <= edges.max() < nodes)
    ):
        return [arrays]  # one error describes all of it
    if bool((part[edges[0]] != part[edges[1]]).any()):
        raise DataError(f"{file}: an edge leads from one graph to another, by the array batch")
    count = int(part[-1]) + 1 if nodes else 0
    found: list[Raw] = []
    for number in range(count):
        own, within = part == number, part[edges[0]] == number
        first = int(own.argmax())
        graph = {"x": arrays["x"][own], "edge_index": edges[:, within] - first}
        for name, value in arrays.items():
            if name in ("x", "edge_index"):
                continue
            if name.startswith("edge_"):
                graph[name] = value[within] if value.shape[:1] == (edges.shape[1],) else value
            elif value.shape[:1] == (nodes,):
                graph[name] = value[own]
            elif value.shape[:1] == (count,):
                graph[name] = value[number : number + 1]
        found.append(graph)
    return found
