"""Base class of fusion networks, and graph convolution with alignment and mean pooling over owners (F3).

Embeddings are ``[samples, owners, size]``, as minibatches draw samples at random; only products with P_i and with the
evaluation graphs put owners first.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
eqs. 4, 5, 7 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgraph.fusion.alignment import Alignment
from fedgraph.fusion.consensus import Consensus, normalised
from fedgraph.fusion.layers import EmbeddingScaling, Perceptron, glorot
from fedgraph.privacy.secret import project

_FEW_OWNERS = 8
"""Maximum number of owners for which samples with absent owners are evaluated entry by entry of their graphs."""


class FusionNetwork(nn.Module):
    """Base class of networks from the embeddings of all owners to logits of the classes.

    Attributes
    ----------
    stochastic : bool
        Whether predictions differ between draws. In training, graphs are drawn as set by ``draw_per``; in evaluation,
        each draw is shared by all samples.
    scaling : EmbeddingScaling or None
        Applied first; None for no scaling.
    alignment : Alignment or None
        Alignment of the scaled embeddings.
    """

    stochastic = False
    scaling: EmbeddingScaling | None
    alignment: Alignment | None

    def __init__(self) -> None:
        super().__init__()
        self.register_module("scaling", None)
        self.register_module("alignment", None)

    def scaled(self, embeddings: Tensor, present: Tensor) -> Tensor:
        """Return scaled embeddings, the input of ``forward`` and ``draws``, ``[batch, owners, size]``."""
        return embeddings if self.scaling is None else self.scaling(embeddings, present)

    def forward(self, embeddings: Tensor, present: Tensor, generator: torch.Generator) -> Tensor:
        """Compute logits ``[batch, classes]``.

        Parameters
        ----------
        embeddings : Tensor
            ``[batch, owners, size]``, 0 where an owner is absent or has a shorter embedding.
        present : Tensor
            bool ``[batch, owners]``.
        generator : torch.Generator
            Source of all random numbers, on the CPU.
        """
        raise NotImplementedError

    def draws(self, embeddings: Tensor, present: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Compute logits for each generator, ``[draws, batch, classes]``; a single draw for a deterministic network."""
        used = generators if self.stochastic else generators[:1]
        return torch.stack([self(embeddings, present, each) for each in used])

    def dropped(
        self, embeddings: Tensor, present: Tensor, share: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return embeddings and presence without a ``share`` of the owners of each sample, drawn at random."""
        kept = torch.rand(present.shape, generator=generator) >= share
        return embeddings, present & kept.to(present.device)

    def settle(self, embeddings: Tensor, present: Tensor) -> None:
        """Prepare evaluation from all training samples."""

    def constrain(self) -> None:
        """Project parameters back into their range; called after every step of the optimiser."""

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """Weight ``[inputs, classes]`` and bias ``[classes]`` of the last layer."""
        raise NotImplementedError

    def rescale(self, factor: float, offset: Tensor) -> None:
        """Multiply all logits by a factor and add an offset ``[classes]``, in the last layer."""
        weight, bias = self.output
        with torch.no_grad():
            weight.mul_(factor)
            bias.mul_(factor).add_(offset.to(bias))

    def penalty(self) -> Tensor | float:
        """Return the term that the alignment adds to the loss in training."""
        return 0.0 if self.alignment is None else self.alignment.penalty()

    def trained(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the weights, which are subject to weight decay, and all other parameters: biases and the graph's."""
        weights: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, each in self.named_parameters():
            if each.requires_grad:
                bias = each.ndim < 2 or name.endswith("offset")
                (others if bias or name.startswith("consensus.") else weights).append(each)
        return weights, others


@dataclass(frozen=True)
class Mixing:
    """Drawn graphs for patterns of present owners.

    first  : ``[draws, patterns, owners, owners]``, ``D^-1/2 A D^-1/2 + I`` of the first layer; 0 for absent owners.
    second : ``[draws, patterns, owners]``, weights of owners in the sum over owners of the second layer.
    """

    first: Tensor
    second: Tensor


class GraphFusion(FusionNetwork):
    """``softmax(mean over owners of L1(relu(L0(H))))`` with layers ``L(X) = (D^-1/2 A D^-1/2 + I) X W + b`` (eq. 8).

    Row i of H is ``P_i h_i``; A holds self loops; the second ``I`` is the skip connection. Absent owners are masked
    after each layer. Without a graph this is eq. 5. With a ``head``, which is not in the paper, L1 has as many outputs
    as the head's first layer has units, and a perceptron follows the mean over owners; without it the logits are a sum
    over owners, who interact only through the graph.

    Parameters
    ----------
    alignment : ``[batch, owners, size] -> [batch, owners, aligned]``.
    aligned, hidden, classes : sizes of the inputs and outputs of both layers.
    zeros_count : absent owners count towards degrees and the mean, with zeros for features; otherwise they are
        excluded.
    head : widths of hidden layers between the mean over owners and the classes.
    """

    alignment: Alignment

    def __init__(
        self,
        alignment: Alignment,
        consensus: Consensus | None,
        aligned: int,
        hidden: int,
        classes: int,
        generator: torch.Generator,
        zeros_count: bool = False,
        head: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.alignment, self.consensus, self.zeros_count = alignment, consensus, zeros_count
        pooled = (*head, classes)[0]
        self.weights = nn.ParameterList(glorot(*shape, generator) for shape in ((aligned, hidden), (hidden, pooled)))
        self.biases = nn.ParameterList(torch.zeros(size) for size in (hidden, pooled))
        self.head = Perceptron((*head, classes), generator)
        self.stochastic = consensus is not None and consensus.stochastic

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """See :class:`FusionNetwork`."""
        return self.head.output if len(self.head) else (self.weights[1], self.biases[1])

    def forward(self, embeddings: Tensor, present: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`FusionNetwork`."""
        return self._logits(*self._first(embeddings, present), present, generator)

    def draws(self, embeddings: Tensor, present: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """See :class:`FusionNetwork`; in evaluation the graphs of all draws are applied in one product."""
        used = generators if self.stochastic else generators[:1]
        all_present, owners = bool(present.all()) and len(present) > 0, present.shape[1]
        if self.training or (not all_present and owners > _FEW_OWNERS):
            aligned, products = self._first(embeddings, present)
            return torch.stack([self._logits(aligned, products, present, each) for each in used])
        features = self._features(embeddings, present)
        pooled = self._by_all(features, used) if all_present else self._by_each(features, present, used)
        there, counted = self.counts(present)
        share = there.sum(1) / counted.sum(1).clamp(min=1)
        return self._headed(pooled.mT @ self.weights[1] + share[:, None] * self.biases[1])

    def _by_all(self, features: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the mean over owners before the second layer, of samples without absent owners.

        One product with all graphs, ``[draws, hidden, samples]``; ``features`` is ``[owners, hidden, samples]``.
        """
        owners = len(features)
        mixing = self.mixing(torch.ones(1, owners, dtype=torch.bool, device=features.device), generators)
        mixed = mixing.first[:, 0].flatten(0, 1) @ features.flatten(1)
        hidden = mixed.view(-1, *features.shape).add_(self.biases[0][:, None]).relu_()
        return torch.bmm(mixing.second / owners, hidden.flatten(2)).view(len(hidden), *features.shape[1:])

    def _by_each(self, features: Tensor, present: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the same for samples with individual graphs, entry by entry of the graph, for few owners."""
        known, patterns = present.unique(dim=0, return_inverse=True)
        mixing = self.mixing(known, generators)
        graphs = mixing.first.permute(0, 2, 3, 1)[..., patterns]
        mixed = torch.zeros(len(graphs), *features.shape, device=features.device)
        for column, own in zip(graphs.unbind(2), features, strict=True):
            mixed.addcmul_(column[:, :, None], own)
        there, counted = self.counts(present)
        weight = mixing.second.mT[..., patterns] * (there / counted.sum(1, keepdim=True).clamp(min=1)).T
        return (mixed.add_(self.biases[0][:, None]).relu_() * weight[:, :, None]).sum(1)

    def _features(self, embeddings: Tensor, present: Tensor) -> Tensor:
        """Return ``W0' (P_i h_i + b_i)`` of present owners by one linear map each, ``[owners, hidden, samples]``."""
        features = project(self.alignment.matrices(), self.weights[0]) @ embeddings.permute(1, 2, 0)
        if self.alignment.offset is not None:
            features = features + (self.alignment.offset @ self.weights[0])[..., None]
        return features * present.T[:, None]

    def settle(self, embeddings: Tensor, present: Tensor) -> None:
        """See :class:`FusionNetwork`."""
        if self.consensus is not None and self.consensus.settles:
            with torch.no_grad():
                aligned, _ = self._first(embeddings, present)
            self.consensus.settle(aligned, present.to(aligned.dtype))

    def constrain(self) -> None:
        """See :class:`FusionNetwork`."""
        if self.consensus is not None:
            self.consensus.constrain()

    def projections(self) -> Tensor:
        """Return ``f_i W0' P_i``, the first layer before the graph: ``[owners, hidden, size]``.

        f_i is that of the scaling. ``projections``, ``offsets``, ``mixing`` and ``finish`` split ``scaled`` and
        :meth:`draws` into steps that are linear except for the last.
        """
        first = project(self.alignment.matrices(), self.weights[0])
        return first if self.scaling is None else first * self.scaling.factor[:, None, None]

    def offsets(self, projections: Tensor) -> Tensor:
        """Return the terms added after :meth:`projections`, ``[owners, hidden]``:
        ``W0' (b_i - f_i P_i c_i)``.

        c_i is the centre of the scaling, b_i the offset of the alignment.
        """
        added = torch.zeros_like(projections[:, :, 0])
        if self.alignment.offset is not None:
            added = self.alignment.offset @ self.weights[0]
        if self.scaling is not None:
            added = added - torch.einsum("ohs,os->oh", projections, self.scaling.centre)
        return added

    def mixing(self, present: Tensor, generators: Sequence[torch.Generator]) -> Mixing:
        """Return the evaluation graphs of :meth:`draws` with these generators; one if deterministic.

        present : bool ``[patterns, owners]``.
        """
        there, counted = self.counts(present)
        skip = torch.diag_embed(there)
        if self.consensus is None:
            return Mixing(skip[None], there[None])
        used = generators if self.stochastic else generators[:1]
        graphs = normalised(self.consensus.graphs(used), counted)
        second = there + (there[:, None] @ graphs)[:, :, 0]
        return Mixing(skip + graphs * there[..., None] * there[:, None], second)

    def finish(self, first: Tensor, second: Tensor, present: Tensor) -> Tensor:
        """Compute logits ``[draws, samples, classes]`` from the results of the linear maps.

        Parameters
        ----------
        first : ``sum_j G_ij (M_j h_j + o_j)``, G of ``mixing.first``, M projections, o offsets; ``[draws, samples,
            owners, hidden]``.
        second : ``mixing.second`` of each sample's pattern, ``[draws, samples, owners]``.
        present : bool ``[samples, owners]``.
        """
        there, counted = self.counts(present)
        number = counted.sum(1, keepdim=True).clamp(min=1)
        hidden = (first + self.biases[0]).relu() * there[..., None]
        pooled = (hidden * (second / number)[..., None]).sum(2)
        return self._headed(pooled @ self.weights[1] + there.sum(1, keepdim=True) / number * self.biases[1])

    def _first(self, embeddings: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return H, and H W0 transposed, ``[batch, hidden, owners]``."""
        aligned = self.alignment(embeddings) * present[..., None]
        return aligned, self.weights[0].T @ aligned.mT

    def _logits(self, aligned: Tensor, products: Tensor, present: Tensor, generator: torch.Generator) -> Tensor:
        there, counted = self.counts(present)
        mixed, weight = products, there[:, None]
        if self.consensus is not None:
            # The mean over owners of the second layer needs only sums over the rows of the graph.
            product, sums = self.consensus.propagate(aligned, products, there, counted, generator)
            mixed, weight = mixed + product, weight + sums
        return self._pooled(mixed, weight, there, counted)

    def _pooled(self, mixed: Tensor, weight: Tensor, there: Tensor, counted: Tensor) -> Tensor:
        """Apply bias and non-linearity of the first layer, the second layer, the mean over owners and the head."""
        hidden = (mixed + self.biases[0][:, None]).relu() * there[:, None]
        number = counted.sum(1, keepdim=True).clamp(min=1)
        pooled = (hidden * weight).sum(2) / number
        return self._headed(pooled @ self.weights[1] + there.sum(1, keepdim=True) / number * self.biases[1])

    def _headed(self, mean: Tensor) -> Tensor:
        """Return logits from the mean over owners of the second layer."""
        logits: Tensor = self.head(mean.relu()) if len(self.head) else mean
        return logits

    def counts(self, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return which owners are present, and which count in degrees and the mean, as floats ``[batch, owners]``."""
        there = present.to(self.biases[0].dtype)
        return there, torch.ones_like(there) if self.zeros_count else there
