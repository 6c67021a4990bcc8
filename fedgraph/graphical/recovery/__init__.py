"""Graph recovery: direct dependencies between the features of a client's table.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.1, which allows any method that
returns an undirected graph.
"""

from fedgraph.graphical.recovery.ges import equivalence_search, parents_of
from fedgraph.graphical.recovery.recover import UnitTable, recover
from fedgraph.graphical.recovery.settings import RecoverySettings
from fedgraph.graphical.recovery.summed import UnitSums, recover_from_sums, with_noise

__all__ = [
    "RecoverySettings",
    "UnitSums",
    "UnitTable",
    "equivalence_search",
    "parents_of",
    "recover",
    "recover_from_sums",
    "with_noise",
]
