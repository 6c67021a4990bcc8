"""A client graph from trained embeddings of the clients, the structure learning of SFL* (Chen et al. 2022, eq. 4).

The encoder is that of Wu et al., Connecting the Dots: Multivariate Time Series Forecasting with Graph Neural Networks
(MTGNN, KDD 2020), eqs. 3 to 6. The program released with SFL fits it to *distances* between models, for ten steps from
new random numbers every round, in a form with ``A[i, j] A[j, i] = 0`` that cannot fit anything symmetric; here it is
fitted to weights that decrease with the distance, in a symmetric form, until it fits. ``released_weights`` reproduces
the released program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedgraph.support.errors import GraphError

Form = Literal["symmetric", "antisymmetric"]

SATURATION = 3.0
"""The factor in every tanh, alpha in MTGNN."""

_SMALL = 0.1
"""Scale of initial embeddings in the symmetric form: a saturated tanh does not learn."""


class GraphEncoder(nn.Module):
    """Encoder of embeddings of N clients to the weights of a graph between them.

    antisymmetric (MTGNN, eqs. 3 to 5): ``M1 = tanh(3 (E1 W1 + b1))``, ``M2 = tanh(3 (E2 W2 + b2))``,
    ``A = relu(tanh(3 (M1 M2' - M2 M1')))``, with the biases that the programs of MTGNN and SFL have and their papers
    omit; symmetric: ``A = relu(tanh(3 M1 M1'))``, ``M1 = tanh(3 E1 W1)``. The diagonal is zero.

    Parameters
    ----------
    generator : draws the initial embeddings and weights.
    """

    def __init__(self, clients: int, generator: torch.Generator, form: Form = "symmetric", width: int = 40) -> None:
        super().__init__()
        self.form = form
        scale = _SMALL if form == "symmetric" else 1.0
        self.first_embedding = nn.Parameter(scale * torch.randn(clients, width, generator=generator))
        self.first_weight = nn.Parameter(_uniform(width, generator))
        if form == "antisymmetric":
            self.second_embedding = nn.Parameter(torch.randn(clients, width, generator=generator))
            self.second_weight = nn.Parameter(_uniform(width, generator))
            self.first_bias = nn.Parameter(_uniform(width, generator)[0])
            self.second_bias = nn.Parameter(_uniform(width, generator)[0])

    def forward(self, positions: Tensor | None = None) -> Tensor:
        """Return weights ``[n, n]`` among the clients at ``positions`` (int64 ``[n]``), by default all."""
        return self.scores(positions).tanh().relu()

    def scores(self, positions: Tensor | None = None) -> Tensor:
        """Return the weights before tanh and ReLU, ``[n, n]``."""
        if self.form == "symmetric":
            first = self._hidden(self.first_embedding, self.first_weight, positions)
            products = first @ first.T
        else:
            first = self._hidden(self.first_embedding, self.first_weight, positions, self.first_bias)
            second = self._hidden(self.second_embedding, self.second_weight, positions, self.second_bias)
            products = first @ second.T
            products = products - products.T
        diagonal = torch.eye(len(products), dtype=torch.bool, device=products.device)
        return (SATURATION * products).masked_fill(diagonal, 0)

    def _hidden(
        self, embedding: Tensor, weight: Tensor, positions: Tensor | None, bias: Tensor | float = 0.0
    ) -> Tensor:
        rows = embedding if positions is None else embedding[positions]
        return torch.tanh(SATURATION * (rows @ weight + bias))


@dataclass(frozen=True)
class EncoderFit:
    """Result of a fit.

    Attributes
    ----------
    error : ``|A - target|_F / |target|_F``.
    """

    error: float
    steps: int


def fit_encoder(
    encoder: GraphEncoder,
    target: Tensor,
    positions: Tensor | None = None,
    tolerance: float = 0.1,
    max_steps: int = 500,
    learning_rate: float = 0.03,
) -> EncoderFit:
    """Train the encoder by Adam until its weights among ``positions`` are those of ``target`` ``[n, n]``.

    A score below zero is as good as zero if the target is zero, and is raised otherwise: behind the ReLU it would have
    no gradient. Embeddings of clients that are not among ``positions`` do not change. Training ends at a relative error
    of ``tolerance`` or after ``max_steps``.

    Raises GraphError for a target of another shape.
    """
    clients = len(encoder.first_embedding) if positions is None else len(positions)
    if target.shape != (clients, clients):
        raise GraphError(f"the encoder has {clients} clients to fit; the target is {list(target.shape)}")
    target = target.detach().float()
    linked, size = target > 0, float(target.norm()) or 1.0
    optimizer = torch.optim.Adam(encoder.parameters(), lr=learning_rate)
    steps = 0
    while True:
        scores = encoder.scores(positions)
        error = float((scores.detach().tanh().relu() - target).norm()) / size
        if error <= tolerance or steps >= max_steps:
            return EncoderFit(error, steps)
        scores = torch.where(linked, scores, scores.relu())
        # log cosh, without overflow.
        loss = (scores.abs() + torch.log1p(torch.exp(-2 * scores.abs())) - target * scores).sum() / size**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1


def released_weights(
    distances: Tensor,
    generator: torch.Generator,
    steps: int = 10,
    learning_rate: float = 0.01,
    weight_decay: float = 1e-4,
) -> Tensor:
    """Return what the released program learns from Euclidean distances ``[N, N]`` (not squared): almost random weights.

    A new antisymmetric encoder takes ten steps of SGD with weight decay on the mean squared error between its weights
    and the *distances*, the rows of both divided by their L2 norm; the largest min(30, N) weights of each row are kept.
    """
    encoder = GraphEncoder(len(distances), generator, "antisymmetric")
    target = normalize(distances.detach().float())
    optimizer = torch.optim.SGD(encoder.parameters(), lr=learning_rate, weight_decay=weight_decay)
    for _ in range(steps):
        loss = (normalize(encoder()) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return largest_per_row(encoder().detach(), 30)


def largest_per_row(weights: Tensor, count: int) -> Tensor:
    """Set all but the ``count`` largest weights of each row of ``[N, N]`` to zero (MTGNN, eq. 6)."""
    if count >= weights.shape[1]:
        return weights.clone()
    kept = weights.sort(dim=1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(weights).scatter(1, kept, weights.gather(1, kept))


def _uniform(width: int, generator: torch.Generator) -> Tensor:
    """Draw the initial weights of a linear layer of PyTorch, ``[width, width]``."""
    bound = width**-0.5
    return (2 * torch.rand(width, width, generator=generator) - 1) * bound
