"""Vertical federated learning with gradients, the baseline of F3 (rows L and M of table 2 of Ma, Hoang, Chen 2023)."""

from __future__ import annotations

from fedgraph.algorithms import vfl
from fedgraph.strategies.engine.phased_method import PhasedMethod


class Vertical(PhasedMethod):
    """See :class:`fedgraph.algorithms.vfl.Vertical`."""

    algorithm_class = vfl.Vertical
    default_client = "fedgraph.clients.vfl:VerticalClient"
