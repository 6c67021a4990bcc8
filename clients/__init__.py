"""Client side of methods: a mod, loss terms and embeddings for any ClientApp, and the client classes of the engine.

from fedgraph.clients import client_name, proximity

app = ClientApp(mods=[client_name])
...
loss = criterion(model(x), y) + proximity(model, msg)        # within @app.train()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Waits for another thread that is importing it: attributes of a partially imported package may be missing.
import fedgraph  # noqa: F401

if TYPE_CHECKING:
    from fedgraph.clients.mods import client_name
    from fedgraph.clients.owner_app import embeddings, penultimate
    from fedgraph.clients.table_app import table_client_app
    from fedgraph.clients.terms import LossTerms, Peers, alignment, loss_terms, proximity

_HOMES = {
    "LossTerms": "terms",
    "Peers": "terms",
    "alignment": "terms",
    "client_name": "mods",
    "embeddings": "owner_app",
    "loss_terms": "terms",
    "penultimate": "owner_app",
    "proximity": "terms",
    "table_client_app": "table_app",
}

__all__ = [
    "LossTerms",
    "Peers",
    "alignment",
    "client_name",
    "embeddings",
    "loss_terms",
    "penultimate",
    "proximity",
    "table_client_app",
]


def __getattr__(name: str) -> Any:
    """Import lazily: strategies do not need these modules."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedgraph.clients' has no attribute '{name}'")
    return getattr(import_module(f"fedgraph.clients.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
