"""Theorem 4 of Ma et al. 2023: the sign of both biases at any temperature, and densities that it does not speak of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgraph.reproduce import calm, panels
from fedgraph.simulations.f3.theory.draws import gumbel_draws, icdf_draws
from fedgraph.simulations.f3.theory.formulas import gumbel_bias, icdf_bias
from fedgraph.simulations.f3.theory.numerics import Estimate, bias_of_draws
from fedgraph.simulations.f3.theory.references import CAUCHY, LAPLACE, NORMAL, SKEWED, TWO_HUMPS, UNIFORM, Reference
from fedgraph.simulations.f3.theory.section import BLUE, GREEN, ORANGE, RED, Check, Section
from fedgraph.support.randomness import generator

Array = NDArray[np.float64]

THETAS = np.round(np.linspace(0.02, 0.98, 49), 2)
TAUS = (0.1, 0.5, 2.0, 10.0)
DRAWN = ((0.1, 0.5), (0.25, 2.0), (0.9, 0.5), (0.75, 2.0))
"""Pairs of theta and tau at which draws are looked at."""

NOTHING = 1e-13
"""What integrals of this many terms are off by rounding."""

_COLOURS = dict(zip(TAUS, (BLUE, GREEN, ORANGE, RED), strict=True))


class Grid(NamedTuple):
    """Biases ``[taus, thetas]`` of a variable, and whether theorem 4 speaks of it."""

    title: str
    covered: bool
    biases: Array

    @property
    def wrong(self) -> int:
        """Biases whose sign is not that of 1/2 - theta; at 1/2, those that are not 0."""
        return int((self.signs() != np.sign(0.5 - THETAS)).sum())

    def signs(self) -> Array:
        """0 for what is 0 but for rounding."""
        return np.where(np.abs(self.biases) < NOTHING, 0.0, np.sign(self.biases))

    def against(self) -> int:
        """Biases that have the opposite sign, or one at 1/2."""
        return int((self.signs() * np.sign(0.5 - THETAS) < 0).sum() + (self.signs()[:, THETAS == 0.5] != 0).sum())


def _grid(title: str, covered: bool, bias: Callable[[float, float], float]) -> Grid:
    return Grid(title, covered, np.array([[bias(float(theta), tau) for theta in THETAS] for tau in TAUS]))


def _icdf(reference: Reference, covered: bool) -> Grid:
    return _grid(f"ICDF, {reference.title}", covered, lambda theta, tau: icdf_bias(theta, tau, reference.law))


def grids() -> list[Grid]:
    """Those that the theorem speaks of first."""
    return [
        _grid("Gumbel softmax", True, gumbel_bias),
        *(_icdf(reference, True) for reference in (NORMAL, LAPLACE, CAUCHY)),
        *(_icdf(reference, False) for reference in (UNIFORM, TWO_HUMPS, SKEWED)),
    ]


def drawn_biases(count: int, seed: int) -> dict[tuple[str, float, float], Estimate]:
    """By variable, theta and tau, of the variables that theorem 4 speaks of and that are used most."""
    found = {}
    for theta, tau in DRAWN:
        source = (seed, "theorem 4", str(theta), str(tau))
        found["Gumbel softmax", theta, tau] = bias_of_draws(gumbel_draws(theta, tau, count, generator(*source)))
        draws = icdf_draws(NORMAL, theta, tau, count, generator(*source))
        found["ICDF, normal", theta, tau] = bias_of_draws(draws)
    return found


def theorem_4(count: int, seed: int) -> Section:
    """Signs over a grid of theta and tau."""
    every, drawn = grids(), drawn_biases(count, seed)
    lines = tuple((grid.title, grid.covered, grid.biases.size, grid.wrong, grid.against()) for grid in every)
    headings = ("variable", "theorem speaks of it", "pairs of theta and tau", "not as in theorem 4", "opposite sign")
    title = "Theorem 4: the sign of the bias at any temperature"
    wrong = sum(grid.wrong for grid in every if grid.covered)
    pairs = sum(grid.biases.size for grid in every if grid.covered)
    clear = float(min(np.sign(0.5 - theta) * found.mean / found.error for (_, theta, _), found in drawn.items()))
    other = {grid.title: grid.against() for grid in every if not grid.covered}
    humps, skewed = other[f"ICDF, {TWO_HUMPS.title}"], other[f"ICDF, {SKEWED.title}"]
    checks = (
        Check("4", f"signs not as stated, of {pairs} integrals over theta and tau", "0", str(wrong), wrong == 0),
        Check("4", f"bias of {count:,} draws towards 1/2, least in standard errors", "> 4", f"{clear:.0f}", clear > 4),
        Check(
            "4", "opposite signs for a density with two humps, which the theorem excludes", "> 0", str(humps), humps > 0
        ),
    )  # fmt: skip
    text = (
        "The bias pulls towards 1/2: it is above 0 for θ < 1/2, below for θ > 1/2. The theorem asks that the density "
        "be even and rise up to 0. A uniform density rises nowhere; its bias still has the stated sign, but next to "
        "none is left at small temperatures. A density with two humps (normal ones at -2 and 2), which "
        f"falls from -2 to 0, has the opposite sign at {humps} of {THETAS.size * len(TAUS)} pairs: there the bias "
        f"pulls away from 1/2. A skewed one (Gumbel's) has {skewed}, and a bias at θ = 1/2. The condition is needed."
    )
    return Section("theorem-4", title, text, _figure(every, drawn), pd.DataFrame(lines, columns=headings), checks)


def _figure(every: list[Grid], drawn: dict[tuple[str, float, float], Estimate]) -> Any:
    shown = [grid for grid in every if "Cauchy" not in grid.title]
    figure, axes = panels(len(shown), width=3.1, height=2.7, most=3)
    for axis, grid in zip(axes, shown, strict=True):
        for tau, biases in zip(TAUS, grid.biases, strict=True):
            axis.plot(THETAS, biases, color=_COLOURS[tau], linewidth=1.3, zorder=3)
        for (title, theta, tau), found in drawn.items():
            if title == grid.title:
                axis.plot(theta, found.mean, "o", color=_COLOURS[tau], markersize=4, zorder=4)
        axis.axhline(0, color="0.6", linewidth=0.8, zorder=1)
        axis.axvline(0.5, color="0.6", linewidth=0.8, zorder=1)
        calm(axis, grid.title if grid.covered else f"{grid.title}\n(not in the theorem)", "θ", "bias")
    for tau, colour in _COLOURS.items():
        axes[0].plot([], [], color=colour, label=f"τ = {tau:g}")
    axes[0].plot([], [], "o", color="0.3", markersize=4, label="draws")
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure
