"""The alignment term of IPA: distances between one peer's parameters and those of all others, on stacked parameters.

Gorbett, Shirazi, Ray: Cross-Silo Federated Learning Across Divergent Domains with Iterative Parameter Alignment (IEEE
Big Data 2023), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.training.alignment import kernel as peer_alignment_kernel
from fedgraph.training.batches import learning_rates
from fedgraph.training.optimisers import Optimiser
from fedgraph.training.settings import TrainSettings


def alignment(own: Tensor, others: Tensor, weights: Tensor, power: float) -> Tensor:
    """Return ``sum_j c_j sum |own - others_j|^p`` over all parameters, a scalar; no root, as in the released program.

    own : ``[parameters]``. others : ``[peers, parameters]``. weights : c, ``[peers]``.
    """
    return weights @ (own - others).abs().pow(power).sum(1)


def alignment_pull(own: Tensor, others: Tensor, weights: Tensor, power: float) -> Tensor:
    """Return ``c_j p |d|^(p-1) sign(d)``, ``d = own - others_j``, ``[peers, parameters]``; 0 where they are equal.

    Its sum over peers is the gradient of :func:`alignment` with respect to ``own``; its negative, row by row, is that
    with respect to ``others``. For p = 1 it is a subgradient.
    """
    return _slope(own - others, power).mul_(weights[:, None])


def _slope(difference: Tensor, power: float) -> Tensor:
    """Return ``p |d|^(p-1) sign(d)``; overwrite ``difference``."""
    if power == 1:
        return difference.sign_()
    if power == 2:
        return difference.mul_(2)
    sign = difference.sign()
    return difference.abs_().pow_(power - 1).mul_(power).mul_(sign)


@dataclass(frozen=True)
class Distance:
    """Definition and weight of distances between peers.

    Attributes
    ----------
    strength : float
        Lambda.
    of_sum : bool
        Whether lambda is relative to the summed loss of a minibatch, as in the paper, or to its mean.
    power : float
        Exponent p of the distance.
    """

    strength: float
    of_sum: bool
    power: float

    def weighed(self, weights: Tensor, batch_weight: Tensor) -> Tensor:
        """Return weights lambda c ``[clients, peers]`` for minibatches of ``batch_weight`` ``[clients]`` examples."""
        # A cohort's loss is a mean, so weights relative to the sum are divided by the number of examples.
        return weights * (self.strength / batch_weight[:, None] if self.of_sum else self.strength)


class PeerAlignment:
    """Gradient term that aligns the training peer with ``others``, and updates these too.

    A :data:`GradientTerm` with state: each call is one minibatch.

    Parameters
    ----------
    others : Tensor
        ``[peers, trainable]``, updated in place by an optimiser with the settings of the peer's own.
    weights : Tensor
        c, ``[peers]``.
    distance : Distance
        Definition and weight of distances.
    moves : bool
        Whether the others' parameters are updated; they are fixed in algorithm 1.
    settings : TrainSettings
        Settings of the training peer.
    round : int
        Selects the learning rates.
    moments : dict of str to Tensor
        Moments of the others' optimiser, updated in place.
    num_examples : Tensor
        Training examples of the training peer, int64 ``[1]``, for the learning rate schedule.
    least : int, default 1
        Minimum number of examples of a minibatch, for the schedule.
    """

    def __init__(
        self,
        others: Tensor,
        weights: Tensor,
        distance: Distance,
        moves: bool,
        settings: TrainSettings,
        round: int,
        moments: dict[str, Tensor],
        num_examples: Tensor,
        least: int = 1,
    ) -> None:
        self.others, self.weights, self.distance, self.moves = others, weights, distance, moves
        self.moments = moments
        self._optimiser = Optimiser(settings, settings.rate(round), moments)
        self._rates = learning_rates(settings, num_examples, round, least)
        self._step = 0
        self._weighed: tuple[float, Tensor] | None = None
        self._native = peer_alignment_kernel.suits(settings, others, *moments.values())

    def __call__(self, own: Tensor, clients: slice | Tensor, batch_weight: Tensor) -> Tensor:
        """Return the gradient for ``own`` ``[1, trainable]``; see ``GradientTerm``."""
        weights = self._weights(batch_weight)
        rates = None if self._rates is None else self._rates[self._step]
        self._step += 1
        if self._native:
            rate = self._optimiser.learning_rate if rates is None else float(rates)
            moments = self.moments if self.moves else None
            settings, power = self._optimiser.settings, self.distance.power
            return peer_alignment_kernel.align(own[0], self.others, weights, power, moments, settings, rate)[None]
        pull = alignment_pull(own[0], self.others, weights, self.distance.power)
        added = pull.sum(0, keepdim=True)
        if self.moves:
            self._optimiser.step(self.others, pull.neg_(), None if rates is None else rates.expand(len(pull)))
        return added

    def _weights(self, batch_weight: Tensor) -> Tensor:
        """Return lambda c ``[peers]`` for a minibatch; cached by its size on a CPU."""
        if batch_weight.device.type != "cpu":  # a comparison would synchronise with the GPU
            return self.distance.weighed(self.weights[None], batch_weight)[0]
        if self._weighed is None or float(batch_weight) != self._weighed[0]:
            self._weighed = float(batch_weight), self.distance.weighed(self.weights[None], batch_weight)[0]
        return self._weighed[1]


class FixedAlignment:
    """Gradient term that aligns several simultaneously training peers with fixed ones.

    Parameters
    ----------
    peers : Tensor
        ``[peers, trainable]``, not modified.
    weights : Tensor
        c, ``[clients, peers]``, 0 for a client itself.
    distance : Distance
        Definition and weight of distances.
    """

    def __init__(self, peers: Tensor, weights: Tensor, distance: Distance) -> None:
        self.peers, self.weights, self.distance = peers, weights, distance

    def __call__(self, own: Tensor, clients: slice | Tensor, batch_weight: Tensor) -> Tensor:
        """Return the gradient for ``own`` ``[clients, trainable]``; see ``GradientTerm``."""
        weights, power = self.distance.weighed(self.weights[clients], batch_weight), self.distance.power
        if power == 2:
            return 2 * (own * weights.sum(1, keepdim=True) - weights @ self.peers)
        added = torch.zeros_like(own)
        # By peer: all differences at once would take memory for clients times peers.
        for peer, weight in zip(self.peers, weights.unbind(1), strict=True):
            added.addcmul_(_slope(own - peer, power), weight[:, None])
        return added
