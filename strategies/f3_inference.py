"""Predictions of new samples by a fusion model that a run of F3 has trained (Ma, Hoang, Chen 2023)."""

from __future__ import annotations

from fedgraph.algorithms import f3_inference
from fedgraph.strategies.engine.phased_method import PhasedMethod


class F3Inference(PhasedMethod):
    """See :class:`fedgraph.algorithms.f3_inference.F3Inference`; ``fedgraph predict`` runs it."""

    algorithm_class = f3_inference.F3Inference
    default_client = "fedgraph.clients.f3:F3Client"
