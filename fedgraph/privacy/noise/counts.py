"""Release of counts of rows with noise, and its (epsilon, delta).

Laplace noise on integers is the geometric mechanism of Ghosh, Roughgarden and Sundararajan (STOC 2009); Gaussian
noise is accounted for as in ``fedgraph.privacy.noise.gaussian``.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.privacy.noise.entropy import random_integers, standard_normal
from fedgraph.privacy.noise.gaussian import noise_multiplier_for
from fedgraph.support.settings import Settings


class CountNoiseSettings(Settings):
    """Noise on counts before they leave their owner.

    Neighbours are two tables with the same number of rows that differ in the values of one row, which changes two cells
    of each histogram by 1. All histograms of a release share epsilon.

    Attributes
    ----------
    mechanism : ``laplace``, or ``gaussian``, which is better for more than about a dozen histograms.
    epsilon : privacy loss of one release for a row. Releases with new noise add up.
    delta     : for ``gaussian``, the probability that the loss is larger; well below one over the number of
                rows. With ``laplace`` it is 0.
    """

    mechanism: Literal["laplace", "gaussian"] = "laplace"
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-6, gt=0, lt=1)

    @property
    def loss(self) -> tuple[float, float]:
        """Epsilon and delta of one release."""
        return self.epsilon, self.delta if self.mechanism == "gaussian" else 0.0

    def scale(self, histograms: int) -> float:
        """Return the scale of the noise on every cell: Laplace's b, or the standard deviation.

        One row changes the counts by ``2 histograms`` in the L1 norm, and by the root of that in the Euclidean norm.
        """
        if self.mechanism == "laplace":
            return 2 * histograms / self.epsilon
        return noise_multiplier_for(self.epsilon, self.delta) * math.sqrt(2 * histograms)

    def largest(self, cells: int, histograms: int, probability: float = 1e-3) -> float:
        """Return a bound on the noise of ``cells`` cells that is exceeded with at most this probability."""
        if self.mechanism == "laplace":
            return self.scale(histograms) * max(0.0, math.log(cells / (2 * probability)))
        quantile = torch.special.ndtri(torch.tensor(1 - probability / cells, dtype=torch.float64))
        return self.scale(histograms) * float(quantile)


def noisy_counts(
    counts: Tensor, histograms: int, settings: CountNoiseSettings, generator: torch.Generator | None = None
) -> Tensor:
    """Add noise to counts for release; results can be negative.

    The guarantee is that of exact random numbers; drawn with 52 bits, noise beyond 36 scales, whose probability is
    1e-16, never occurs. Returns int64 of the same shape. Raises ExperimentError for Gaussian noise, when the accounting
    package is not installed or finds no noise for epsilon and delta.

    Parameters
    ----------
    counts : Tensor
        int64, the cells of all histograms, in any shape.
    histograms : int
        Number of histograms.
    settings : CountNoiseSettings
        Mechanism, epsilon and delta.
    generator : torch.Generator, optional
        For tests and simulations only; by default noise comes from the operating system.
    """
    scale = settings.scale(histograms)
    if settings.mechanism == "gaussian":
        return counts + (scale * standard_normal(counts.shape, generator)).round().long()
    uniform = (random_integers((2, *counts.shape), 52, generator).double() + 0.5) * 2.0**-52
    # The difference of two geometric numbers is k with a probability in proportion to exp(-|k| / scale).
    first, second = (-scale * uniform.log()).floor().long()
    return counts + first - second
