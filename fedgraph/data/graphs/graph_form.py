"""Preprocessing of graphs, and new graphs to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.base import CohortData
from fedgraph.data.graphs.graph_files import GraphFiles
from fedgraph.data.graphs.labelled import UNKNOWN, LabelledGraphs, graph_cohort
from fedgraph.data.own import UNNAMED
from fedgraph.data.preprocessing import Form, NewData, Preprocessing, label_answers
from fedgraph.data.preprocessing.preprocessing import Scales
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


class GraphForm(Form):
    """Features and classes of graphs, which are not scaled."""

    def preprocessing(self, names: Sequence[str]) -> Preprocessing:
        """Return the preprocessing of clients, without scaling."""
        one = {"centre": 0.0, "spread": 1.0, "fill": 0.0, "mean": 0.0, "std": 1.0}
        return Preprocessing.alike(self, names, {name: torch.tensor(value) for name, value in one.items()})

    def read(self, place: Path, client: str | None) -> NewData:
        """See :class:`Form`: a file or folder as in training; classes are not needed."""
        files = GraphFiles(place, None if client is None else (client,), unnamed=UNNAMED)
        names = tuple(files.names) if client is None else (client,)
        clients = []
        for name in names:
            own = LabelledGraphs.of(files.read(name), self.task.level, files.where(name))
            width, most = own.graphs[0].x.shape[1], int(own.labels.max())
            if width != self.task.input_shape[0]:
                raise DataError(
                    f"{files.where(name)} has {width} features of a node, and those of training had "
                    f"{self.task.input_shape[0]}"
                )
            if most >= self.task.output_shape[0]:
                raise DataError(
                    f"{files.where(name)} has the class {most}, and there were {self.task.output_shape[0]} in "
                    "training, counted from 0"
                )
            clients.append(own)
        return NewGraphs(self, tuple(clients), names)


@dataclass(frozen=True)
class NewGraphs(NewData):
    """New graphs to predict: the class of each node, or of each graph.

    Attributes
    ----------
    clients : the graphs of each client.
    """

    form: GraphForm
    clients: tuple[LabelledGraphs, ...]
    names: tuple[str, ...]

    def measured(self, name: str, like: Scales) -> dict[str, Tensor]:
        """Return the scale of all clients."""
        return self.form.preprocessing([name]).of(name)

    def cohort(self, scales: Scales) -> CohortData:
        """See :class:`NewData`."""
        return graph_cohort(
            self.task, self.names, self.clients, {"test": [np.arange(len(own.labels)) for own in self.clients]}
        )

    @property
    def task(self) -> TaskSpec:
        """What is predicted."""
        return self.form.task

    def known(self, data: CohortData) -> CohortData | None:
        """See :class:`NewData`: the examples with a class."""
        rows = [np.flatnonzero((own.labels != UNKNOWN).numpy()) for own in self.clients]
        if not any(map(len, rows)):
            return None
        return replace(data, splits=graph_cohort(self.task, self.names, self.clients, {"test": rows}).splits)

    def answers(self, data: CohortData, outputs: Tensor) -> pd.DataFrame:
        """Return the columns ``client``, ``graph`` and ``node``, from 0, ``label`` where known, and predictions."""
        import pandas as pd

        parts = []
        for name, own, each in zip(self.names, self.clients, outputs, strict=True):
            graph, node = own.places
            at = {"graph": graph, "node": node} if self.task.level == "node" else {"graph": np.arange(len(own.graphs))}
            labels = own.labels if bool((own.labels != UNKNOWN).any()) else None
            columns = label_answers(self.task, each[: len(own.labels)], labels)
            parts.append(pd.DataFrame({"client": name, **at, **columns}))
        return pd.concat(parts, ignore_index=True)
