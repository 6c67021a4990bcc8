"""The graphs of several clients as a cohort: examples refer to a shared table of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedgraph.data.base import CohortData, SplitName
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.graphs.labelled import LabelledGraphs
from fedgraph.data.partition import Indices
from fedgraph.models import TaskSpec
from fedgraph.models.graphs import GraphTable


def graph_cohort(
    task: TaskSpec,
    names: tuple[str, ...],
    clients: Sequence[LabelledGraphs],
    rows: Mapping[SplitName, Sequence[Indices]],
) -> CohortData:
    """Build the cohort of clients with these graphs and splits.

    Parameters
    ----------
    task : a classification of nodes or of graphs.
    rows : examples of each split, client by client, as positions in a client's labels.
    """
    table = GraphTable.of([graph for own in clients for graph in own.graphs], task.level)
    numbers = torch.cat([table.numbers(place) for place in range(1, 1 + sum(len(own.graphs) for own in clients))])
    labels = torch.cat([own.labels for own in clients]).clamp(min=0)
    first = [0, *torch.tensor([len(own.labels) for own in clients]).cumsum(0).tolist()]
    splits = {
        name: ExampleSplit(
            numbers[:, None], labels, row_table([begin + own for begin, own in zip(first, parts, strict=False)])
        )
        for name, parts in rows.items()
    }
    return CohortData(names, task, splits, torch.zeros(len(names)), torch.ones(len(names)), graphs=table)
