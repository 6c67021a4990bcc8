"""A fusion network whose first layer is computed on secret shares.

F3 (Ma, Hoang, Chen; UAI 2023), section 5, eqs. 7 and 8. Everything up to the first bias is linear in the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.fusion.network import FusionNetwork, GraphFusion
from fedgraph.fusion.prediction import Average, Prediction, averaged, graph_draws
from fedgraph.privacy.secret import (
    FirstStage,
    ShareSettings,
    check_leaks,
    error_bound,
    outcome,
    quantised,
    reconstruct,
)
from fedgraph.support.errors import ExperimentError
from fedgraph.support.threads import pinned_threads

_MOST_GRAPH_ENTRIES = 1 << 28
"""Maximum number of entries of all graphs of a request, 2 GiB as int64, sent to every aggregator in one message."""


@dataclass(frozen=True)
class Stages:
    """The linear maps of some samples; samples with the same present owners, a pattern, share graphs.

    Attributes
    ----------
    stage : FirstStage
        Its mixing is ``[patterns, draws, owners, owners]``.
    second : Tensor
        ``Mixing.second``, ``[draws, patterns, owners]``.
    constant : Tensor
        Public contribution of the offsets of scaling to the result, ``[draws, patterns, owners, hidden]``.
    patterns : Tensor
        Pattern of each sample, int64 ``[samples]``.
    present : Tensor
        bool ``[samples, owners]``.
    """

    stage: FirstStage
    second: Tensor
    constant: Tensor
    patterns: Tensor
    present: Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the result, ``[draws, owners, samples, hidden]``."""
        draws, _, owners = self.second.shape
        return draws, owners, len(self.patterns), self.stage.projections.shape[1]


class SecretFusion:
    """A fitted fusion network with a quantised first layer.

    Raises ExperimentError when the network has no linear first stage.

    Parameters
    ----------
    network : FusionNetwork
        The fitted network.
    sizes : Tensor
        Length of each owner's embedding, int64 ``[owners]``.
    owners : sequence of str
        Their names, for messages.
    settings : ShareSettings
        Settings of the shares.
    draws, seed, average : int, int, str
        As in :func:`fedgraph.fusion.predict`.
    """

    def __init__(
        self,
        network: FusionNetwork,
        sizes: Tensor,
        owners: Sequence[str],
        settings: ShareSettings,
        draws: int,
        seed: int,
        average: Average = "probabilities",
    ) -> None:
        if not isinstance(network, GraphFusion):
            raise ExperimentError(
                f"{type(network).__name__} has no linear first layer and cannot be computed on secret shares: "
                "train with fusion = 'graph' or 'mean-pooling'"
            )
        self.network = network.eval()
        self.sizes, self.owners, self.settings = sizes, tuple(owners), settings
        self.draws, self.seed, self.average = draws, seed, average

    def stages(self, present: Tensor) -> Stages:
        """Return the linear maps of samples with the present owners, bool ``[samples, owners]``.

        Raises ExperimentError when results could overflow or disclose an embedding, see ``quantised`` and
        ``check_leaks``, and when the graphs, one per draw and set of present owners, take too much memory.
        """
        known, patterns = present.unique(dim=0, return_inverse=True)
        draws = self.draws if self.network.stochastic else 1
        entries = len(known) * draws * known.shape[1] ** 2
        if entries > _MOST_GRAPH_ENTRIES:
            raise ExperimentError(
                f"the graphs of {len(known)} sets of present owners, {draws} draws and {known.shape[1]} owners take "
                f"{8 * entries / 2**30:.1f} GiB for every aggregator; use fewer draws"
            )
        with torch.no_grad(), pinned_threads(1):
            mixing = self.network.mixing(known, graph_draws(self.draws, self.seed))
            projections = self.network.projections()
            constant = mixing.first @ self.network.offsets(projections)
        sizes = self.sizes.tolist()
        stage = quantised(mixing.first.transpose(0, 1), projections, sizes, self.settings)
        check_leaks([stage.projections], sizes, self.settings, self.owners)
        return Stages(stage, mixing.second, constant, patterns, present)

    def prediction(self, stages: Stages, shares: Tensor, points: Sequence[int]) -> Prediction:
        """Compute predictions from the aggregators' shares of the first layer.

        Raises RunError as :func:`fedgraph.privacy.secret.reconstruct` does.

        Parameters
        ----------
        stages : Stages
            Linear maps of the samples.
        shares : Tensor
            int64 ``[given, draws, owners, samples, hidden]``.
        points : sequence of int
            Aggregators that sent the shares.
        """
        found = outcome(reconstruct(shares, points, self.settings.threshold), stages.stage, self.settings)
        first = found.transpose(1, 2).float() + stages.constant[:, stages.patterns]
        second = stages.second[:, stages.patterns]
        with torch.no_grad(), pinned_threads(1):
            return averaged(self.network.finish(first, second, stages.present), self.average)

    def error_bound(self, stages: Stages) -> float:
        """Return an upper bound of the error of a probability due to shares, for embeddings up to ``settings.largest``.

        The bound of the first layer's result is propagated: ReLU is 1-Lipschitz, sums and W1 add magnitudes, and a
        probability changes by at most tanh(D / 4) if differences of logits change by at most D. Float32 rounding, about
        1e-6, is not included. Typical errors are about a hundred times smaller.
        """
        first = error_bound(stages.stage, self.settings)
        known = stages.present.new_zeros(len(first), len(self.sizes))
        known[stages.patterns] = stages.present
        _, counted = self.network.counts(known)
        # A sum over present owners.
        weight = (stages.second.abs() * known / counted.sum(1, keepdim=True).clamp(min=1)).double()
        hidden = torch.einsum("pdoh,dpo->pdh", first, weight)
        *between, last = (
            each.detach().double() for each in (self.network.weights[1], *(layer.weight for layer in self.network.head))
        )
        for weights in between:
            hidden = hidden @ weights.abs()
        differences = hidden @ (last[:, :, None] - last[:, None]).abs().flatten(1)
        return float((differences.amax(-1) / 4).tanh().mean(1).max())
