"""Client graphs: construction, normalisation, propagation, files; and feature graphs.

Learned graphs are in :mod:`fedgraph.graph.learning`.

    >>> import torch
    >>> from fedgraph.graph import ClientGraph
    >>> graph = ClientGraph.from_edges([("a", "b"), ("b", "c", 1.0)])
    >>> graph.propagate(torch.tensor([[1.0], [3.0], [5.0]]), hops=1).flatten().tolist()  # means of neighbourhoods
    [2.0, 3.0, 4.0]
"""

from fedgraph.graph.drawing import GraphChart, in_a_circle
from fedgraph.graph.feature_graph import FeatureGraph, Pair, client_similarity, read_feature_graph, write_feature_graph
from fedgraph.graph.files import read_graph, write_graph
from fedgraph.graph.inputs import is_labelled_matrix
from fedgraph.graph.means import graph_mean, graph_mean_weights, weighted_mean
from fedgraph.graph.pairwise import (
    absolute_distances,
    attention_from_distances,
    cosine_similarity,
    squared_distances,
)
from fedgraph.graph.settings import GraphTable
from fedgraph.graph.value import ClientGraph

__all__ = [
    "ClientGraph",
    "FeatureGraph",
    "GraphChart",
    "GraphTable",
    "Pair",
    "absolute_distances",
    "attention_from_distances",
    "client_similarity",
    "cosine_similarity",
    "graph_mean",
    "graph_mean_weights",
    "in_a_circle",
    "is_labelled_matrix",
    "read_feature_graph",
    "read_graph",
    "squared_distances",
    "weighted_mean",
    "write_feature_graph",
    "write_graph",
]
