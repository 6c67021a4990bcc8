"""The user's own graphs, in one file or folder for all clients, or at each node those of its clients."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from fedgraph.data.graphs.data_set import GraphDataSet, GraphOptions
from fedgraph.data.graphs.graph_files import GraphFiles
from fedgraph.data.graphs.labelled import LabelledGraphs
from fedgraph.data.own import data_path, data_title
from fedgraph.support.errors import DataError


class OwnGraphSettings(GraphOptions):
    """The ``[data]`` table with ``set = "graphs"``: a graph, or several, at each client.

    Attributes
    ----------
    path : a folder with a file, or a folder of files, named after each client, or a .pt file with a dict by client;
           looked for next to the experiment, in the current folder, and in the data folder. Not needed where every node
           has its own graphs (node config ``data``). Files are .pt (a Data object of PyTorch Geometric, or a list of
           them) or .npz (arrays ``x``, ``edge_index``, ``y``, optionally ``edge_weight``, ``train_mask``, ``val_mask``,
           ``test_mask``; ``batch`` of several graphs).
    """

    set: Literal["graphs"] = "graphs"
    path: str | None = None


class OwnGraphSource(GraphDataSet[OwnGraphSettings]):
    """Graphs of files (a :class:`fedgraph.data.base.DataSource`)."""

    @property
    def title(self) -> str:
        """Name of the file or folder; hidden for a node's own data."""
        return data_title(self.settings.path, self.own)

    @property
    def notes(self) -> tuple[str, ...]:
        """The number of files that were skipped."""
        return (f"{self._files.ignored} other files were skipped",) if self._files.ignored else ()

    def client_names(self) -> list[str]:
        """Return the clients of files and folders, or those that the node config names."""
        return list(self.own.clients) if self.own is not None and self.own.clients else self._files.names

    def graphs(self, client: str) -> Any:
        """See :class:`GraphDataSet`."""
        return self._files.read(client)

    def labelled(self, client: str) -> LabelledGraphs:
        """See :class:`GraphDataSet`; after an error, files are read again, as they may have been fixed."""
        try:
            return super().labelled(client)
        except DataError:
            vars(self).pop("_files", None)
            raise

    def where(self, client: str) -> str:
        """Name a client and its file."""
        return self._files.where(client) if client in self._files.names else super().where(client)

    @cached_property
    def _files(self) -> GraphFiles:
        place = data_path(self.settings.path, self.data_dir, self.own)
        return GraphFiles(place, self.own.clients or None if self.own is not None else None)
