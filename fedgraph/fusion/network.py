"""Base class of fusion networks, and graph convolution with alignment and mean pooling over owners (F3).

Embeddings may be scaled before they are aligned, which is beyond the paper: it changes where training starts and how
fast it converges, not what a fusion network can express. A free P_i (F3, section 4) and the first bias could do the
same.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
eqs. 4, 5, 7 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fedgraph.fusion.alignment import Alignment
from fedgraph.fusion.consensus import Consensus
from fedgraph.privacy.secret import project

Scaling = Literal["none", "owner"]

_SMALLEST = 1e-6


class EmbeddingScaling(nn.Module):
    """``f_i (h_i - c_i)`` for every owner i: on training samples, numbers have mean 0 and, on average, variance 1.

    sizes : int64 ``[owners]``, the length of each owner's embedding; ``size`` is the longest.
    """

    sizes: Tensor
    centre: Tensor
    factor: Tensor

    def __init__(self, sizes: Tensor, size: int) -> None:
        super().__init__()
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("centre", torch.zeros(len(sizes), size))
        self.register_buffer("factor", torch.ones(len(sizes)))

    def forward(self, embeddings: Tensor, present: Tensor) -> Tensor:
        """Scale ``[batch, owners, size]``; 0 where an owner is absent."""
        return (embeddings - self.centre) * (self.factor * present)[..., None]

    @torch.no_grad()
    def fit(self, embeddings: Tensor, present: Tensor) -> None:
        """Compute c and f from training samples ``[samples, owners, size]``; f is 0 where all are nearly the same."""
        there = present[..., None].double()
        number = there.sum(0).clamp(min=1)
        centre = (embeddings * there).sum(0) / number
        squares = ((embeddings - centre) * there).square().sum((0, 2))
        deviation = (squares / (number[:, 0] * self.sizes)).sqrt()
        self.centre.copy_(centre)
        self.factor.copy_(torch.where(deviation > _SMALLEST, 1 / deviation, 0.0))


class FusionNetwork(nn.Module):
    """Base class of networks from the embeddings of all owners to logits of the classes.

    Attributes
    ----------
    stochastic : bool
        Whether predictions differ between draws. In training, graphs are drawn as the settings say; in evaluation, one
        draw is used for all samples, so that a prediction does not depend on the other samples.
    scaling : EmbeddingScaling or None
        Applied before everything else; None: embeddings are not scaled.
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
        """Return embeddings as ``forward`` and ``draws`` require them, ``[batch, owners, size]``."""
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
            Source of all random numbers; on the CPU, wherever the network is.
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
        """Compute what evaluation needs from all training samples; called before evaluating."""

    def constrain(self) -> None:
        """Project parameters back into their range; called after every step of the optimiser."""

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """Weight ``[inputs, classes]`` and bias ``[classes]`` of the last layer, whose outcomes are the logits."""
        raise NotImplementedError

    def rescale(self, factor: float, offset: Tensor) -> None:
        """Multiply all logits by a factor, and add an offset ``[classes]``, by the last layer."""
        weight, bias = self.output
        with torch.no_grad():
            weight.mul_(factor)
            bias.mul_(factor).add_(offset.to(bias))

    def penalty(self) -> Tensor | float:
        """Return the term that the alignment adds to the loss in training."""
        return 0.0 if self.alignment is None else self.alignment.penalty()

    def trained(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return weights, which decay may shrink, and all other trained parameters: biases and those of the graph."""
        weights: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, each in self.named_parameters():
            if each.requires_grad:
                bias = each.ndim < 2 or name.endswith("offset")
                (others if bias or name.startswith("consensus.") else weights).append(each)
        return weights, others


@dataclass(frozen=True)
class Mixing:
    """The effect of drawn graphs on owners, for patterns of present owners.

    first  : ``[draws, patterns, owners, owners]``, ``D^-1/2 A D^-1/2 + I`` of the first layer; 0 for absent owners.
    second : ``[draws, patterns, owners]``, weights of owners in the sum over owners of the second layer.
    """

    first: Tensor
    second: Tensor


class GraphFusion(FusionNetwork):
    """``softmax(mean over owners of L1(relu(L0(H))))`` with layers ``L(X) = (D^-1/2 A D^-1/2 + I) X W + b`` (eq. 8).

    Row i of H is ``P_i h_i``; A holds self loops; the second ``I`` is the skip connection. Absent owners are masked
    after each layer. Without a graph this is eq. 5. With a ``head``, which is not in the paper, L1 has as many outputs
    as the head's first layer has units, and a perceptron follows the mean over owners: without it the logits are a sum
    over owners, who then meet in the graph alone.

    Parameters
    ----------
    alignment : Alignment
        ``[batch, owners, size] -> [batch, owners, aligned]``.
    consensus : Consensus or None
        The graph.
    aligned, hidden, classes : int
        Sizes of the inputs and outputs of both layers.
    generator : torch.Generator
        Draws the initial weights.
    zeros_count : bool
        Absent owners count towards degrees and the mean, with zeros for features; otherwise they are left out.
    head : sequence of int
        Widths of hidden layers between the mean over owners and the classes.
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
        """See :class:`FusionNetwork`; everything before the graph is computed once."""
        aligned, products = self._first(embeddings, present)
        used = generators if self.stochastic else generators[:1]
        return torch.stack([self._logits(aligned, products, present, each) for each in used])

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

        f_i is that of the scaling. Together with ``offsets``, ``mixing`` and ``finish`` this is ``scaled`` and then
        :meth:`draws` in parts, of which all but the last are linear.
        """
        first = project(self.alignment.matrices(), self.weights[0])
        return first if self.scaling is None else first * self.scaling.factor[:, None, None]

    def offsets(self, projections: Tensor) -> Tensor:
        """Return what is added to products by :meth:`projections`, ``[owners, hidden]``: ``W0' (b_i - f_i P_i c_i)``.

        c_i is the centre of the scaling, b_i the offset of the alignment.
        """
        added = torch.zeros_like(projections[:, :, 0])
        if self.alignment.offset is not None:
            added = self.alignment.offset @ self.weights[0]
        if self.scaling is not None:
            added = added - torch.einsum("ohs,os->oh", projections, self.scaling.centre)
        return added

    def mixing(self, present: Tensor, generators: Sequence[torch.Generator]) -> Mixing:
        """Return the graphs that :meth:`draws` uses with these generators in evaluation; one where nothing is drawn.

        present : bool ``[patterns, owners]``.
        """
        there, counted = self.counts(present)
        own = torch.diag_embed(there)
        if self.consensus is None:
            return Mixing(own[None], there[None])
        nothing = there.new_zeros(*there.shape, 0)
        used = generators if self.stochastic else generators[:1]
        # The product with unit vectors is the graph; transposed, as features are.
        found = [self.consensus.propagate(nothing, own, there, counted, each) for each in used]
        first = torch.stack([(own + product).mT * there[..., None] for product, _ in found])
        return Mixing(first, torch.stack([there + sums[:, 0] for _, sums in found]))

    def finish(self, first: Tensor, second: Tensor, present: Tensor) -> Tensor:
        """Compute logits ``[draws, samples, classes]`` from the outcome of the linear maps.

        Parameters
        ----------
        first : Tensor
            ``sum_j G_ij (M_j h_j + o_j)``, G of ``mixing.first``, M projections, o offsets; ``[draws, samples, owners,
            hidden]``.
        second : Tensor
            ``mixing.second`` of each sample's pattern, ``[draws, samples, owners]``.
        present : Tensor
            Bool ``[samples, owners]``.
        """
        there, counted = self.counts(present)
        return torch.stack(
            [
                self._pooled(mixed.mT, weight[:, None], there, counted)
                for mixed, weight in zip(first, second, strict=True)
            ]
        )

    def _first(self, embeddings: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return H, and H W0 transposed, ``[batch, hidden, owners]``."""
        aligned = self.alignment(embeddings) * present[..., None]
        return aligned, self.weights[0].T @ aligned.mT

    def _logits(self, aligned: Tensor, products: Tensor, present: Tensor, generator: torch.Generator) -> Tensor:
        there, counted = self.counts(present)
        mixed, weight = products, there[:, None]
        if self.consensus is not None:
            # The mean over owners of the second layer only needs sums over the rows of the graph.
            product, sums = self.consensus.propagate(aligned, products, there, counted, generator)
            mixed, weight = mixed + product, weight + sums
        return self._pooled(mixed, weight, there, counted)

    def _pooled(self, mixed: Tensor, weight: Tensor, there: Tensor, counted: Tensor) -> Tensor:
        """Apply bias and non-linearity of the first layer, the second layer, the mean over owners and the head."""
        hidden = (mixed + self.biases[0][:, None]).relu() * there[:, None]
        number = counted.sum(1, keepdim=True).clamp(min=1)
        pooled = (hidden * weight).sum(2) / number
        mean = pooled @ self.weights[1] + there.sum(1, keepdim=True) / number * self.biases[1]
        logits: Tensor = self.head(mean.relu()) if len(self.head) else mean
        return logits

    def counts(self, present: Tensor) -> tuple[Tensor, Tensor]:
        """Return which owners are present, and which count in degrees and the mean, as floats ``[batch, owners]``."""
        there = present.to(self.biases[0].dtype)
        return there, torch.ones_like(there) if self.zeros_count else there


class Linear(nn.Module):
    """A linear layer with weights drawn by a generator, and a bias of 0 at first."""

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(glorot(inputs, outputs, generator))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, values: Tensor) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., outputs]``."""
        return values @ self.weight + self.bias


class Perceptron(nn.ModuleList):
    """Linear layers of these ``widths`` with ReLU between them; a single width makes no layer."""

    def __init__(self, widths: Sequence[int], generator: torch.Generator) -> None:
        super().__init__(Linear(*shape, generator) for shape in pairwise(widths))

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""
        last = self[-1]
        assert isinstance(last, Linear)
        return last.weight, last.bias

    def forward(self, values: Tensor) -> Tensor:
        """Map ``[..., first width]`` to ``[..., last width]``."""
        for place, layer in enumerate(self):
            values = layer(values if place == 0 else values.relu())
        return values


def glorot(inputs: int, outputs: int, generator: torch.Generator) -> Tensor:
    """Draw a weight ``[inputs, outputs]`` from Glorot's (Xavier's) uniform distribution."""
    bound = (6 / (inputs + outputs)) ** 0.5
    return bound * (2 * torch.rand(inputs, outputs, generator=generator) - 1)
