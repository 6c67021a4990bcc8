"""Values over seeds, and differences between two rows paired by seed, with confidence intervals.

Nadeau, Bengio: Inference for the Generalization Error (Machine Learning 52, 2003), for seeds that resplit one data set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

_LEVEL = 0.95


class Spread(NamedTuple):
    """A value over seeds.

    ``deviation`` is the sample standard deviation, None for a single seed; ``values``, by seed, may be empty.
    """

    mean: float
    deviation: float | None
    values: dict[int, float]

    @classmethod
    def over(cls, values: dict[int, float]) -> Spread:
        """Compute mean and deviation of at least one value."""
        every = np.array(list(values.values()))
        return cls(float(every.mean()), float(every.std(ddof=1)) if len(every) > 1 else None, values)


@dataclass(frozen=True)
class Difference:
    """The reference row minus another one, over the seeds that both have.

    Attributes
    ----------
    values : dict of int to float
        Differences by seed.
    mean : float
        Their mean.
    margin : float or None
        Half the width of the 95 % interval of the mean; None for a single seed.
    above : int
        Number of seeds for which the reference has the larger value.
    """

    values: dict[int, float]
    mean: float
    margin: float | None
    above: int

    @classmethod
    def between(cls, reference: Spread, other: Spread, overlap: float) -> Difference | None:
        """Compute the differences, or None without common seeds.

        The interval is Student's t; the variance of the mean is that of the differences times ``1 / seeds + overlap``.
        """
        both = reference.values.keys() & other.values.keys()
        if not both:
            return None
        values = {seed: reference.values[seed] - other.values[seed] for seed in sorted(both)}
        every, count = np.array(list(values.values())), len(values)
        margin = None
        if count > 1:
            quantile = float(stdtrit(count - 1, (1 + _LEVEL) / 2))
            margin = quantile * float(every.std(ddof=1)) * math.sqrt(1 / count + overlap)
        return cls(values, float(every.mean()), margin, int((every > 0).sum()))

    def __str__(self) -> str:
        """Format as ``+0.012 [-0.003, +0.027] 4/5``: mean, interval, and seeds with a larger reference."""
        interval = ""
        if self.margin is not None:
            interval = f" [{self.mean - self.margin:+.3f}, {self.mean + self.margin:+.3f}]"
        return f"{self.mean:+.3f}{interval} {self.above}/{len(self.values)}"
