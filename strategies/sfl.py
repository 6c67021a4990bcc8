"""SFL in any Flower app: the server aggregates each client's model over the client graph (Chen et al. 2022)."""

from __future__ import annotations

from typing import Any

from fedgraph.algorithms import sfl, sfl_star
from fedgraph.graph import ClientGraph
from fedgraph.strategies.engine.flower import FlowerStrategy
from fedgraph.support.errors import ExperimentError


class SFL(FlowerStrategy):
    """Structured federated learning over a client graph (:class:`fedgraph.algorithms.sfl.SFL`), for any ClientApp.

    Every client's next model is ``(1 - alpha)`` of its own and ``alpha`` of the mean over ``hops`` steps along the
    graph.

    Parameters
    ----------
    graph : ClientGraph
        Over the names of the clients.
    alpha : float, default 1.0
        Share of the graph; 0 leaves every client its own model.
    hops : int, default 1
        Number of steps along the graph in a round; 3 in the paper.
    weighting : {"none", "examples"}
        Whether clients with more training examples count more.
    everybody : float, default 0.0
        Weight of the mean over all clients, relative to 1 for a client's neighbourhood.
    lambda_global, lambda_personal : float, default 0.0
        Weights of the distances that clients add to their loss by ``fedgraph.clients.proximity(model, msg)``.
    personal_layers : sequence of str
        Names or patterns (``"head.*"``) of layers that every client has for itself. In an app they travel with the
        model, and are not averaged.
    **keywords
        Others of :class:`~fedgraph.algorithms.sfl.SFLSettings` except for ``start`` and ``released``, and those of
        :class:`FlowerStrategy`.
    """

    algorithm_class = sfl.SFL
    term_to_add = "proximity(model, msg)"

    def __init__(self, graph: ClientGraph | None = None, **keywords: Any) -> None:
        super().__init__(graph, **keywords)
        if self.algorithm.settings.start != "personalised":
            raise ExperimentError(
                "clients of an app train from their personalised models: start and released are only for experiments"
            )

    def terms(self, number: int) -> dict[str, Any]:
        """Return the weights and the kind of distances."""
        settings = self.algorithm.settings
        if not (settings.lambda_global or settings.lambda_personal):
            return {}
        weights = {"lambda-global": settings.lambda_global, "lambda-personal": settings.lambda_personal}
        return {**weights, "distance": settings.distance}


class SFLStar(SFL):
    """SFL over a learned graph; see :class:`fedgraph.algorithms.sfl_star.SFLStar`."""

    algorithm_class = sfl_star.SFLStar
