"""Draws of single edges from the graphs, and iterates of the alignment, that fusion is trained with."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.fusion import alignment as alignments
from fedgraph.fusion.graphs import BernoulliGraph, GumbelGraph, InverseCdfGraph
from fedgraph.simulations.f3.theory.references import Reference
from fedgraph.support.threads import available_cores


def icdf_draws(reference: Reference, theta: float, tau: float, count: int, generator: torch.Generator) -> Tensor:
    """Draws of z of eq. 9, ``[count]``."""
    graph = InverseCdfGraph(
        2, torch.Generator(), tau, available_cores(), reference=reference.name, options=reference.options
    )
    return _edges(graph, theta, count, generator)


def gumbel_draws(theta: float, tau: float, count: int, generator: torch.Generator) -> Tensor:
    """Draws of y_1 of eq. 12, ``[count]``."""
    return _edges(GumbelGraph(2, torch.Generator(), tau, available_cores()), theta, count, generator)


@torch.no_grad()
def _edges(graph: BernoulliGraph, theta: float, count: int, generator: torch.Generator) -> Tensor:
    """The edge between two owners, read off the product that the network's layers are made of.

    With an edge z, both owners have degree 1 + z. Of the features (1, 0) the product is (1, z) / (1 + z).
    """
    graph.theta.fill_(theta)
    features = torch.tensor([1.0, 0.0]).expand(count, 1, 2).contiguous()
    product = graph.propagate(features, torch.ones(count, 2), generator)[:, 0]
    return product[:, 1] / product[:, 0]


@torch.no_grad()
def start_of_alignment(
    noise: Tensor, parameterisation: alignments.Parameterisation, temperature: float = 1.0
) -> Tensor:
    """``log K0`` of M = ``noise`` ``[size, size]``, float64."""
    size = len(noise)
    alignment = alignments.HardAlignment(
        torch.tensor([size]), size, size, torch.Generator(), parameterisation, temperature=temperature
    ).double()
    alignment.matrix.copy_(noise[None])
    return alignment.log_start()[0]
