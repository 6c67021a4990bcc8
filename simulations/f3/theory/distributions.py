"""Theorems 1 and 2 of Ma et al. 2023: draws of the ICDF and the Gumbel variable against eqs. 10, 11 and 13."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from fedgraph.reproduce import calm, panels
from fedgraph.simulations.f3.theory.draws import gumbel_draws, icdf_draws
from fedgraph.simulations.f3.theory.formulas import gumbel_distribution, icdf_distribution
from fedgraph.simulations.f3.theory.numerics import largest_likely_distance, share_up_to
from fedgraph.simulations.f3.theory.references import CAUCHY, LAPLACE, LOGISTIC, NORMAL, UNIFORM, Reference
from fedgraph.simulations.f3.theory.section import BLUE, GREEN, ORANGE, Check, Section
from fedgraph.support.randomness import generator

Array = NDArray[np.float64]

REFERENCES = (NORMAL, LAPLACE, CAUCHY, UNIFORM)
THETAS = (0.1, 0.4, 0.8)
TAUS = (0.1, 0.5)
GUMBEL = "Gumbel softmax"
LOGITS = np.linspace(-8, 8, 1601)
"""Of the values t at which distributions are compared; single precision resolves draws well up to here."""

_COLOURS = dict(zip(THETAS, (BLUE, GREEN, ORANGE), strict=True))
_STYLES = dict(zip(TAUS, ("-", "--"), strict=True))
_HEADINGS = ("variable", "theta", "tau", "draws", "largest distance", "bound", "within")


@dataclass(frozen=True)
class Case:
    """Draws of one variable beside its distribution at :data:`LOGITS`."""

    variable: str
    theta: float
    tau: float
    printed: Array
    drawn: Array

    @property
    def distance(self) -> float:
        """The largest one, over all t looked at."""
        return float(np.abs(self.printed - self.drawn).max())


def icdf_cases(count: int, seed: int) -> list[Case]:
    """Every reference distribution, theta and temperature."""
    return [
        _case(
            f"ICDF, {reference.title}", theta, tau, icdf_distribution(LOGITS, theta, tau, reference.law),
            _icdf(reference, theta, tau, count, seed),
        )
        for reference in REFERENCES for theta in THETAS for tau in TAUS
    ]  # fmt: skip


def gumbel_cases(count: int, seed: int) -> list[Case]:
    """Every theta and temperature, and the same from ICDF with a logistic F, which has the same distribution."""
    pairs = [(theta, tau, gumbel_distribution(LOGITS, theta, tau)) for theta in THETAS for tau in TAUS]
    return [
        *(_case(GUMBEL, theta, tau, printed, _gumbel(theta, tau, count, seed)) for theta, tau, printed in pairs),
        *(
            _case(f"ICDF, {LOGISTIC.title}", theta, tau, printed, _icdf(LOGISTIC, theta, tau, count, seed))
            for theta, tau, printed in pairs
        ),
    ]


def _gumbel(theta: float, tau: float, count: int, seed: int) -> Tensor:
    return gumbel_draws(theta, tau, count, generator(seed, "theorem 2", str(theta), str(tau)))


def _icdf(reference: Reference, theta: float, tau: float, count: int, seed: int) -> Tensor:
    return icdf_draws(reference, theta, tau, count, generator(seed, "theorem 1", reference.title, str(theta), str(tau)))


def _case(variable: str, theta: float, tau: float, printed: Array, draws: Tensor) -> Case:
    return Case(variable, theta, tau, printed, share_up_to(draws, LOGITS))


def theorem_1(count: int, seed: int) -> Section:
    """Eqs. 10 and 11."""
    return _section(
        "theorem-1",
        "Theorem 1: the distribution of the ICDF variable",
        "Definition 1 with four reference distributions, one of them of finite support (eq. 10 gives its flat ends). "
        "Lines are eqs. 10 and 11, dots are draws of the graph that is used in training.",
        icdf_cases(count, seed),
        count,
        "1",
        [f"ICDF, {reference.title}" for reference in REFERENCES],
    )


def theorem_2(count: int, seed: int) -> Section:
    """Eq. 13."""
    return _section(
        "theorem-2",
        "Theorem 2: the distribution of the Gumbel softmax",
        "Lines are eq. 13, dots are draws of the graph that is used in training. As the difference of two Gumbel "
        "variables is a logistic one, eq. 13 is eq. 11 with the logistic distribution for F: Gumbel softmax of a "
        "Bernoulli variable is one of the ICDF reparameterisations, drawn with twice the noise. Draws of both are "
        "compared with eq. 13.",
        gumbel_cases(count, seed),
        count,
        "2",
        [GUMBEL, f"ICDF, {LOGISTIC.title}"],
    )


def _section(
    name: str, title: str, text: str, cases: Sequence[Case], count: int, theorem: str, variables: Sequence[str]
) -> Section:
    bound = largest_likely_distance(count, len(cases))
    largest = max(cases, key=lambda case: case.distance)
    lines = tuple(
        (case.variable, case.theta, case.tau, count, case.distance, bound, case.distance <= bound) for case in cases
    )
    check = Check(
        theorem,
        f"distance of {count:,} draws from the printed distribution, largest of {len(cases)} cases",
        f"< {bound:.2g}",
        f"{largest.distance:.2g}",
        largest.distance <= bound,
    )
    table = pd.DataFrame(lines, columns=_HEADINGS)
    bound_in_words = (
        f"The bound is what the largest distance of {count:,} draws exceeds in one of {len(cases)} cases once in a "
        "thousand times, were the formula right (Dvoretzky, Kiefer, Wolfowitz and Massart)."
    )
    return Section(name, title, f"{text} {bound_in_words}", _figure(cases, variables), table, (check,))


def _figure(cases: Sequence[Case], variables: Sequence[str]) -> Any:
    """A panel per variable: its distribution by theta and temperature, and dots for draws."""
    figure, axes = panels(len(variables), width=4.2, height=3.0)
    values = expit(LOGITS)
    dots = np.searchsorted(values, np.linspace(0.02, 0.98, 25))
    for axis, variable in zip(axes, variables, strict=True):
        for case in cases:
            if case.variable != variable:
                continue
            colour, style = _COLOURS[case.theta], _STYLES[case.tau]
            axis.plot(values, case.printed, style, color=colour, linewidth=1.3, zorder=2)
            axis.plot(values[dots], case.drawn[dots], "o", color=colour, markersize=2.4, zorder=3)
        calm(axis, variable, "t", "share of draws up to t")
        axis.set_ylim(-0.03, 1.03)
    for theta, colour in _COLOURS.items():
        axes[0].plot([], [], "-", color=colour, label=f"θ = {theta}")
    for tau, style in _STYLES.items():
        axes[0].plot([], [], style, color="0.3", label=f"τ = {tau}")
    axes[0].plot([], [], "o", color="0.3", markersize=2.4, label="draws")
    figure.legend(loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return figure
