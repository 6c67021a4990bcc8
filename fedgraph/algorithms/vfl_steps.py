"""Exchanges of vertical federated learning: embeddings of a minibatch up, gradients down with the next request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.phases import Phase, Query
from fedgraph.algorithms.vfl_messages import StepReply, StepRequest
from fedgraph.data.owners import SAMPLE_SPLITS
from fedgraph.fusion import JoinedSamples
from fedgraph.support.files import State


class VerticalSteps:
    """Requests embeddings by owners' current models; gradients are sent with the next request.

    Parameters
    ----------
    joined : the samples of each owner; all tensors here have its order of owners.

    Attributes
    ----------
    lost : owners that left the run, whose embeddings are then 0.
    bytes_per_owner : bytes of embeddings and gradients so far, per owner.
    training_bytes_per_owner : the same without test samples, which are only embedded to evaluate the best epoch.
    """

    def __init__(self, joined: JoinedSamples) -> None:
        self._joined = joined
        self._position = {owner: place for place, owner in enumerate(joined.owners)}
        self._step, self._keep_from = 0, 1
        self._update: tuple[str, ...] = ()
        self._size = int(joined.sizes.max())
        self._gradient = torch.zeros(0, len(joined.owners), self._size)
        self.bytes_per_owner = self.training_bytes_per_owner = 0
        self.lost: list[str] = []

    def present(self, rows: Tensor) -> Tensor:
        """Return which owners have samples and still take part, bool ``[samples, owners]``."""
        return self._joined.present[rows] & torch.tensor([owner not in self.lost for owner in self._joined.owners])

    def state(self) -> State:
        """Return the state that the next steps depend on; owners keep theirs for continuing from here."""
        self._keep_from = self._step + 1
        return {
            "step": self._step,
            "update": list(self._update),
            "gradient": self._gradient,
            "lost": self.lost,
            "bytes_per_owner": self.bytes_per_owner,
            "training_bytes_per_owner": self.training_bytes_per_owner,
        }

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        self._step, self._keep_from = state["step"], state["step"] + 1
        self._update, self._gradient = tuple(state["update"]), state["gradient"]
        self.bytes_per_owner = state["bytes_per_owner"]
        self.training_bytes_per_owner = state["training_bytes_per_owner"]
        self.lost = list(state["lost"])

    def send_back(self, rows: Tensor, gradient: Tensor) -> None:
        """Send the gradient ``[samples, owners, size]`` of ``rows``, embedded last, with the next request."""
        self._update = self._keys(rows)
        self._gradient = gradient * self.present(rows)[..., None]

    def embed(self, rows: Tensor, training: bool) -> Phase[Tensor]:
        """Run one exchange: return embeddings ``[samples, owners, size]`` of some samples.

        Owners first update their models, if a gradient is sent. Embeddings of an owner without a usable answer are 0
        from then on, and ``present`` is False.
        """
        self._step += 1
        keys, sizes = self._keys(rows), self._joined.sizes

        def request(owners: tuple[str, ...]) -> StepRequest:
            return StepRequest(
                owners=owners,
                step=self._step,
                update=self._update,
                gradient=self._gradient[:, self._places(owners)].transpose(0, 1),
                embed=keys,
                training=training,
                keep_from=self._keep_from,
            )

        def read(owners: tuple[str, ...], content: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
            shape = (len(owners), len(rows), int(sizes[self._places(owners)].max()))
            return dict(zip(owners, StepReply.unpack(content, owners, shape).embeddings, strict=True)), {}

        found: Mapping[str, Tensor] = yield Query(request, read, "train", self._step)
        self.lost = [owner for owner in self._joined.owners if owner not in found]
        result = torch.zeros(len(rows), len(self._joined.owners), self._size)
        for owner, embeddings in found.items():
            result[:, self._position[owner], : embeddings.shape[1]] = embeddings
        tested = int((self._joined.split[rows] == SAMPLE_SPLITS.index("test")).sum())
        self.bytes_per_owner += 4 * self._size * (len(rows) + len(self._update))
        self.training_bytes_per_owner += 4 * self._size * (len(rows) - tested + len(self._update))
        self._update, self._gradient = (), self._gradient[:0]
        return result * self.present(rows)[..., None]

    def _places(self, owners: tuple[str, ...]) -> Tensor:
        return torch.tensor([self._position[owner] for owner in owners])

    def _keys(self, rows: Tensor) -> tuple[str, ...]:
        return tuple(self._joined.keys[row] for row in rows.tolist())
