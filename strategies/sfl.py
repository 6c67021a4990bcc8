"""SFL in any Flower app: the server aggregates each client's model over the client graph (Chen et al. 2022)."""

from __future__ import annotations

from typing import Any

from fedgraph.algorithms import sfl, sfl_cold_start, sfl_star
from fedgraph.strategies.engine.flower import FlowerStrategy


class SFL(FlowerStrategy):
    """Structured federated learning over a client graph (:class:`fedgraph.algorithms.sfl.SFL`), for any ClientApp.

    ``SFL(graph, alpha=0.3, hops=2)``; keywords are those of :class:`FlowerStrategy` and of
    :class:`~fedgraph.algorithms.sfl.SFLSettings`. Where ``lambda_global`` or ``lambda_personal`` is above 0, clients
    add ``fedgraph.clients.proximity(model, msg)`` to their loss.
    """

    algorithm_class = sfl.SFL
    default_client = "fedgraph.clients.sfl:SFLClient"
    term_to_add = "proximity(model, msg)"

    def terms(self, number: int) -> dict[str, Any]:
        """Return the weights of the distances, and how they are measured."""
        settings = self.algorithm.settings
        if not (settings.lambda_global or settings.lambda_personal):
            return {}
        weights = {"lambda-global": settings.lambda_global, "lambda-personal": settings.lambda_personal}
        return {**weights, "distance": settings.distance}


class SFLPer(SFL):
    """SFL of the representation, with a personal last layer."""

    algorithm_class = sfl.SFLPer
    default_client = "fedgraph.clients.sfl:SFLClient"


class SFLLG(SFL):
    """SFL of the last layer, with personal representations."""

    algorithm_class = sfl.SFLLG
    default_client = "fedgraph.clients.sfl:SFLClient"


class SFLFineTuning(SFL):
    """SFL, whose clients of the engine are measured after fine-tuning."""

    algorithm_class = sfl.SFLFineTuning
    default_client = "fedgraph.clients.sfl:SFLFineTuningClient"


class SFLStar(SFL):
    """SFL over a learned graph; see :class:`fedgraph.algorithms.sfl_star.SFLStar`."""

    algorithm_class = sfl_star.SFLStar
    default_client = "fedgraph.clients.sfl:SFLClient"


class SFLColdStart(SFL):
    """SFL for clients with hardly any data; see :class:`fedgraph.algorithms.sfl_cold_start.SFLColdStart`."""

    algorithm_class = sfl_cold_start.SFLColdStart
    default_client = "fedgraph.clients.sfl_cold_start:SFLColdStartClient"
