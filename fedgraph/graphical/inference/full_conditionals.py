"""The distribution of each feature given all others: sampling from it, and likelihoods of values.

A category has its probability; a number is normal around its prediction, with the error in held-out rows as variance,
and is clipped to its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedgraph.graphical.inference.prediction import Scale
from fedgraph.graphical.network.heads import sample_one_hot
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.parts import Part, split_parts

FARTHEST = 4.0
"""Numbers are drawn within this many standard deviations of their mean: networks that contradict each other could drift
off for ever, and on a logarithmic scale a little farther is far off.
"""

DETERMINED = 0.2
"""Residual deviation, as a share of the deviation, below which answers about simulated rows were far off."""

_LEAST = 1e-7
"""Smallest probability whose logarithm is taken."""
_FINEST = 0.01
"""Least noise of a known number, in its deviations: no draw would ever match an exact value."""


class Noise(Protocol):
    """Random numbers for the rows of a part, ``[clients, ..., rows]``, of the units and features at given positions."""

    def normal(self, units: Tensor, rows: int) -> Tensor:
        """Return standard normal numbers."""

    def uniform(self, features: Tensor, rows: int) -> Tensor:
        """Return uniform numbers in [0, 1)."""

    def single(self) -> Tensor:
        """Return one uniform number in [0, 1) for each client, ``[clients, 1]``."""


class OwnNoise:
    """Independent numbers for every row, from a generator for each client."""

    def __init__(self, random: Sequence[torch.Generator]) -> None:
        self._random = random

    def normal(self, units: Tensor, rows: int) -> Tensor:
        """See :class:`Noise`."""
        return torch.stack([torch.randn(len(units), rows, generator=one) for one in self._random])

    def uniform(self, features: Tensor, rows: int) -> Tensor:
        """See :class:`Noise`."""
        return torch.stack([torch.rand(len(features), rows, generator=one) for one in self._random])

    def single(self) -> Tensor:
        """See :class:`Noise`."""
        return torch.stack([torch.rand(1, generator=one) for one in self._random])


class SharedNoise:
    """The same numbers for every ``draws`` rows of one sweep, so that draws of some rows do not depend on other rows.

    counts : numbers of units and of features.
    """

    def __init__(self, random: Sequence[torch.Generator], counts: tuple[int, int], draws: int) -> None:
        self._single = torch.stack([torch.rand(1, generator=one) for one in random])
        self._uniform = torch.stack([torch.rand(counts[1], draws, generator=one) for one in random])
        self._normal = torch.stack([torch.randn(counts[0], draws, generator=one) for one in random])

    def normal(self, units: Tensor, rows: int) -> Tensor:
        """See :class:`Noise`."""
        return self._normal[:, units].repeat(1, 1, rows // self._normal.shape[2])

    def uniform(self, features: Tensor, rows: int) -> Tensor:
        """See :class:`Noise`."""
        return self._uniform[:, features].repeat(1, 1, rows // self._uniform.shape[2])

    def single(self) -> Tensor:
        """See :class:`Noise`."""
        return self._single


class SomeNoise:
    """Noise of some of ``count`` rows, positions int64 ``[rows]``, identical to that of drawing all rows."""

    def __init__(self, noise: Noise, rows: Tensor, count: int) -> None:
        self._noise, self._rows, self._count = noise, rows, count

    def normal(self, units: Tensor, rows: int) -> Tensor:
        """See :class:`Noise`."""
        return self._noise.normal(units, self._count).index_select(2, self._rows)

    def uniform(self, features: Tensor, rows: int) -> Tensor:
        """See :class:`Noise`."""
        return self._noise.uniform(features, self._count).index_select(2, self._rows)

    def single(self) -> Tensor:
        """See :class:`Noise`."""
        return self._noise.single()


class FullConditionals:
    """Full conditionals of ``features`` (bool ``[features]``; None: all) in models ``[clients, parameters]``.

    parts   : groups of features that are no neighbours, which can be drawn at once.
    bounded : an integer or ordinal that would lie outside its range is drawn as the end of the range.
    """

    def __init__(
        self, network: Network, parameters: Tensor, features: Tensor | None = None, bounded: bool = False
    ) -> None:
        state = network.state(parameters)
        self.network = network
        self.parts = split_parts(network, parameters, features)
        self.scale = Scale(network, parameters)
        self.mean, self.deviation = state["mean"][:, :, None], state["deviation"][:, :, None]
        self.noise = state["residual"].clamp(min=0).sqrt()[:, :, None]
        self.lowest, self.highest = self.mean - FARTHEST * self.deviation, self.mean + FARTHEST * self.deviation
        if bounded:
            kinds = [feature.kind in ("integer", "ordinal") for feature in network.schema.features]
            whole = torch.tensor(kinds)[network.schema.unit_feature][:, None]
            # A model may have means outside the ranges, such as means of other clients.
            self.lowest = torch.where(whole, self.mean.clamp(max=0), self.lowest)
            self.highest = torch.where(whole, self.mean.clamp(min=1), self.highest)

    def determined(self) -> list[str]:
        """Return the numbers that others determine in some model up to :data:`DETERMINED` of their deviation.

        A Gibbs sampler hardly moves between rows with different values of them.
        """
        schema = self.network.schema
        few = ((self.noise < DETERMINED * self.deviation)[..., 0] & self.network.heads.is_number).any(0)
        return [schema.names[place] for place in schema.unit_feature[few].tolist()]

    def drawn(self, part: Part, predicted: Tensor, before: Tensor, noise: Noise, overrelaxation: float = 0.0) -> Tensor:
        """Draw values of a part's units from predictions, all ``[clients, units of the part, rows]``.

        overrelaxation : numbers are drawn on the other side of their expectation from their value ``before``, by this
                         share of the distance, and with correspondingly less noise.
        """
        units = part.units
        if overrelaxation:
            beyond = predicted + overrelaxation * (predicted - before)
            predicted = torch.where(part.is_number[:, None], beyond, predicted)
        drawn = random_values(part, predicted, self.noise[:, units] * (1 - overrelaxation**2) ** 0.5, noise)
        return drawn.clamp(self.lowest[:, units], self.highest[:, units])

    def expected(self, part: Part, predicted: Tensor) -> Tensor:
        """Return the expectation of the draws, in which numbers are clipped to their bounds.

        E[min(max(x, a), b)] = a + s (G((m - a) / s) - G((m - b) / s)) of x normal around m, G(z) = z P(z) + p(z).
        """
        noise = self.noise[:, part.units].clamp(min=1e-6)
        lowest, highest = self.lowest[:, part.units], self.highest[:, part.units]
        above = _mean_above_zero((predicted - lowest) / noise) - _mean_above_zero((predicted - highest) / noise)
        return torch.where(part.is_number[:, None], lowest + noise * above, predicted)

    def finest(self, units: Tensor) -> Tensor:
        """Return the noise with which known values of some units are compared, ``[clients, units, 1]``."""
        return torch.maximum(self.noise[:, units], _FINEST * self.deviation[:, units])

    def log_likelihood(self, part: Part, predicted: Tensor, values: Tensor) -> Tensor:
        """Compute log-likelihoods of a part's units by their predictions, both ``[clients, units of the part, rows]``.

        Terms that do not depend on the predictions are left out; the sum over the units of a feature is that of the
        feature.
        """
        units = part.units
        shares = predicted.clamp(_LEAST, 1 - _LEAST)
        found = values * shares.log()
        alone = (part.owner.bincount()[part.owner] == 1)[:, None]
        found = torch.where(alone, found + (1 - values) * (-shares).log1p(), found)
        if not bool(part.is_number.any()):
            return found
        noise = self.finest(units)
        lowest, highest = self.lowest[:, units], self.highest[:, units]
        normal = -0.5 * ((values - predicted) / noise).square()
        normal = torch.where(values <= lowest, torch.special.log_ndtr((lowest - predicted) / noise), normal)
        normal = torch.where(values >= highest, torch.special.log_ndtr((predicted - highest) / noise), normal)
        return torch.where(part.is_number[:, None], normal, found)


def random_values(part: Part, expected: Tensor, deviation: Tensor, noise: Noise) -> Tensor:
    """Draw numbers around their expectation, and one category of each feature by its probability.

    ``expected`` is ``[clients, units of the part, rows]``; ``deviation`` has no rows and is used for numbers alone.
    """
    numbers, indicators = part.is_number.nonzero()[:, 0], (~part.is_number).nonzero()[:, 0]
    rows = expected.shape[2]
    drawn = expected.clone()
    if len(numbers):
        drawn[:, numbers] += deviation[:, numbers] * noise.normal(part.units[numbers], rows)
    if len(indicators):
        places, owner = part.owner[indicators].unique_consecutive(return_inverse=True)
        drawn[:, indicators] = sample_one_hot(
            expected[:, indicators], owner, noise.uniform(part.features[places], rows)
        )
    return drawn


def _mean_above_zero(mean: Tensor) -> Tensor:
    """Return the expectation of max(x, 0), x normal around ``mean`` with deviation 1."""
    return mean * torch.special.ndtr(mean) + torch.exp(-0.5 * mean.square()) / math.sqrt(2 * math.pi)
