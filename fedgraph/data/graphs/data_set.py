"""Base of data sets of graphs, for the classification of nodes or of whole graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field, field_validator

from fedgraph.data.base import SPLITS, CohortData, Shares, SplitName, check_clients
from fedgraph.data.graphs.graph_form import GraphForm
from fedgraph.data.graphs.labelled import UNKNOWN, LabelledGraphs, graph_cohort
from fedgraph.data.own import Name, OwnData, with_notes
from fedgraph.data.partition import Indices, split
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, counted
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Configured, Settings

if TYPE_CHECKING:
    from fedgraph.graph import ClientGraph


class GraphOptions(Settings):
    """The keys of ``[data]`` of every data set of graphs.

    Attributes
    ----------
    level      : what is classified: each ``node``, or each ``graph`` as a whole.
    classes    : number of classes, or their names in order; the same at all nodes. Required where each node has its own
                 file; otherwise inferred.
    masks      : ``file`` = use the masks of the data (train_mask, val_mask, test_mask) if there are any; ``drawn`` =
                 ignore them.
    shares     : fractions of each client's labelled nodes, or graphs, for training, validation and test, drawn at
                 random unless masks are used.
    split_seed : seed of that draw.
    """

    level: Literal["node", "graph"] = "node"
    classes: int | tuple[Name, ...] | None = None
    masks: Literal["file", "drawn"] = "file"
    shares: Shares = (0.7, 0.1, 0.2)
    split_seed: int = Field(0, ge=0)

    @field_validator("classes")
    @classmethod
    def _several_classes(cls, value: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if value is not None and (value if isinstance(value, int) else len(set(value))) < 2:
            raise ValueError("at least two classes are needed")
        if isinstance(value, tuple) and len(set(value)) < len(value):
            raise ValueError("class names must differ")
        return value


OptionsT = TypeVar("OptionsT", bound=GraphOptions)


class GraphDataSet(Configured[OptionsT]):
    """Base class of data sets of graphs, subscripted by the settings that are the other keys of ``[data]``.

    A class defines the clients, and the graphs of each client::

        class Wards(GraphDataSet[GraphOptions]):
            def client_names(self): return ["mercy", "county"]
            def graphs(self, client): return Data(x=..., edge_index=..., y=...)

    Models see whole graphs: training uses the features and edges of validation and test nodes, but not their classes.

    Parameters
    ----------
    settings : GraphOptions
        The table ``[data]``, validated: of the class in brackets, with the key ``set`` added.
    data_dir : Path
        Folder in which the node's data lie.
    own : OwnData, optional
        A node's own file (node config ``data``) and its clients.
    """

    settings_type = GraphOptions

    def __init__(self, settings: OptionsT, data_dir: Path, own: OwnData | None = None) -> None:
        self.settings, self.data_dir, self.own = settings, data_dir, own
        self._known: dict[str, LabelledGraphs] = {}

    @abstractmethod
    def client_names(self) -> list[str]:
        """Return the names of all clients, in a stable order; of a node's own data, those of the node."""

    @abstractmethod
    def graphs(self, client: str) -> Any:
        """Return the graph of a client, or a list of its graphs, as ``Data`` of PyTorch Geometric, or as dicts.

        They have ``x`` ``[nodes, features]``, ``edge_index`` ``[2, edges]``, and classes ``y`` of nodes or of the
        graph, -1 where unknown; optionally ``edge_weight``, ``train_mask``, ``val_mask`` and ``test_mask``.
        """

    def where(self, client: str) -> str:
        """Name a client and the source of its graphs, for messages."""
        return f"client '{client}'"

    def group(self, client: str) -> str | None:
        """Return the group of a client, for results by group; by default there are none."""
        return None

    def given_graph(self) -> ClientGraph | None:
        """Return the client graph that comes with the data, for ``[graph] source = "data"``; by default none."""
        return None

    @property
    def title(self) -> str:
        """Name of the data, for reports."""
        return type(self).__name__

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the data."""
        return ()

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the clients ``names``.

        Raises DataError naming client and file for unknown clients, invalid graphs (:meth:`LabelledGraphs.of`),
        differing numbers of features, and clients without classes or training examples.
        """
        check_clients(self.title, names, self.client_names())
        clients = [self.labelled(name) for name in names]
        task = self._task(names, clients)
        parts = [self._parts(*each) for each in zip(names, clients, strict=True)]
        data = graph_cohort(task, tuple(names), clients, {name: [part[name] for part in parts] for name in SPLITS})
        counts = [
            own.labels[part["train"]].bincount(minlength=task.output_shape[0])
            for own, part in zip(clients, parts, strict=True)
        ]
        form = GraphForm(task=task)
        groups = [group for group in map(self.group, names) if group is not None]
        return replace(
            data,
            label_counts=torch.stack(counts),
            groups=tuple(groups) if len(groups) == len(names) else None,
            preprocessing=form.preprocessing(names),
        )

    def describe(self) -> str:
        """Describe the data, e.g. ``wards, 12 clients with a graph of 60 to 220 nodes each, classes of nodes``."""
        every = [self.labelled(name) for name in self.client_names()]
        sizes = [sum(len(graph.x) for graph in own.graphs) for own in every]
        graphs = [len(own.graphs) for own in every]
        nodes = _between(sizes, "node")
        held = f"a graph of {nodes}" if max(graphs) == 1 else f"{_between(graphs, 'graph')} with {nodes} in all"
        each = " each" if len(every) > 1 else ""
        clients = counted(len(every), "client")
        notes = [*self.notes]
        left_out = sorted({key for own in every for key in own.left_out})
        if left_out:
            names = ", ".join(left_out) if self.own is None else f"{counted(len(left_out), 'other tensor')} of the data"
            notes.append(f"models are not given {names}")
        one_way = sum(own.one_way for own in every)
        if one_way:
            notes.append(
                f"the edges of {counted(one_way, 'client')} lead one way only (torch_geometric.utils.to_undirected "
                "adds the other)"
            )
        edgeless = sum(not any(graph.edge_index.shape[1] for graph in own.graphs) for own in every)
        if edgeless:
            notes.append(f"{counted(edgeless, 'client has', 'clients have')} no edges")
        notes += self._note_on_classes(every)
        what = f"classes of {'nodes' if self.settings.level == 'node' else 'whole graphs'}"
        return with_notes(f"{self.title}, {clients} with {held}{each}, {what}", notes)

    def _note_on_classes(self, every: Sequence[LabelledGraphs]) -> list[str]:
        """Say which of the inferred classes no example has, as other numbers than -1 may mark unknown ones."""
        if self.settings.classes is not None or self.own is not None:
            return []
        count, level = self._classes[0], self.settings.level
        found = torch.stack([own.labels[own.labels != UNKNOWN].bincount(minlength=count) for own in every]).sum(0)
        unused = (found == 0).nonzero().flatten().tolist()
        if not unused:
            return []
        return [
            f"{len(unused):,} of {count:,} classes have no {level}, the first is {unused[0]}: classes are counted from "
            f"0 to the largest y, and y = -1 marks a {level} without one"
        ]

    def labelled(self, client: str) -> LabelledGraphs:
        """Return the graphs of a client, checked. Raises DataError as :meth:`load` does."""
        if client not in self._known:
            graphs = self.graphs(client)
            raw = [_as_mapping(each) for each in (graphs if isinstance(graphs, list | tuple) else [graphs])]
            self._known[client] = LabelledGraphs.of(raw, self.settings.level, self.where(client))
        return self._known[client]

    @cached_property
    def _classes(self) -> tuple[int, tuple[str, ...]]:
        """Number of classes, and their names, if any."""
        classes = self.settings.classes
        if classes is not None:
            return (classes, ()) if isinstance(classes, int) else (len(classes), classes)
        if self.own is not None:
            raise DataError(
                "[data] classes is required where each node has its own file: classes = 7, or their names in order"
            )
        return 1 + max(int(self.labelled(name).labels.max()) for name in self.client_names()), ()

    def _task(self, names: Sequence[str], clients: Sequence[LabelledGraphs]) -> TaskSpec:
        count, classes = self._classes
        width = clients[0].graphs[0].x.shape[1]
        for name, own in zip(names, clients, strict=True):
            where, most = self.where(name), int(own.labels.max())
            if own.graphs[0].x.shape[1] != width:
                raise DataError(
                    f"{where} has {own.graphs[0].x.shape[1]} node features, and {self.where(names[0])} has "
                    f"{width}: all clients need the same ones, in the same order"
                )
            if most == UNKNOWN:
                raise DataError(f"{where} has no classes: y is missing, or -1 throughout")
            if most >= count:
                raise DataError(f"{where} has the class {most}, and there are {count}, counted from 0 ([data] classes)")
        if count < 2:
            raise DataError(f"{self.title} has only one class, 0: nothing to learn ([data] classes)")
        positive = 1 if count == 2 else None
        return TaskSpec(
            "classification", (width,), (count,), classes=classes, positive=positive, level=self.settings.level
        )

    def _parts(self, name: str, own: LabelledGraphs) -> Mapping[SplitName, Indices]:
        """Return the examples of each split: those with a class, by mask or drawn."""
        known = (own.labels != UNKNOWN).numpy()
        if own.masks and self.settings.masks == "file":
            found = {split: np.flatnonzero(own.masks[split].numpy() & known) for split in SPLITS}
            if not len(found["train"]):
                raise DataError(
                    f"{self.where(name)}: no node of train_mask has a class, so there is nothing to train on"
                )
            return found
        rows = np.flatnonzero(known)
        draws = generator(self.settings.split_seed, "split", name)
        parts = split(len(rows), self.settings.shares, draws, self.where(name))
        return {split_name: rows[part] for split_name, part in zip(SPLITS, parts, strict=True)}


def _as_mapping(graph: Any) -> Mapping[str, Any]:
    if not isinstance(graph, Mapping) and hasattr(graph, "to_dict"):
        graph = graph.to_dict()
    if not isinstance(graph, Mapping):
        raise DataError(f"a graph is a torch_geometric.data.Data or a dict of tensors, not a {type(graph).__name__}")
    return graph


def _between(counts: Sequence[int], word: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,} to {counted(high, word)}" if low < high else counted(low, word)
