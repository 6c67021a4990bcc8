"""A nearest-neighbour consensus graph by learned features, the k-NN row of F3's Table 3.

Ma, Hoang, Chen (UAI 2023), section 7, after Fatemi, El Asri, Kazemi: SLAPS (NeurIPS 2021). The released program keeps
only the upper triangle, which loses edges found only below the diagonal, counts an owner as its own neighbour, and
computes one graph from all evaluated samples, so that a prediction depends on the other samples. Here an edge exists if
it is found from either side, and evaluation uses the graph of the training samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_BLOCK_SAMPLES = 512


class FeatureNeighbours(nn.Module):
    """Graph of each owner and the k owners with the most similar features: weight ``relu(cosine similarity)``.

    The features of an owner are its linearly mapped embeddings of all samples of a batch, concatenated.

    Parameters
    ----------
    owners : int
        n.
    inputs : int
        Length of an aligned embedding.
    generator : torch.Generator
        Draws the linear map, initialised as ``torch.nn.Linear``.
    k : int
        Number of neighbours, at most n - 1.
    width : int
        Length of the mapped embedding.

    Attributes
    ----------
    similarity : Tensor
        Buffer ``[owners, owners]``, the similarity over the training samples from :meth:`settle`.
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
        """Return the graph of a batch, or of the training samples in evaluation mode.

        Returns ``[owners, owners]``, symmetric with a zero diagonal.

        Parameters
        ----------
        aligned : Tensor
            ``[batch, owners, inputs]``.
        present : Tensor
            float ``[batch, owners]``; absent owners count as zero.
        """
        if not self.training:
            return self.graph(self.similarity)
        return self.graph(_cosine(self._products(aligned, present)))

    @torch.no_grad()
    def settle(self, aligned: Tensor, present: Tensor) -> None:
        """Compute the similarity over all training samples, ``[samples, owners, inputs]``, for evaluation."""
        parts = zip(aligned.split(_BLOCK_SAMPLES), present.split(_BLOCK_SAMPLES), strict=True)
        products = torch.zeros_like(self.similarity)
        for rows, there in parts:
            products += self._products(rows, there)
        self.similarity.copy_(_cosine(products))

    def graph(self, similarity: Tensor) -> Tensor:
        """Return the graph of the k most similar owners of each owner, from either side, ``[owners, owners]``."""
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
    """Return cosine similarities from all scalar products ``[owners, owners]``; 0 for an owner without features."""
    lengths = products.diagonal().clamp(min=1e-12).sqrt()
    return products / (lengths[:, None] * lengths)
