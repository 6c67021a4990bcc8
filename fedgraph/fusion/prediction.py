"""Predictions of a fusion network, averaged over draws of the consensus graph, and their deviation (F3, section 5).

All samples share the drawn graphs, so a prediction does not depend on the other samples or their order. The paper draws
graphs per sample; the distribution of each sample's average is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedgraph.fusion.network import FusionNetwork
from fedgraph.support.randomness import generator
from fedgraph.support.threads import pinned_threads

Average = Literal["probabilities", "logits"]
"""The quantity to average over draws of the graph."""

_BLOCK_SAMPLES = 512


@dataclass(frozen=True)
class Prediction:
    """Predictions of a fusion network for some samples.

    Attributes
    ----------
    probabilities : Tensor
        float32 ``[samples, classes]``, the mean over draws, or those of mean logits.
    deviation : Tensor
        float32 ``[samples, classes]``, population standard deviation of probabilities over draws; 0 if deterministic.
    """

    probabilities: Tensor
    deviation: Tensor


def predict(
    network: FusionNetwork,
    embeddings: Tensor,
    present: Tensor,
    draws: int = 10,
    seed: int = 0,
    average: Average = "probabilities",
) -> Prediction:
    """Predict in evaluation mode, with one intra-op thread.

    Returns a Prediction on the CPU.

    Parameters
    ----------
    network : FusionNetwork
        On any device; its training mode is restored afterwards.
    embeddings : Tensor
        float32 ``[samples, owners, size]``.
    present : Tensor
        bool ``[samples, owners]``.
    draws : int
        Number of graphs, each keyed by ``seed`` and its position.
    seed : int
        Seed of the graphs.
    average : {"probabilities", "logits"}
        The quantity to average over the graphs.
    """
    return averaged(compute_logits(network, embeddings, present, draws, seed), average)


def graph_draws(draws: int, seed: int) -> list[torch.Generator]:
    """Return single-use generators of the graphs over which predictions are averaged."""
    return [generator(seed, "graph draw", draw) for draw in range(draws)]


def averaged(logits: Tensor, average: Average = "probabilities") -> Prediction:
    """Average logits ``[draws, samples, classes]`` to a prediction."""
    # The softmax along a short last axis is ten times slower.
    probabilities = logits.mT.contiguous().softmax(1).mT
    mean = probabilities.mean(0)
    deviation = (probabilities - mean).square().mean(0).sqrt()
    return Prediction(mean if average == "probabilities" else logits.mean(0).softmax(-1), deviation)


def compute_logits(network: FusionNetwork, embeddings: Tensor, present: Tensor, draws: int, seed: int) -> Tensor:
    """Compute logits ``[draws, samples, classes]`` in blocks of samples."""
    device = next(network.parameters()).device
    before = network.training
    network.eval()
    try:
        with torch.no_grad(), pinned_threads(1):
            blocks = []
            for some, those in zip(embeddings.split(_BLOCK_SAMPLES), present.split(_BLOCK_SAMPLES), strict=True):
                rows, there = some.to(device), those.to(device)
                blocks.append(network.draws(network.scaled(rows, there), there, graph_draws(draws, seed)))
    finally:
        network.train(before)
    return torch.cat(blocks, 1).cpu()
