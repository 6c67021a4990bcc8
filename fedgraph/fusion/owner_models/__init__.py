"""The owners' own models, trained once and frozen, which compute embeddings (F3, section 2).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from fedgraph.fusion.owner_models.local_model import ModelStore, check_not_raw
from fedgraph.fusion.owner_models.single import SingleOwner
from fedgraph.fusion.owner_models.stage import Embedded, LocalModelSettings, LocalStage, StackedOwners

__all__ = [
    "Embedded",
    "LocalModelSettings",
    "LocalStage",
    "ModelStore",
    "SingleOwner",
    "StackedOwners",
    "check_not_raw",
]
