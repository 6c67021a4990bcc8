"""Penalties on the paths through a network: products of absolute weights from its inputs to its outputs.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, eq. 1 (NGM) and 5 (NGR); details as in the
authors' programs for Neural Graphical Models and Neural Graph Revealers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.graphical.learning.dependence import forbidden_pairs
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings

SMALLEST = 1e-12
"""Lower bound of norms before a logarithm or square root."""


def paths(network: Network, state: Mapping[str, Tensor], normalised: bool = False) -> Tensor:
    """Sum the products of absolute weights over all paths, ``[clients, output units, input units]``.

    No output grows faster with an input than by this, as activations have slopes of 1 at most; both are measured as the
    network scales them, and probabilities by their logits. ``normalised``, as in the authors' programs: before each
    product, weights that leave a unit, and paths that have left an input, are divided by their Euclidean length.
    """

    def scaled(values: Tensor) -> Tensor:
        return functional.normalize(values, dim=-1) if normalised else values

    # Rows are the origins of paths.
    product = network.first_weight(state).abs().transpose(2, 3)
    between = [state[f"hidden.{layer}.weight"] for layer in range(1, network.settings.layers)]
    for weight in [*between, network.head_weight(state)]:
        product = scaled(product) @ scaled(weight.abs().transpose(2, 3))
    return network.in_order(product.transpose(2, 3).flatten(1, 2))


def matrix_norm(matrices: Tensor, norm: Literal["spectral", "l1", "column-sum"]) -> Tensor:
    """Return the norm ``path_norm`` of ``[clients, outputs, inputs]``, where the paper has inputs first."""
    if norm == "spectral":
        return torch.linalg.matrix_norm(matrices, ord=2)
    sums = matrices.abs().sum(2)
    return sums.sum(1) if norm == "l1" else sums.amax(1)


@dataclass(frozen=True)
class PathPenalty:
    """``lambda log(||Pi * S|| / U^2)`` for U units, where S is 1 for pairs that the graph forbids (eq. 1).

    With ``gamma`` that of eq. 5, ``lambda ||sym(Pi) * S|| / U^2 + gamma ||sym(Pi)|| / U^2``, over a full graph, which
    forbids the pairs within a feature. The settings determine paths, norm, and whether the logarithm is taken.

    before : a model's tensors without what is learned, for personalisation. Eq. 1 stays that of all paths (section
             2.4), while eq. 5 counts only their excess over its own (section 2.5: new weights only). Within the
             tolerance are models whose excess is: what is frozen cannot be brought into it.
    """

    settings: NGMSettings
    gamma: float | None = None
    before: Mapping[str, Tensor] | None = None

    @property
    def chooses(self) -> bool:
        """Whether it is a bounded sparsity penalty; a given graph is enforced by its tolerance."""
        return self.gamma is not None and not self.settings.path_log

    def __call__(self, network: Network, state: Mapping[str, Tensor]) -> Tensor:
        """See :class:`fedgraph.graphical.network.training.Penalty`."""
        normalised = self.settings.path_rows == "normalised"
        if self.gamma is None:
            forbidden = paths(network, state, normalised) * forbidden_pairs(network)
            return self.settings.path_weight * self._strength(forbidden)
        found = self._added(network, state, normalised)
        found = (found + found.transpose(1, 2)) / 2
        own = self._strength(found * forbidden_pairs(network))
        return self.settings.path_weight * own + self.gamma * self._strength(found)

    def excess(self, network: Network, state: Mapping[str, Tensor]) -> Tensor:
        """See :class:`fedgraph.graphical.network.training.Penalty`."""
        largest = (self._added(network, state) * forbidden_pairs(network)).amax((1, 2))
        return (largest - self.settings.path_tolerance).clamp(min=0)

    def _added(self, network: Network, state: Mapping[str, Tensor], normalised: bool = False) -> Tensor:
        found = paths(network, state, normalised)
        return found if self.before is None else found - paths(network, self.before, normalised)

    def _strength(self, found: Tensor) -> Tensor:
        strength = matrix_norm(found, self.settings.path_norm)[:, None] / found.shape[1] ** 2
        return strength.clamp(min=SMALLEST).log() if self.settings.path_log else strength


@dataclass(frozen=True)
class SparsePaths:
    """Strength of the paths from other features, for networks with a group of hidden units for each feature.

    All paths from one feature to another are measured by their Euclidean norm, so they vanish together. The penalty is
    invariant to rescaling between layers and to paths that cancel out. It is relative to the loss of predicting a
    feature's mean, so ``weight`` means the same for all.
    """

    weight: float

    @property
    def chooses(self) -> bool:
        """True: it is bounded, and the best fit would leave graphs dense."""
        return True

    def __call__(self, network: Network, state: Mapping[str, Tensor]) -> Tensor:
        """See :class:`fedgraph.graphical.network.training.Penalty`."""
        squares = network.membership.T @ paths(network, state).square() @ network.membership
        # The root has no derivative at 0.
        strengths = squares.clamp(min=SMALLEST).sqrt().sum(2)
        scale = network.heads.marginal_losses(state["mean"], state["deviation"]) / len(network.unit_group)
        return self.weight * scale * strengths

    def excess(self, network: Network, state: Mapping[str, Tensor]) -> Tensor:
        """Return 0: a feature does not see itself, and may see all others."""
        return state["mean"].new_zeros(len(state["mean"]))
