"""Alignment of owners' embeddings: one matrix P_i per owner, free or nearly a permutation (F3, section 4, appendix G).

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
eqs. 7 and 21. Sinkhorn-Knopp runs on logarithms, so that nothing overflows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedgraph.support.errors import ExperimentError

Parameterisation = Literal["square", "sigmoid"]

_SMALLEST = 1e-12
"""Lower bound of the entries of the squared matrix, as the logarithm of 0 is infinite."""


class Alignment(nn.Module):
    """Base class of the maps of owners' embeddings into a common space.

    Attributes
    ----------
    offset : added to each owner's aligned embedding, ``[owners, aligned]``; None: the maps are linear, as in the paper.
    """

    offset: nn.Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("offset", None)

    def matrices(self) -> Tensor:
        """Return all P_i, ``[owners, aligned, size]``."""
        raise NotImplementedError

    def penalty(self) -> Tensor | float:
        """Return the term that the alignment adds to the loss in training."""
        return 0.0


class NoAlignment(Alignment):
    """Leaves embeddings unchanged; shorter ones are padded with zeros beforehand."""

    def __init__(self, owners: int, size: int) -> None:
        super().__init__()
        self.owners, self.size = owners, size

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return embeddings ``[batch, owners, size]`` unchanged."""
        return embeddings

    def matrices(self) -> Tensor:
        """Return identities, ``[owners, size, size]``."""
        return torch.eye(self.size).expand(self.owners, -1, -1)


class _Products(Alignment):
    def forward(self, embeddings: Tensor) -> Tensor:
        """Multiply row i by P_i, ``[batch, owners, size]`` -> ``[batch, owners, aligned]`` (eq. 7); add the offset."""
        aligned = torch.bmm(embeddings.transpose(0, 1), self.matrices().mT).transpose(0, 1)
        return aligned if self.offset is None else aligned + self.offset


class SoftAlignment(_Products):
    """Free matrices P_i, drawn from Xavier's uniform distribution over the owner's own size.

    sizes     : int64 ``[owners]``, the length of each owner's embedding; columns of P_i beyond it are 0 and stay 0.
    size      : columns of every P_i.
    aligned   : rows of every P_i.
    generator : draws the initial matrices.
    trained   : False keeps the initial matrices.
    affine    : add a trained offset per owner, 0 at first, which is not in the paper.
    """

    def __init__(
        self,
        sizes: Tensor,
        size: int,
        aligned: int,
        generator: torch.Generator,
        trained: bool = True,
        affine: bool = False,
    ) -> None:
        super().__init__()
        bound = (6 / (sizes.double() + aligned)).sqrt().float()[:, None, None]
        uniform = 2 * torch.rand(len(sizes), aligned, size, generator=generator) - 1
        own = torch.arange(size) < sizes[:, None, None]
        self.matrix = nn.Parameter(bound * uniform * own, requires_grad=trained)
        if affine:
            self.offset = nn.Parameter(torch.zeros(len(sizes), aligned))

    def matrices(self) -> Tensor:
        """Return all P_i, ``[owners, aligned, size]``."""
        return self.matrix


class HardAlignment(_Products):
    """Nearly doubly stochastic matrices P_i, ``diag(r) K0 diag(c)`` after some steps of Sinkhorn-Knopp (eq. 21).

    Raises ExperimentError when owners have different sizes: a permutation has as many rows as columns.

    Parameters
    ----------
    sizes : length of each owner's embedding, int64 ``[owners]``.
    size, aligned : columns and rows of every P_i; all embeddings must have this length.
    generator : draws the initial M from Xavier's uniform distribution.
    parameterisation : ``K0 = M * M`` (square), or ``K0 = exp(sigmoid(M) / temperature)`` (sigmoid).
    iterations : t of eq. 21; afterwards rows sum to 1, and columns approximately.
    temperature : temperature of the parameterisation ``sigmoid``.
    trained : false keeps the initial matrices.
    entropy : weight of the mean row entropy (nats) in the loss; matrices of low entropy are close to permutations.
    """

    def __init__(
        self,
        sizes: Tensor,
        size: int,
        aligned: int,
        generator: torch.Generator,
        parameterisation: Parameterisation = "square",
        iterations: int = 10,
        temperature: float = 0.01,
        trained: bool = True,
        entropy: float = 0.0,
    ) -> None:
        super().__init__()
        if aligned != size or not bool((sizes == size).all()):
            known = ", ".join(str(each) for each in sizes.unique().tolist())
            raise ExperimentError(
                f"alignment = 'hard' permutes the entries of embeddings, which requires one size for all; "
                f"the owners' sizes are {known} and the aligned size is {aligned}: use alignment = 'soft', or leave "
                f"out aligned-size and give all local models the same embedding size"
            )
        self.parameterisation = parameterisation
        self.iterations = iterations
        self.temperature = temperature
        self.entropy = entropy
        uniform = 2 * torch.rand(len(sizes), size, size, generator=generator) - 1
        self.matrix = nn.Parameter((3 / size) ** 0.5 * uniform, requires_grad=trained)

    def log_start(self) -> Tensor:
        """Return ``log K0``, ``[owners, size, size]``."""
        if self.parameterisation == "square":
            return self.matrix.square().clamp(min=_SMALLEST).log()
        return self.matrix.sigmoid() / self.temperature

    def matrices(self) -> Tensor:
        """Return all P_i, ``[owners, size, size]``."""
        return sinkhorn(self.log_start(), self.iterations).exp()

    def penalty(self) -> Tensor | float:
        """See :class:`Alignment`."""
        if self.entropy == 0:
            return 0.0
        logarithms = sinkhorn(self.log_start(), self.iterations)
        return -self.entropy * (logarithms.exp() * logarithms).sum(-1).mean()


def sinkhorn(log_start: Tensor, iterations: int) -> Tensor:
    """Normalise columns and rows alternately: eq. 21 on logarithms, each r computed from the preceding c.

    Returns ``log K_T``, ``[..., size, size]``.

    Parameters
    ----------
    log_start : ``log K0``, ``[..., size, size]``.
    iterations : t of eq. 21.
    """
    rows = torch.zeros_like(log_start[..., :1])
    columns = torch.zeros_like(log_start[..., :1, :])
    for _ in range(iterations):
        columns = -torch.logsumexp(log_start + rows, dim=-2, keepdim=True)
        rows = -torch.logsumexp(log_start + columns, dim=-1, keepdim=True)
    return rows + log_start + columns
