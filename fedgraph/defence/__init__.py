"""Defence against well-formed but harmful replies of clients: bounds on updates, Krum, robust averages.

By default only warnings are enabled. The server sees only updates, so a defence assumes that most clients, or most
neighbours of each, are honest. ``fedgraph reproduce defences`` compares the cost without attackers and the benefit with
them.

>>> import torch
>>> from fedgraph.defence import bounded, robust_average
>>> updates = torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 1e30]])
>>> bounded(updates, 10.0)[2]
tensor([ 0., 10.])
>>> robust_average(updates, torch.full((1, 3), 1 / 3), "median")
tensor([[0., 5.]])
"""

from fedgraph.defence.aggregation import (
    DefenceTable,
    bounded,
    bounded_counts,
    bounded_embeddings,
    counts_notes,
    krum_scores,
    lengths,
    robust_average,
)

__all__ = [
    "DefenceTable",
    "bounded",
    "bounded_counts",
    "bounded_embeddings",
    "counts_notes",
    "krum_scores",
    "lengths",
    "robust_average",
]
