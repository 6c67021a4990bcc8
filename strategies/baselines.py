"""Baselines in any Flower app: mixing over an inferred graph, by contribution, by distance, or by layer."""

from __future__ import annotations

from fedgraph.algorithms import cgsv, global_model, pfedgraph
from fedgraph.strategies.engine.flower import FlowerStrategy


class PFedGraph(FlowerStrategy):
    """Mixtures over an inferred graph; see :class:`fedgraph.algorithms.pfedgraph.PFedGraph`.

    Clients train as they do, without the term of ``lambda_similarity``, which is only for experiments.
    """

    algorithm_class = pfedgraph.PFedGraph


class CGSV(FlowerStrategy):
    """Gradient rewards by contribution; see :class:`fedgraph.algorithms.cgsv.CGSV`."""

    algorithm_class = cgsv.CGSV


class FedAtt(FlowerStrategy):
    """Attentive aggregation; see :class:`fedgraph.algorithms.global_model.FedAtt`."""

    algorithm_class = global_model.FedAtt


class FedPer(FlowerStrategy):
    """FedAvg with a personal last layer; see :class:`fedgraph.algorithms.global_model.FedPer`."""

    algorithm_class = global_model.FedPer


class LGFedAvg(FlowerStrategy):
    """FedAvg of the last layer; see :class:`fedgraph.algorithms.global_model.LGFedAvg`."""

    algorithm_class = global_model.LGFedAvg
