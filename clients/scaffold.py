"""SCAFFOLD on the client: SGD corrected by control variates (Karimireddy et al. 2020, algorithm 1, option II)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraph.clients.engine.base import CohortClient
from fedgraph.models import finite_rows
from fedgraph.support.settings import S
from fedgraph.training import GradientTerm, TrainResult, TrainSettings, learning_rates

_PURPOSE = "control-variates"


class ScaffoldClient(CohortClient[S]):
    """Steps along g_i(y) + c - c_i, then c_i <- c_i - c + (x - y_i) / (sum of the learning rates of its steps).

    With momentum the divisor is the total weight of the gradients in ``x - y_i``, so c_i remains a mean of gradients,
    clipped ones with ``clip-norm``. A client that did not train, or diverged, keeps its c_i.
    """

    @classmethod
    def refuses_function(cls, method: Mapping[str, Any]) -> str:
        """See :class:`CohortClient`."""
        return "its control variates follow from the steps of the optimiser"

    sends: ClassVar[tuple[str, ...]] = (
        *CohortClient.sends,
        "each client's control variate: the mean of its gradients in the round",
    )

    @cached_property
    def controls(self) -> Tensor:
        """c_i of each client, ``[clients, trainable]``; zero before its first training."""
        c = self.request.shared["control"]
        return self.recall(_PURPOSE, {"control": torch.zeros_like(c)})["control"]

    def gradient_term(self) -> GradientTerm:
        """Return c - c_i."""
        correction = (self.request.shared["control"] - self.controls).to(self.cohort.device)
        return lambda v, clients, batch_weight: correction[clients]

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train from x; return y_i and the next c_i."""
        result = self.train_from(self.start(), self.gradient_term())
        return {"parameters": result.parameters, "control": self.control_on(result)}, {"loss": result.loss}

    def control_on(self, result: TrainResult) -> Tensor:
        """Compute and remember the next c_i ``[clients, trainable]``."""
        x, c = self.models, self.request.shared["control"]
        cohort = self.cohort
        weight = gradient_weight(
            cohort.settings, result.num_examples, result.steps, self.request.round, cohort.least_examples
        )
        way = (x - result.parameters)[:, : len(c)]
        controls = self.controls - c + way / weight[:, None].float()
        usable = finite_rows(controls)  # 0 / 0 for clients without training
        controls = torch.where(usable[:, None], controls, self.controls)
        self.remember(_PURPOSE, {"control": controls})
        return controls


def gradient_weight(settings: TrainSettings, num_examples: Tensor, steps: Tensor, round: int, least: int = 1) -> Tensor:
    """Compute the total weight of the gradients in a client's change ``x - y`` in a round of SGD.

    ``x - y = sum_k w_k g_k`` is linear in the gradients, and ``sum_k w_k`` is returned: learning rate times ``||a||_1``
    of Wang et al., Tackling the Objective Inconsistency Problem (NeurIPS 2020), section 4. The k-th velocity is
    ``sum_(j <= k) momentum^(k - j) g_j``, whose weights sum to ``(1 - momentum^k) / (1 - momentum)``; Nesterov's
    method steps along ``g_k`` plus ``momentum`` times it. Requires new moments. Returns float64 ``[clients]``.

    Parameters
    ----------
    num_examples : training examples, int64 ``[clients]``.
    steps : number of minibatches of each client, int64 ``[clients]``.
    round : round, for the learning rate.
    least : minimum number of examples of a minibatch, as ``Cohort.least_examples``.
    """
    number = torch.arange(1, int(steps.max()) + 1, dtype=torch.float64)[:, None]
    momentum = settings.momentum
    per_step = (1 - momentum**number) / (1 - momentum)
    if settings.nesterov:
        per_step = 1 + momentum * per_step
    rates = learning_rates(settings, num_examples, round, least)
    rate = settings.rate(round) if rates is None else rates.double()
    return (rate * per_step * (number <= steps)).sum(0)
