"""Server side of methods: a Flower strategy of each method for any app, and ``engine/`` for fedgraph's own clients.

from fedgraph import ClientGraph
from fedgraph.strategies import SFL

graph = ClientGraph.from_edges([("mercy", "saint-luke", 1.0), ("saint-luke", "county", 0.5)])
result = SFL(graph, alpha=0.3, hops=2).start(grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=10)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Waits for another thread that is importing it: attributes of a partially imported package may be missing.
import fedgraph  # noqa: F401

if TYPE_CHECKING:
    from fedgraph.strategies.baselines import CGSV, FedAtt, FedPer, LGFedAvg, PFedGraph
    from fedgraph.strategies.f3 import F3
    from fedgraph.strategies.fedngm import FedNGM
    from fedgraph.strategies.ipa import IPA
    from fedgraph.strategies.sfl import SFL, SFLStar

_HOMES = {
    "SFL": "sfl",
    "SFLStar": "sfl",
    "IPA": "ipa",
    "F3": "f3",
    "FedNGM": "fedngm",
    "PFedGraph": "baselines",
    "FedAtt": "baselines",
    "CGSV": "baselines",
    "FedPer": "baselines",
    "LGFedAvg": "baselines",
}

__all__ = ["CGSV", "F3", "IPA", "SFL", "FedAtt", "FedNGM", "FedPer", "LGFedAvg", "PFedGraph", "SFLStar"]


def __getattr__(name: str) -> Any:
    """Import lazily; strategies of Flower have their own names."""
    if name in _HOMES:
        return getattr(import_module(f"fedgraph.strategies.{_HOMES[name]}"), name)
    if not name.startswith("_"):
        stock = import_module("flwr.serverapp.strategy")
        if name in stock.__all__:
            return getattr(stock, name)
    raise AttributeError(f"module 'fedgraph.strategies' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
