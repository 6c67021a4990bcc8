"""Gibbs sampling from graphical models: every feature is drawn anew given all others, again and again.

A category is drawn by its probability, a number from a normal distribution around its prediction, with the error in
held-out rows as variance. Not in the papers on neural graphical models; overrelaxation: Adler, Physical Review D 23
(1981) 2901.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.graphical.categories import one_of_each
from fedgraph.graphical.inference import Scale
from fedgraph.graphical.network import Network
from fedgraph.graphical.network_parts import Part, parts_of

FARTHEST = 4.0
"""Standard deviations from its mean that a number is drawn within: networks that contradict each other could drift off
for ever, and on a logarithmic scale a little farther is far off."""


class Gibbs:
    """Rows of some models while they are drawn; they start with features that are independent of each other.

    given   : ``[clients, rows, units]``, NaN for what is drawn.
    random  : a generator for each client.
    bounded : what would lie outside the range of an integer or ordinal is drawn as the end of the range.
    shift   : what :meth:`centring` of other rows told.
    """

    def __init__(
        self,
        network: Network,
        parameters: Tensor,
        given: Tensor,
        random: Sequence[torch.Generator],
        bounded: bool = False,
        shift: Tensor | None = None,
    ) -> None:
        unknown = given.isnan()
        state = network.state(parameters)
        self._random = random
        features = unknown[..., network.first_units].flatten(0, 1).any(0)
        self._parts = parts_of(network, parameters, features, shift)
        self._mean, deviation = state["mean"][:, :, None], state["deviation"][:, :, None]
        self._noise = state["residual"].clamp(min=0).sqrt()[:, :, None]
        self._lowest, self._highest = self._mean - FARTHEST * deviation, self._mean + FARTHEST * deviation
        if bounded:
            kinds = [feature.kind in ("integer", "ordinal") for feature in network.schema.features]
            whole = torch.tensor(kinds)[network.schema.unit_feature][:, None]
            # A model may have means outside the ranges, such as those that others took.
            self._lowest = torch.where(whole, self._mean.clamp(max=0), self._lowest)
            self._highest = torch.where(whole, self._mean.clamp(min=1), self._highest)
        self._scale = Scale(network, parameters)
        self._units = given.transpose(1, 2).contiguous()
        self._unknown = unknown.transpose(1, 2)
        for part in self._parts:
            start = self._mean[:, part.units].expand(-1, -1, given.shape[1])
            self._fill(part, _drawn(part, start, deviation[:, part.units], random))
        self._inputs = self._scale.inputs(self._units)

    @property
    def rows(self) -> Tensor:
        """As they are now, ``[clients, rows, units]``."""
        return self._units.transpose(1, 2)

    def run(self, sweeps: int, overrelaxation: float) -> None:
        """Draw everything so many times.

        The first sweep is without overrelaxation: it forgets where numbers started, so that those whose neighbours are
        known need no second.
        """
        for sweep in range(sweeps):
            for part in self._parts:
                self._draw(part, part(self._inputs), overrelaxation if sweep else 0.0)

    def centring(self, sweeps: int, overrelaxation: float) -> Tensor:
        """The same, with every prediction shifted so that what is drawn has the mean of the training rows.

        Returns by how much outputs were shifted, on average over the second half of the sweeps, ``[clients, units]``.
        """
        total = torch.zeros_like(self._mean)
        current = torch.zeros_like(self._mean)
        for sweep in range(sweeps):
            for part in self._parts:
                expected = self._expected(part, part(self._inputs))
                current[:, part.units] += part.centre(expected, self._mean[:, part.units])
                self._draw(part, part(self._inputs), overrelaxation if sweep else 0.0)
            if sweep >= sweeps // 2:
                total += current
        return total[..., 0] / (sweeps - sweeps // 2)

    def _expected(self, part: Part, predicted: Tensor) -> Tensor:
        """Of what is drawn: numbers beyond their bounds are drawn as these.

        E[min(max(x, a), b)] = a + s (G((m - a) / s) - G((m - b) / s)) of x normal around m, G(z) = z P(z) + p(z).
        """
        noise = self._noise[:, part.units].clamp(min=1e-6)
        lowest, highest = self._lowest[:, part.units], self._highest[:, part.units]
        above = _mean_above_zero((predicted - lowest) / noise) - _mean_above_zero((predicted - highest) / noise)
        return torch.where(part.is_number[:, None], lowest + noise * above, predicted)

    def _draw(self, part: Part, predicted: Tensor, overrelaxation: float) -> None:
        chosen = part.units
        if overrelaxation:
            beyond = predicted + overrelaxation * (predicted - self._units[:, chosen])
            predicted = torch.where(part.is_number[:, None], beyond, predicted)
        drawn = _drawn(part, predicted, self._noise[:, chosen] * (1 - overrelaxation**2) ** 0.5, self._random)
        self._fill(part, drawn.clamp(self._lowest[:, chosen], self._highest[:, chosen]))
        self._inputs[:, chosen] = self._scale.of_units(self._units[:, chosen], chosen)

    def _fill(self, part: Part, values: Tensor) -> None:
        self._units[:, part.units] = torch.where(self._unknown[:, part.units], values, self._units[:, part.units])


def _drawn(part: Part, expected: Tensor, deviation: Tensor, random: Sequence[torch.Generator]) -> Tensor:
    """Numbers around their expectation, and one category of each feature by its probability.

    ``expected`` is ``[clients, units of the part, rows]``; ``deviation`` lacks the rows and counts for numbers alone.
    """
    numbers, indicators = part.is_number.nonzero()[:, 0], (~part.is_number).nonzero()[:, 0]
    rows = expected.shape[2]
    drawn = expected.clone()
    if len(numbers):
        normal = torch.stack([torch.randn(len(numbers), rows, generator=one) for one in random])
        drawn[:, numbers] += deviation[:, numbers] * normal
    if len(indicators):
        owner = part.owner[indicators].unique_consecutive(return_inverse=True)[1]
        uniform = torch.stack([torch.rand(int(owner[-1]) + 1, rows, generator=one) for one in random])
        drawn[:, indicators] = one_of_each(expected[:, indicators], owner, uniform)
    return drawn


def _mean_above_zero(mean: Tensor) -> Tensor:
    """Expectation of max(x, 0), x normal around ``mean`` with deviation 1."""
    return mean * torch.special.ndtr(mean) + torch.exp(-0.5 * mean.square()) / math.sqrt(2 * math.pi)
