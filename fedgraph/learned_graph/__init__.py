"""Learning the client graph: from distances between clients' models to the weights with which they listen."""

from fedgraph.learned_graph.combine import beside_given, with_row_sums
from fedgraph.learned_graph.encoder import EncoderFit, GraphEncoder, fit_encoder, largest_per_row, released_weights
from fedgraph.learned_graph.kernel import kernel_graph
from fedgraph.learned_graph.learner import GraphLearner, LearnerName
from fedgraph.learned_graph.smoothness import SmoothGraph, smooth_graph

__all__ = [
    "EncoderFit",
    "GraphEncoder",
    "GraphLearner",
    "LearnerName",
    "SmoothGraph",
    "beside_given",
    "fit_encoder",
    "kernel_graph",
    "largest_per_row",
    "released_weights",
    "smooth_graph",
    "with_row_sums",
]
