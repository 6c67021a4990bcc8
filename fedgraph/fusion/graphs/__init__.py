"""Graphs that F3 learns together with its fusion model: random edges, or nearest neighbours.

>>> import torch
>>> from fedgraph.fusion.graphs import InverseCdfGraph
>>> graph = InverseCdfGraph(3, torch.Generator().manual_seed(0))
>>> graph.expected().shape
torch.Size([3, 3])
"""

from fedgraph.fusion.graphs.bernoulli import BernoulliGraph, GumbelGraph, InverseCdfGraph
from fedgraph.fusion.graphs.feature_neighbours import FeatureNeighbours

__all__ = ["BernoulliGraph", "FeatureNeighbours", "GumbelGraph", "InverseCdfGraph"]
