"""The scale that maps a number to a unit: linear, or logarithmic for a skewed number.

Models predict units and draw them with noise of one size, whatever the prediction. For concentrations, incomes and
other skewed numbers that is right only on a logarithmic scale: on a straight one nearly all units are close to 0, and
the noise of a few large numbers drowns them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedgraph.data.columns.columns import Floats

FARTHEST = 1000.0
"""Distance from its range, in ranges, beyond which a value counts as a mistake: squared, it would drown all others."""

_NEAREST = 0.01
"""Least distance of a median from an end, as a fraction of the range.

Nearer medians, as in a column of mostly zeros, count as this far away.
"""

_POINTS = 32
"""Points of the quadrature, which is exact for polynomials of twice that degree."""


@dataclass(frozen=True)
class UnitScale:
    """Conversion between the values of one feature and its units.

    A value at the fraction z of its range has the unit z on a straight scale, and on a logarithmic one

        sign(z) log(1 + g abs(z)) / log(1 + g),

    which is 0 at z = 0 and 1 at z = 1. The growth g is such that the median has the unit 1/2. If the median is in the
    upper half of the range, the scale is reversed.

    Attributes
    ----------
    growth : g, 0 for a straight scale.
    turned : whether the scale is reversed, so that values near the high end are spread out instead of those near the
        low end.
    """

    low: float
    high: float
    growth: float = 0.0
    turned: bool = False

    @classmethod
    def of(cls, low: float, high: float, median: float | None = None) -> UnitScale:
        """Construct a scale from a range; straight unless a median away from the middle is given."""
        if median is None:
            return cls(low, high)
        share = (median - low) / (high - low)
        near = max(min(share, 1 - share), _NEAREST)
        # log(1 + g m) is half of log(1 + g), so that (1 + g m)^2 = 1 + g.
        return cls(low, high, (1 - 2 * near) / near**2, share > 0.5)

    @property
    def span(self) -> float:
        """Difference of high and low."""
        return self.high - self.low

    def units(self, values: Floats) -> Floats:
        """Convert values to units."""
        shares = (values - self.low) / self.span
        if not self.growth:
            return shares
        shares = 1 - shares if self.turned else shares
        units = np.sign(shares) * np.log1p(self.growth * np.abs(shares)) / np.log1p(self.growth)
        return 1 - units if self.turned else units

    def values(self, units: Floats) -> Floats:
        """Convert units to values, on a logarithmic scale at most ``FARTHEST`` ranges away."""
        if self.growth:
            units = 1 - units if self.turned else units
            powers = np.minimum(np.abs(units) * np.log1p(self.growth), np.log1p(self.growth * FARTHEST))
            shares = np.sign(units) * np.expm1(powers) / self.growth
            units = 1 - shares if self.turned else shares
        return self.low + units * self.span

    def is_far(self, values: Floats) -> np.ndarray:
        """Mask values that are, or whose units are, more than ``FARTHEST`` ranges away."""
        shares = (values - self.low) / self.span
        return np.maximum(np.abs(shares - 0.5), np.abs(self.units(values) - 0.5)) > FARTHEST

    def moments(self, units: Floats, noise: float) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of values ``[rows]`` whose units are a mixture of normal distributions.

        Parameters
        ----------
        units : means of the components, ``[rows, components]``.
        noise : standard deviation of each component.
        """
        if not self.growth:
            return self.values(units.mean(1)), np.sqrt(units.var(1) + noise**2) * self.span
        parts = [(self.values(units + at * noise), weight) for at, weight in _quadrature()]
        mean = np.sum([weight * values.mean(1) for values, weight in parts], 0)
        squares = [weight * np.square(values - mean[:, None]).mean(1) for values, weight in parts]
        return mean, np.sqrt(np.sum(squares, 0))


def _quadrature() -> Iterator[tuple[float, float]]:
    """Yield points of a standard normal variable and their weights, which sum to 1 (Gauss-Hermite)."""
    points, weights = np.polynomial.hermite_e.hermegauss(_POINTS)
    yield from zip(points.tolist(), (weights / weights.sum()).tolist(), strict=True)
