"""Such predictions on secret shares (Ma, Hoang, Chen 2023, section 5)."""

from __future__ import annotations

from fedgraph.algorithms import f3_secret
from fedgraph.strategies.engine.phased_method import PhasedMethod


class F3Secret(PhasedMethod):
    """See :class:`fedgraph.algorithms.f3_secret.F3Secret`; ``fedgraph predict --secret`` runs it."""

    algorithm_class = f3_secret.F3Secret
    default_client = "fedgraph.clients.f3_secret:SecretClient"
