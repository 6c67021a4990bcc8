"""The relation graph over the clients: its value, how it is built, normalised, propagated over, read and written."""

from fedgraph.graph.build import from_coordinates, from_distance_list, from_distances, from_labels, knn
from fedgraph.graph.convert import from_networkx, from_pyg, to_networkx, to_pyg
from fedgraph.graph.files import KNOWN_FORMATS, read_graph, write_graph
from fedgraph.graph.propagation import Normalisation, PropagationMatrix
from fedgraph.graph.value import ClientGraph, Symmetriser

__all__ = [
    "KNOWN_FORMATS",
    "ClientGraph",
    "Normalisation",
    "PropagationMatrix",
    "Symmetriser",
    "from_coordinates",
    "from_distance_list",
    "from_distances",
    "from_labels",
    "from_networkx",
    "from_pyg",
    "knn",
    "read_graph",
    "to_networkx",
    "to_pyg",
    "write_graph",
]
