"""Distributions and biases of relaxed Bernoulli variables as Ma et al. 2023 print them: eqs. 10, 11, 13, 15 to 17.

Values t in (0, 1) are given by their logit, log(t / (1 - t)), so that those near 0 and 1 keep their precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfinv

from fedgraph.simulations.f3.theory.references import Law

Array = NDArray[np.float64]

_HALF_WIDTH, _STEP = 40.0, 0.005
_LOGITS = np.arange(-_HALF_WIDTH, _HALF_WIDTH + _STEP / 2, _STEP)
_DENSITY = np.exp(-np.abs(_LOGITS)) / (1 + np.exp(-np.abs(_LOGITS))) ** 2
"""dt / d logit on the grid of logits that integrals over t are taken on."""


def icdf_distribution(logits: Array, theta: float, tau: float, law: Law) -> Array:
    """Pr(z <= t) of the ICDF variable, eqs. 10 and 11."""
    s = float(law.ppf(theta))
    a, b = law.support()
    inside = 1 - law.cdf(s - tau * logits)
    return np.where(logits < (s - b) / tau, 0.0, np.where(logits > (s - a) / tau, 1.0, inside))


def gumbel_distribution(logits: Array, theta: float, tau: float) -> Array:
    """Pr(y_1 <= t) of the Gumbel softmax, eq. 13, numerator and denominator divided by the numerator."""
    return np.asarray(1 / (1 + np.exp(-tau * logits) * theta / (1 - theta)))


def bias(distribution: Callable[[Array], Array], theta: float) -> float:
    """E[x] - theta with E[x] = 1 - integral of Pr(x <= t) over t in [0, 1] (appendix D), by the trapezoidal rule."""
    return float(((1 - theta - distribution(_LOGITS)) * _DENSITY).sum() * _STEP)


def icdf_bias(theta: float, tau: float, law: Law) -> float:
    """Bias(z) for any temperature."""
    return bias(lambda logits: icdf_distribution(logits, theta, tau, law), theta)


def gumbel_bias(theta: float, tau: float) -> float:
    """Bias(y_1) for any temperature."""
    return bias(lambda logits: gumbel_distribution(logits, theta, tau), theta)


def gumbel_constant(theta: float) -> float:
    """Eq. 15: Bias(y_1) / tau^2 as tau goes to 0."""
    return math.pi**2 / 6 * theta * (1 - theta) * (1 - 2 * theta)


def icdf_constant(second_derivative: float) -> float:
    """Eq. 16: Bias(z) / tau^2 as tau goes to 0, of F'' at the inverse of F at theta."""
    return math.pi**2 / 6 * second_derivative


def normal_constant(theta: float, sigma: float) -> float:
    """Eq. 17: the same for a normal reference distribution of deviation sigma."""
    e = float(erfinv(2 * theta - 1))
    return -(math.pi**1.5) / (6 * sigma**2) * e * math.exp(-(e**2))


def ratio_of_constants(theta: float) -> float:
    """r(theta) of appendix C: Bias(y_1) / Bias(z) for equal temperatures is sigma^2 r(theta)."""
    return gumbel_constant(theta) / normal_constant(theta, sigma=1.0)
