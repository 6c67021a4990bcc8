"""A consensus graph of nearest neighbours by learned features, the k-NN row of F3's Table 3.

Ma, Hoang, Chen (UAI 2023), section 7, after Fatemi, El Asri, Kazemi: SLAPS (NeurIPS 2021). The released program keeps
the upper triangle alone, so that edges found only below the diagonal are lost, counts an owner as its own neighbour,
and makes one graph of all samples that are evaluated, so that a prediction depends on which others are asked for.
Here edges count from whichever side they are found, and what is evaluated meets the graph of the training samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BLOCK_SAMPLES = 512


class FeatureNeighbours(nn.Module):
    """Links each owner to the k others whose features are most alike: weight ``relu(cosine similarity)``.

    An owner's features are its embeddings of all samples of a batch, each mapped linearly, one after the other.

    owners    : n; of fewer others than k all are neighbours.
    inputs    : length of an aligned embedding.
    generator : draws the linear map, as that of a linear layer of PyTorch.
    k, width  : neighbours, and length of the mapped embedding.

    The buffer ``similarity`` ``[owners, owners]`` is that of the training samples, as :meth:`settle` found it.
    """

    similarity: Tensor

    def __init__(self, owners: int, inputs: int, generator: torch.Generator, k: int = 10, width: int = 8) -> None:
        super().__init__()
        self.k = min(k, owners - 1)
        bound = inputs**-0.5
        self.weight = nn.Parameter(bound * (2 * torch.rand(width, inputs, generator=generator) - 1))
        self.bias = nn.Parameter(bound * (2 * torch.rand(width, generator=generator) - 1))
        self.register_buffer("similarity", torch.zeros(owners, owners))

    def forward(self, aligned: Tensor, present: Tensor) -> Tensor:
        """The graph of a batch, ``[owners, owners]``, symmetric with a zero diagonal; evaluating, that of training.

        aligned : ``[batch, owners, inputs]``; present : float ``[batch, owners]``, absent ones count as zero.
        """
        if not self.training:
            return self.graph(self.similarity)
        return self.graph(_cosine(self._products(aligned, present)))

    @torch.no_grad()
    def settle(self, aligned: Tensor, present: Tensor) -> None:
        """Take the similarity over all training samples, ``[samples, owners, inputs]``, for evaluation."""
        parts = zip(aligned.split(_BLOCK_SAMPLES), present.split(_BLOCK_SAMPLES), strict=True)
        products = torch.zeros_like(self.similarity)
        for rows, there in parts:
            products += self._products(rows, there)
        self.similarity.copy_(_cosine(products))

    def graph(self, similarity: Tensor) -> Tensor:
        """The k most similar others of each owner, found from either side, ``[owners, owners]``."""
        owners = len(similarity)
        itself = torch.eye(owners, dtype=torch.bool, device=similarity.device)
        nearest = similarity.detach().masked_fill(itself, -torch.inf).topk(self.k, dim=1).indices
        found = torch.zeros_like(itself).scatter_(1, nearest, True)
        return torch.where(found | found.T, similarity.relu(), 0.0)

    def _products(self, aligned: Tensor, present: Tensor) -> Tensor:
        mapped = (aligned @ self.weight.T + self.bias) * present[..., None]
        flat = mapped.transpose(0, 1).flatten(1)
        return flat @ flat.T


def _cosine(products: Tensor) -> Tensor:
    """Similarities from all scalar products ``[owners, owners]``; 0 for an owner without any features."""
    lengths = products.diagonal().clamp(min=1e-12).sqrt()
    return products / (lengths[:, None] * lengths)
