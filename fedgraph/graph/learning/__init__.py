"""Graphs that are learned from distances between clients' models (SFL*).

>>> import torch
>>> from fedgraph.graph.learning import kernel_graph
>>> models = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
>>> kernel_graph(torch.cdist(models, models).square(), neighbours=1).argmax(1).tolist()
[1, 0, 3, 2]
"""

from fedgraph.graph.learning.kernel import kernel_graph
from fedgraph.graph.learning.learner import GraphLearner
from fedgraph.graph.learning.neighbours import combine_graphs, with_row_sums
from fedgraph.graph.learning.smoothness import smooth_graph

__all__ = [
    "GraphLearner",
    "combine_graphs",
    "kernel_graph",
    "smooth_graph",
    "with_row_sums",
]
