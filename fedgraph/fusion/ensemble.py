"""An ensemble of fusion networks on the same embeddings: more training at the server, no further communication.

Weights of members maximise the likelihood of validation samples by the EM algorithm for the proportions of a mixture:
Dempster, Laird, Rubin (J. R. Stat. Soc. B 39, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgraph.fusion.network import FusionNetwork

_SMALLEST = 1e-12
_STEPS = 200


class FusionEnsemble(FusionNetwork):
    """The weighted mean of the probabilities of several networks, each with its own scaling.

    Its members are trained separately.

    Attributes
    ----------
    weights : ``[members]`` with sum 1, initially equal.
    """

    weights: Tensor

    def __init__(self, members: Sequence[FusionNetwork]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", torch.full((len(members),), 1 / len(members)))
        self.stochastic = any(each.stochastic for each in members)

    def forward(self, embeddings: Tensor, present: Tensor, generator: torch.Generator) -> Tensor:
        """See :class:`FusionNetwork`; the logits are logarithms of probabilities."""
        return self.draws(embeddings, present, [generator])[0]

    def draws(self, embeddings: Tensor, present: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """See :class:`FusionNetwork`; members draw their graphs sequentially."""
        mean = torch.zeros(())
        for weight, network in zip(self.weights, self.members, strict=True):
            assert isinstance(network, FusionNetwork)
            logits = network.draws(network.scaled(embeddings, present), present, generators)
            mean = mean + weight * logits.softmax(-1)
        return mean.clamp(min=_SMALLEST).log()


def mixture_weights(probabilities: Tensor) -> Tensor:
    """Return the mixture weights of maximum likelihood, by expectation maximisation.

    Returns float64 ``[members]`` with sum 1.

    Parameters
    ----------
    probabilities : of the true class by each member, ``[members, samples]``.
    """
    likely = probabilities.double().clamp(min=_SMALLEST)
    weights = torch.full((len(likely), 1), 1 / len(likely), dtype=torch.float64)
    for _ in range(_STEPS):
        joint = weights * likely
        weights = (joint / joint.sum(0)).mean(1, keepdim=True)
    return weights[:, 0]
