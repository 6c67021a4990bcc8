"""Defence against clients whose replies are well formed but harmful: bounds on updates, Krum, robust averages.

Nothing here is on by default but a warning. The server sees updates alone, so that a defence rests on one assumption:
most clients, or most neighbours of each, are honest. The cost of each without attackers, and its benefit with them, are
in a table of their own (``fedgraph reproduce defences``).

>>> import torch
>>> from fedgraph.defence import bounded, robust_average
>>> updates = torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 1e30]])
>>> bounded(updates, 10.0)[2]
tensor([ 0., 10.])
>>> robust_average(updates, torch.full((1, 3), 1 / 3), "median")
tensor([[0., 5.]])
"""

from fedgraph.defence.aggregation import bounded, bounded_embeddings, krum_scores, lengths, robust_average
from fedgraph.defence.settings import DefenceTable

__all__ = ["DefenceTable", "bounded", "bounded_embeddings", "krum_scores", "lengths", "robust_average"]
