"""Consensus graphs of a fusion network: drawn, of nearest neighbours, or given (F3, section 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgraph.fusion.graphs import BernoulliGraph, FeatureNeighbours


class Consensus(nn.Module):
    """A graph over the owners, normalised as by Kipf and Welling: ``D^-1/2 A D^-1/2`` with self loops in A.

    ``stochastic``: whether it is redrawn for every use; ``settles``: whether evaluation needs :meth:`settle`.
    """

    stochastic = False
    settles = False

    def propagate(
        self, aligned: Tensor, features: Tensor, there: Tensor, counted: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the product of the normalised graph with features, and the weights of owners in sums over its rows.

        aligned  : aligned embeddings, ``[batch, owners, aligned]``.
        features : transposed, ``[batch, columns, owners]``; 0 for absent owners.
        there    : float ``[batch, owners]``, the rows that are summed.
        counted  : float ``[batch, owners]``, owners that count towards degrees, which are at least 1.

        The product is ``[batch, columns, owners]``, transposed too, the weights ``[batch, 1, owners]``.
        """
        return normalised_products(self.adjacency(aligned, there), features, there, counted)

    def adjacency(self, aligned: Tensor, there: Tensor) -> Tensor:
        """Return the graph of a batch without self loops, ``[owners, owners]``; rows weight the owners in columns."""
        raise NotImplementedError

    def graphs(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the graphs of evaluation without self loops, ``[draws, owners, owners]``; one where none is drawn."""
        return self.expected()[None]

    def settle(self, aligned: Tensor, there: Tensor) -> None:
        """Compute what evaluation needs from all training samples."""

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

    per_sample : in training, a graph for every sample; otherwise one for the whole batch, as always in evaluation.
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
        # The graph is symmetric: sums over rows are products with the rows that are summed up.
        both = self.graph.propagate(torch.cat([features, there[:, None]], 1), counted, generator, shared)
        return both[:, :-1], both[:, -1:]

    def graphs(self, generators: Sequence[torch.Generator]) -> Tensor:
        """See :class:`Consensus`; those that :meth:`propagate` uses with the same generators."""
        return self.graph.shared(generators)


class NeighbourConsensus(Consensus):
    """The nearest neighbours by learned features, of the batch in training and of all training samples afterwards."""

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
    """A fixed graph, used as it is: weights stay, and it may be asymmetric; self loops become 1."""

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
    """The edge probabilities themselves as weights, learned and not drawn: one graph for all samples (no paper)."""

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
