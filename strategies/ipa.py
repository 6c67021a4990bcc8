"""IPA in any Flower app: peers with aligned models (Gorbett et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from fedgraph.algorithms import ModelRows, ipa, matrix
from fedgraph.graph import ClientGraph
from fedgraph.messages import from_record
from fedgraph.strategies.engine.flower import FlowerStrategy
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import value_at


class IPA(FlowerStrategy):
    """Iterative parameter alignment (:class:`fedgraph.algorithms.ipa.IPA`), for any ClientApp.

    Clients add ``fedgraph.clients.alignment(model, msg)`` to their loss, or use ``fedgraph.clients.Peers``, whose reply
    also has the updated peers. A peer that has not had a turn yet counts as many examples as the others do on average.

    Parameters
    ----------
    initial_model : callable, optional
        Returns an ArrayRecord with the initial model of a client, given its name, for ``initialisation = "own"``; by
        default all start with ``initial_arrays``.
    **keywords
        Those of :class:`FlowerStrategy` and of :class:`~fedgraph.algorithms.ipa.IPASettings`, except for ``noise`` and
        ``privacy``.
    """

    algorithm_class = ipa.IPA
    needs_names = True
    assumes_mean_counts = True  # others align with a peer before its first turn
    term_to_add = "alignment(model, msg)"

    def __init__(
        self,
        graph: ClientGraph | None = None,
        *,
        initial_model: Callable[[str], ArrayRecord] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(graph, **keywords)
        if self.algorithm.settings.noise or self.algorithm.settings.privacy is not None:
            raise ExperimentError(
                "clients of an app send what they have trained as it is: noise and privacy are only for experiments"
            )
        self._initial_model = initial_model

    def initial_of(self, name: str) -> Tensor | None:
        """Return a client's own initial model."""
        if self._initial_model is None:
            return None
        return matrix(ModelRows([from_record(self._initial_model(name))]))[0]

    def terms(self, number: int) -> dict[str, Any]:
        """Return the weight and the kind of distances in this round."""
        settings = self.algorithm.settings
        reported = {"power": settings.power, "lambda-scale": settings.lambda_scale}
        moves = bool(self.algorithm.moves_after_evaluation)
        return {**reported, "lambda-alignment": value_at(settings.lambda_alignment, number), "moves-others": moves}
