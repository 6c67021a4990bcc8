"""Consensus graphs of a fusion network: random, nearest-neighbour or given (F3, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgraph.fusion.graphs import BernoulliGraph, FeatureNeighbours


class Consensus(nn.Module):
    """Base class of graphs over the owners, normalised as by Kipf and Welling: ``D^-1/2 A D^-1/2``, A with self loops.

    ``stochastic``: whether it is drawn again for every use; ``settles``: whether evaluation requires :meth:`settle`.
    """

    stochastic = False
    settles = False

    def propagate(
        self, aligned: Tensor, features: Tensor, there: Tensor, counted: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Multiply features by the normalised graph; return also the weights of owners in sums over its rows.

        aligned  : aligned embeddings, ``[batch, owners, aligned]``.
        features : transposed, ``[batch, columns, owners]``; 0 for absent owners.
        there : float ``[batch, owners]``, the rows to sum.
        counted : float ``[batch, owners]``, owners that count towards degrees (at least 1).

        Returns the transposed product ``[batch, columns, owners]`` and the weights ``[batch, 1, owners]``.
        """
        return normalised_products(self.adjacency(aligned, there), features, there, counted)

    def adjacency(self, aligned: Tensor, there: Tensor) -> Tensor:
        """Return the graph of a batch without self loops, ``[owners, owners]``; rows weight the owners in columns."""
        raise NotImplementedError

    def graphs(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the evaluation graphs without self loops, ``[draws, owners, owners]``; one if deterministic."""
        return self.expected()[None]

    def settle(self, aligned: Tensor, there: Tensor) -> None:
        """Compute the evaluation graph from all training samples."""

    def constrain(self) -> None:
        """Project parameters back into their range."""

    def expected(self) -> Tensor:
        """Return the graph for inspection, ``[owners, owners]`` without self loops."""
        raise NotImplementedError


class _LearnedConsensus(Consensus):
    """Graphs with learned edge probabilities."""

    def __init__(self, graph: BernoulliGraph) -> None:
        super().__init__()
        self.graph = graph

    def constrain(self) -> None:
        """See :class:`Consensus`."""
        self.graph.constrain()

    def expected(self) -> Tensor:
        """Return the edge probabilities."""
        return self.graph.expected().detach()


class DrawnConsensus(_LearnedConsensus):
    """Random graphs with learned edge probabilities.

    per_sample : in training, draw a graph per sample; otherwise one per batch, as always in evaluation.
    """

    stochastic = True

    def __init__(self, graph: BernoulliGraph, per_sample: bool) -> None:
        super().__init__(graph)
        self.per_sample = per_sample

    def propagate(
        self, aligned: Tensor, features: Tensor, there: Tensor, counted: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """See :class:`Consensus`."""
        shared = not (self.training and self.per_sample)
        # The graph is symmetric: a sum over rows is a product with the indicator of these rows.
        both = self.graph.propagate(torch.cat([features, there[:, None]], 1), counted, generator, shared)
        return both[:, :-1], both[:, -1:]

    def graphs(self, generators: Sequence[torch.Generator]) -> Tensor:
        """See :class:`Consensus`; the graphs that :meth:`propagate` uses with the same generators."""
        return self.graph.shared(generators)


class NeighbourConsensus(Consensus):
    """Nearest neighbours by learned features: of the batch in training, of all training samples in evaluation."""

    settles = True

    def __init__(self, graph: FeatureNeighbours) -> None:
        super().__init__()
        self.graph = graph

    def adjacency(self, aligned: Tensor, there: Tensor) -> Tensor:
        """See :class:`Consensus`."""
        found: Tensor = self.graph(aligned, there)
        return found

    def settle(self, aligned: Tensor, there: Tensor) -> None:
        """See :class:`Consensus`."""
        self.graph.settle(aligned, there)

    @torch.no_grad()
    def expected(self) -> Tensor:
        """Return the graph of the training samples."""
        return self.graph.graph(self.graph.similarity)


class GivenConsensus(Consensus):
    """A fixed, possibly asymmetric graph; self loops are set to 1."""

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights.detach().float().clone().fill_diagonal_(0))

    def adjacency(self, aligned: Tensor, there: Tensor) -> Tensor:
        """See :class:`Consensus`."""
        return self.weights

    def expected(self) -> Tensor:
        """Return the given graph."""
        return self.weights


class ExpectedConsensus(_LearnedConsensus):
    """Learned edge probabilities as weights of one deterministic graph for all samples (not from the paper)."""

    def adjacency(self, aligned: Tensor, there: Tensor) -> Tensor:
        """See :class:`Consensus`."""
        return self.graph.expected()


def normalised_products(adjacency: Tensor, features: Tensor, there: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Compute :meth:`Consensus.propagate` for one dense graph without self loops, ``[owners, owners]``."""
    degrees = counted @ adjacency.T + counted
    scale = degrees.clamp(min=1).rsqrt()[:, None]
    scaled = features * scale
    rows = there[:, None] * scale
    return (scaled @ adjacency.T + scaled) * scale, (rows @ adjacency + rows) * scale


def normalised(graphs: Tensor, counted: Tensor) -> Tensor:
    """Return ``D^-1/2 A D^-1/2``, ``[draws, patterns, owners, owners]``, of graphs without self loops.

    graphs : ``[draws, owners, owners]``. counted : float ``[patterns, owners]``, owners that count towards degrees.
    """
    looped = graphs + torch.eye(graphs.shape[1], dtype=graphs.dtype, device=graphs.device)
    scale = (counted @ looped.mT).clamp(min=1).rsqrt()
    return looped[:, None] * scale[..., None] * scale[..., None, :]
