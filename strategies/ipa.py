"""IPA in any Flower app: peers keep their own models and pull each other's together (Gorbett et al. 2023)."""

from __future__ import annotations

from fedgraph.algorithms import ipa
from fedgraph.strategies.engine.flower import FlowerStrategy


class IPA(FlowerStrategy):
    """Iterative parameter alignment; see :class:`fedgraph.algorithms.ipa.IPA`."""

    algorithm_class = ipa.IPA
    default_client = "fedgraph.clients.ipa:IPAClient"
