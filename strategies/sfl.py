"""SFL in any Flower app: the server aggregates each client's model over the client graph (Chen et al. 2022)."""

from __future__ import annotations

from fedgraph.algorithms import sfl, sfl_cold_start, sfl_star
from fedgraph.strategies.engine.flower import FlowerStrategy


class SFL(FlowerStrategy):
    """Structured federated learning; see :class:`fedgraph.algorithms.sfl.SFL`."""

    algorithm_class = sfl.SFL
    default_client = "fedgraph.clients.sfl:SFLClient"


class SFLPer(FlowerStrategy):
    """SFL of the representation, with a personal last layer."""

    algorithm_class = sfl.SFLPer
    default_client = "fedgraph.clients.sfl:SFLClient"


class SFLLG(FlowerStrategy):
    """SFL of the last layer, with personal representations."""

    algorithm_class = sfl.SFLLG
    default_client = "fedgraph.clients.sfl:SFLClient"


class SFLFineTuning(FlowerStrategy):
    """SFL, whose clients of the engine are measured after fine-tuning."""

    algorithm_class = sfl.SFLFineTuning
    default_client = "fedgraph.clients.sfl:SFLFineTuningClient"


class SFLStar(FlowerStrategy):
    """SFL over a learned graph; see :class:`fedgraph.algorithms.sfl_star.SFLStar`."""

    algorithm_class = sfl_star.SFLStar
    default_client = "fedgraph.clients.sfl:SFLClient"


class SFLColdStart(FlowerStrategy):
    """SFL for clients with hardly any data; see :class:`fedgraph.algorithms.sfl_cold_start.SFLColdStart`."""

    algorithm_class = sfl_cold_start.SFLColdStart
    default_client = "fedgraph.clients.sfl_cold_start:SFLColdStartClient"
