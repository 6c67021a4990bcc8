"""The update that leaves a node: unchanged, with a little noise, or differentially private."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgraph.clients.engine.base import CohortClient
from fedgraph.models import finite_rows
from fedgraph.privacy.noise import NoiseSettings, release
from fedgraph.support.randomness import generator
from fedgraph.training import ClientState

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class UpdateRelease:
    """Releases of the clients of one request.

    With noise, buffers such as running statistics are returned as received.

    Attributes
    ----------
    client : the client class that answers the request.
    noise : standard deviation of the noise on a client's own parameters; reproducible, for simulations.
    privacy : differentially private noise; a vector is the whole change of a client. Noise comes from the operating
        system, and the node counts its clients' releases in all runs. See :mod:`fedgraph.privacy` for updates.
    """

    client: CohortClient[Any]
    noise: float
    privacy: NoiseSettings | None

    @property
    def changes_nothing(self) -> bool:
        """Whether models leave as they are, with neither kind of noise."""
        return not self.noise and self.privacy is None

    def __call__(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the release of ``after`` ``[clients, models, parameters]``, whose first model is the client's own.

        Raises ReplyError when a client's budget is spent.
        """
        if self.changes_nothing:
            return after
        trained = self.client.cohort.model.layout.num_trainable
        with_noise = self._noisy if self.privacy is None else self._private
        return torch.cat([with_noise(before[..., :trained], after[..., :trained]), before[..., trained:]], dim=2)

    def publishable(self, numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the numbers per client that the server may see; all NaN under privacy."""
        return numbers if self.privacy is None else {name: torch.full_like(v, torch.nan) for name, v in numbers.items()}

    def _noisy(self, before: Tensor, after: Tensor) -> Tensor:
        request, noisy = self.client.request, after.clone()
        for row, name in zip(noisy[:, 0], request.clients, strict=True):
            random = generator(self.client.assignment.seed, "noise on shared parameters", name, request.round)
            row += self.noise * torch.randn(row.shape, generator=random)
        return noisy

    def _private(self, before: Tensor, after: Tensor) -> Tensor:
        assert self.privacy is not None
        node, request = self.client.node, self.client.request
        budget = self.privacy.budget(node.limits.epsilon, node.limits.delta)
        # The server notices by these rounds that a ledger is gone.
        state, number = node.state(request.run, "releases"), min(max(request.round, 0), ClientState.LAST - 1)
        for name in request.clients:
            # A repeated round counts again.
            state.found[name] = node.ledger(request.run, name, "updates").count(budget, request.run, number)
        state.saved = number
        update = (after - before).flatten(1)
        # Divergence depends on the data, and must not be revealed.
        finite = finite_rows(update)
        for name, fine in zip(request.clients, finite.tolist(), strict=True):
            if not fine:
                log.warning("the training of %s diverged in round %d: only noise is sent", name, request.round)
        return before + release(update.where(finite[:, None], torch.zeros(())), self.privacy).view_as(before)
