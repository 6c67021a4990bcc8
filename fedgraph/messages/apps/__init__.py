"""Messages between strategies and ClientApps that people write themselves, where a node is one client.

>>> from fedgraph.messages.apps import OwnEmbeddings
>>> OwnEmbeddings.of(["a", "b"], [[0.5], [1.5]], labels=["ill", "well"]).classes
('ill', 'well')
"""

from fedgraph.messages.apps.embeddings import UNDECIDED, OwnEmbeddings, WantedEmbeddings, common_classes, restored
from fedgraph.messages.apps.names import client_named

__all__ = ["UNDECIDED", "OwnEmbeddings", "WantedEmbeddings", "client_named", "common_classes", "restored"]
