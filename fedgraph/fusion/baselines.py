"""Fusion networks without a graph, rows F and G of F3's Table 2: a simplified Set Transformer, and concatenation.

Ma, Hoang, Chen (UAI 2023), section 7; Lee et al., Set Transformer (ICML 2019): self-attention blocks without
positional encoding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgraph.fusion.alignment import Alignment
from fedgraph.fusion.layers import Linear, Perceptron
from fedgraph.fusion.network import FusionNetwork


class _SelfAttention(nn.Module):
    """A block of multi-head self-attention and a feed-forward network, each added to its input and normalised."""

    def __init__(self, width: int, heads: int, feed_forward: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries_keys_values = Linear(width, 3 * width, generator)
        self.output = Linear(width, width, generator)
        self.inner = Linear(width, feed_forward, generator)
        self.outer = Linear(feed_forward, width, generator)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, values: Tensor, seen: Tensor, generator: torch.Generator) -> Tensor:
        """Transform ``[batch, owners, width]``; owners attend to those in ``seen`` ``[batch, 1, 1, owners]``."""
        batch, owners, width = values.shape
        parts = self.queries_keys_values(values).view(batch, owners, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        queries, keys, own = parts.unbind(0)
        received = functional.scaled_dot_product_attention(queries, keys, own, attn_mask=seen)
        received = self.output(received.transpose(1, 2).reshape(batch, owners, width))
        values = self.norms[0](values + self._drop(received, generator))
        inner = self._drop(self.inner(values).relu(), generator)
        following: Tensor = self.norms[1](values + self._drop(self.outer(inner), generator))
        return following

    def _drop(self, values: Tensor, generator: torch.Generator) -> Tensor:
        # PyTorch's dropout takes no generator.
        if not self.training or self.dropout == 0:
            return values
        kept = torch.rand(values.shape, generator=generator).to(values.device) >= self.dropout
        return values * kept / (1 - self.dropout)


class TransformerFusion(FusionNetwork):
    """Aligned embeddings -> linear layer -> self-attention blocks -> mean over present owners -> linear layer.

    Dropout acts on the outputs of attention and of both feed-forward layers, not on attention weights.
    """

    alignment: Alignment

    def __init__(
        self,
        alignment: Alignment,
        aligned: int,
        classes: int,
        generator: torch.Generator,
        layers: int = 2,
        heads: int = 4,
        width: int = 16,
        feed_forward: int = 8,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.alignment = alignment
        self.entrance = Linear(aligned, width, generator)
        self.blocks = nn.ModuleList(
            _SelfAttention(width, heads, feed_forward, dropout, generator) for _ in range(layers)
        )
        self.head = Linear(width, classes, generator)

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """See :class:`FusionNetwork`."""
        return self.head.weight, self.head.bias

    def forward(self, embeddings: Tensor, present: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`FusionNetwork`."""
        values = self.entrance(self.alignment(embeddings * present[..., None]))
        # The attention of a sample without owners would be undefined.
        seen = present | ~present.any(1, keepdim=True)
        for block in self.blocks:
            values = block(values, seen[:, None, None], generator)
        there = present[..., None].to(values.dtype)
        logits: Tensor = self.head((values * there).sum(1) / there.sum(1).clamp(min=1))
        return logits


class ConcatenationFusion(FusionNetwork):
    """A multi-layer perceptron with ReLU on the concatenated embeddings of all owners; those of absent ones are 0."""

    def __init__(self, owners: int, size: int, hidden: Sequence[int], classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = Perceptron((owners * size, *hidden, classes), generator)

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """See :class:`FusionNetwork`."""
        return self.layers.output

    def forward(self, embeddings: Tensor, present: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`FusionNetwork`."""
        logits: Tensor = self.layers((embeddings * present[..., None]).flatten(1))
        return logits

    def dropped(
        self, embeddings: Tensor, present: Tensor, share: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """See :class:`FusionNetwork`; the remaining owners are scaled up, which keeps the expected sum over owners."""
        _, present = super().dropped(embeddings, present, share, generator)
        return embeddings / (1 - share), present
