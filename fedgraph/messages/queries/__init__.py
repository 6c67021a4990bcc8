"""Queries to custom ClientApps: embeddings for F3, personal models of FedNGM.

>>> from fedgraph.messages.queries import OwnEmbeddings
>>> OwnEmbeddings.of(["a", "b"], [[0.5], [1.5]], labels=["ill", "well"]).classes
('ill', 'well')
"""

from fedgraph.messages.queries.embeddings import UNDECIDED, OwnEmbeddings, WantedEmbeddings, common_classes, restored
from fedgraph.messages.queries.personal import PERSONAL, ask_for_personal_models, is_for_personal_models, personal_model

__all__ = [
    "PERSONAL",
    "UNDECIDED",
    "OwnEmbeddings",
    "WantedEmbeddings",
    "ask_for_personal_models",
    "common_classes",
    "is_for_personal_models",
    "personal_model",
    "restored",
]
