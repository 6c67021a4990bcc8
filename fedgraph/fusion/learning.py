"""A training step of a fusion network: optimiser and owner dropout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.fusion.fusion_settings import FusionSettings
from fedgraph.fusion.network import FusionNetwork


def make_optimizer(
    network: FusionNetwork, settings: FusionSettings, rate: float, fused: bool = False
) -> torch.optim.Optimizer:
    """Return Adam, or AdamW where the settings have a weight decay, which is that of weights only."""
    if settings.weight_decay == 0:
        return torch.optim.Adam([each for each in network.parameters() if each.requires_grad], lr=rate, fused=fused)
    weights, others = network.trained()
    groups = [{"params": weights, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, fused=fused)


def learn(
    network: FusionNetwork,
    optimizer: torch.optim.Optimizer,
    embeddings: Tensor,
    present: Tensor,
    labels: Tensor,
    random: torch.Generator,
    owner_dropout: float = 0.0,
) -> Tensor:
    """Take one step of the optimiser on the mean loss of some samples.

    Accumulates the gradient of embeddings that require it, as ``Tensor.backward``. Returns the loss before the step, a
    scalar.

    Parameters
    ----------
    network : FusionNetwork
        Updated in place.
    optimizer : torch.optim.Optimizer
        Optimiser of the network.
    embeddings : Tensor
        ``[batch, owners, size]``.
    present : Tensor
        bool ``[batch, owners]``.
    labels : Tensor
        int64 ``[batch]``.
    random : torch.Generator
        Source of random numbers.
    owner_dropout : float
        Probability of dropping each present owner from a training sample.
    """
    if owner_dropout:
        embeddings, present = network.dropped(embeddings, present, owner_dropout, random)
    logits = network(embeddings, present, random)
    loss = functional.cross_entropy(logits, labels) + network.penalty()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    network.constrain()
    return loss.detach()
