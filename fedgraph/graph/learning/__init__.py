"""Learning the client graph: from distances between clients' models to the weights with which they listen."""

from fedgraph.graph.learning.encoder import EncoderFit, GraphEncoder, fit_encoder, largest_per_row, released_weights
from fedgraph.graph.learning.kernel import kernel_graph
from fedgraph.graph.learning.learner import GraphLearner, LearnerName
from fedgraph.graph.learning.neighbours import beside_given, with_row_sums
from fedgraph.graph.learning.smoothness import SmoothGraph, smooth_graph

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
