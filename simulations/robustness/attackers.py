"""Clients that attack, for `fedgraph reproduce defences`: what some of them send is false, and well formed.

One client of ten attacks, or three of ten, by the last digit of its name. Attackers report no metrics, so that means
are those of the honest clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgraph.clients.f3 import F3Client
from fedgraph.clients.sfl import SFLClient
from fedgraph.data.owners import OwnerData
from fedgraph.fusion.owner_models import Embedded
from fedgraph.training import GradientTerm


def attack(names: Sequence[str], tenths: int) -> Tensor:
    """Return which clients attack, bool ``[clients]``."""
    return torch.tensor([int(name[-1]) < tenths for name in names], dtype=torch.bool)


class Attackers(SFLClient):
    """Clients of SFL, or, without a read-out in the request, of a method with one model for all; some attack."""

    tenths: ClassVar[int]

    def falsified(self, start: Tensor, trained: Tensor) -> Tensor:
        """Return what attackers send, ``[clients, parameters]``, in place of what they trained."""
        raise NotImplementedError

    def gradient_term(self) -> GradientTerm | None:
        """Return the distances of SFL, where there is a read-out."""
        return super().gradient_term() if "global" in self.request.shared else None

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Train all, and falsify what attackers send."""
        stacked, numbers = super().train()
        mask = attack(self.request.clients, self.tenths)[:, None]
        trained = stacked["parameters"]
        return {**stacked, "parameters": torch.where(mask, self.falsified(self.models, trained), trained)}, numbers

    def evaluate(self) -> dict[str, Tensor]:
        """Evaluate honest clients."""
        mask = attack(self.request.clients, self.tenths)
        return {name: values.masked_fill(mask, torch.nan) for name, values in super().evaluate().items()}


class Absurd(Attackers):
    """Attackers send 1e6 for every parameter: honest clients that start from there do not diverge at once."""

    def falsified(self, start: Tensor, trained: Tensor) -> Tensor:
        """Return 1e6."""
        return torch.full_like(trained, 1e6)


class Reversed(Attackers):
    """Attackers go ten times as far as training takes them, in the opposite direction."""

    def falsified(self, start: Tensor, trained: Tensor) -> Tensor:
        """Return ``start - 10 (trained - start)``."""
        return start - 10 * (trained - start)


class Opposed(Attackers):
    """Attackers go as far as training takes them, in the opposite direction: no bound on lengths notices."""

    def falsified(self, start: Tensor, trained: Tensor) -> Tensor:
        """Return ``2 start - trained``."""
        return 2 * start - trained


class Absurd10(Absurd):
    """One client of ten."""

    tenths = 1


class Absurd30(Absurd):
    """Three clients of ten."""

    tenths = 3


class Reversed10(Reversed):
    """One client of ten."""

    tenths = 1


class Reversed30(Reversed):
    """Three clients of ten."""

    tenths = 3


class Opposed10(Opposed):
    """One client of ten."""

    tenths = 1


class Opposed30(Opposed):
    """Three clients of ten."""

    tenths = 3


class LongEmbeddings(F3Client):
    """The owner ``patch-0-0`` sends embeddings that are a million times too long."""

    def embed(self, data: OwnerData) -> Embedded:
        """Return the embeddings of all, those of the attacker falsified."""
        embedded = super().embed(data)
        factors = torch.tensor([1e6 if name == "patch-0-0" else 1.0 for name in self.owners])
        return replace(embedded, embeddings=embedded.embeddings * factors[:, None, None])
