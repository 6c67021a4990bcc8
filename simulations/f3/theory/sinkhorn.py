"""Theorem 5 of Ma et al. 2023: how fast Sinkhorn and Knopp's iteration (eq. 21) becomes doubly stochastic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.fusion import alignment
from fedgraph.reproduce import calm, panels
from fedgraph.simulations.f3.theory.draws import start_of_alignment
from fedgraph.simulations.f3.theory.numerics import order
from fedgraph.simulations.f3.theory.section import BLUE, GREEN, GREY, ORANGE, RED, Check, Section
from fedgraph.support.randomness import generator

Array = NDArray[np.float64]

SIZE = 16
"""Of the matrices: the paper's number of features."""

USED = 10
"""Iterations of the alignment unless it is told otherwise."""

TRIANGLE = "[[1, 1], [0, 1]]"
_TEMPERATURES = (0.3, 0.1, 0.03)
_FLOOR = 1e-12

_HEADINGS = (
    "K0", "second singular value of the limit", "its square", "late decrease of the error",
    "iterations that halve the error", "error after 1", f"error after {USED}", f"largest of a row after {USED}, mean",
)  # fmt: skip


@dataclass(frozen=True)
class Start:
    """A nonnegative matrix to begin with, by its logarithm, float64 ``[size, size]``."""

    title: str
    colour: str
    logarithm: Tensor


@dataclass(frozen=True)
class Path:
    """An iteration from its start.

    errors : of each iterate, from the first on: the norm that theorem 5 bounds.
    sigma  : second largest singular value of the limit.
    rate   : by which the error shrinks in an iteration, late.
    """

    start: Start
    errors: Array
    sigma: float
    rate: float

    @property
    def halving(self) -> float:
        """Iterations that halve the error, by the theorem."""
        return math.inf if self.sigma >= 1 else math.log(2) / (-2 * math.log(self.sigma))


def error(matrix: Tensor) -> float:
    """The norm of row and column sums less 1, of theorem 5."""
    return float(torch.cat([matrix.sum(0) - 1, matrix.sum(1) - 1]).norm())


def as_printed(start: Tensor, iterations: int) -> Array:
    """Errors of eq. 21 to the letter, in which r_(j+1) is made of c_j, not of c_(j+1)."""
    k = start.exp()
    r = c = torch.ones(len(k), dtype=k.dtype)
    errors = []
    for _ in range(iterations):
        r, c = 1 / (k @ c), 1 / (k.T @ r)
        errors.append(error(r[:, None] * k * c))
    return np.array(errors)


def starts(seed: int) -> list[Start]:
    """Random squares, exp(sigmoid(M) / temperature) ever nearer to a permutation, and one outside of the condition."""
    noise = torch.randn(SIZE, SIZE, generator=generator(seed, "theorem 5"), dtype=torch.float64)
    found = [Start("M²", BLUE, start_of_alignment(noise, "square"))]
    for temperature, colour in zip(_TEMPERATURES, (GREEN, ORANGE, RED), strict=True):
        title = f"exp(sigmoid(M) / {temperature})"
        found.append(Start(title, colour, start_of_alignment(noise, "sigmoid", temperature)))
    return [*found, Start(TRIANGLE, GREY, torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64).log())]


def follow(start: Start, iterations: int, settled: int) -> Path:
    """Errors of the first iterates, and what the limit says of them, which is the iterate ``settled``."""
    iterate, errors = start.logarithm, []
    for _ in range(iterations):
        iterate = alignment.sinkhorn(iterate, 1)
        errors.append(error(iterate.exp()))
    limit = alignment.sinkhorn(start.logarithm, settled).exp()
    found = np.array(errors)
    # Below, rounding is all that is left.
    last = int(np.flatnonzero(found > _FLOOR)[-1])
    rate = float(found[last] / found[last - 1])
    return Path(start, found, float(torch.linalg.svdvals(limit)[1]), rate)


def theorem_5(iterations: int, settled: int, seed: int) -> Section:
    """The rate, the slow case, what lies outside of the condition, and eq. 21 to the letter."""
    paths = [follow(start, iterations, settled) for start in starts(seed)]
    inside, triangle = paths[:-1], paths[-1]
    literal = as_printed(paths[0].start.logarithm, iterations)
    slow = inside[-1]
    relative = slow.rate / slow.sigma**2
    bound = max(_worst_of_bound(path) for path in inside)
    later = np.arange(iterations // 2, iterations, dtype=float) + 1
    decay = order(later, triangle.errors[iterations // 2 :])
    title = "Theorem 5: convergence of Sinkhorn and Knopp"
    checks = (
        Check(
            "5", f"late decrease of the error in an iteration over σ₂², {slow.start.title}", "1", f"{relative:.4f}",
            abs(relative - 1) < 0.002,
        ),
        Check(
            "5", f"error over the bound from iteration {USED} on, largest of {len(inside)} K₀", "≤ 1", f"{bound:.2g}",
            bound <= 1,
        ),
        Check(
            "(21)", "error that eq. 21 to the letter, r made of the old c, settles at", "0", f"{literal[-1]:.2g}",
            bool(literal[-1] < 1e-6),
        ),
        Check(
            "5", "where the limit is a permutation, the power of j that the error goes with", "≤ 0", f"{decay:.2f}",
            decay <= 0,
        ),
    )  # fmt: skip
    table = pd.DataFrame(map(_as_line, paths), columns=_HEADINGS)
    text = _in_words(paths, literal, decay)
    return Section("theorem-5", title, text, _figure(paths, literal), table, checks)


def _as_line(path: Path) -> tuple[Any, ...]:
    used = alignment.sinkhorn(path.start.logarithm, USED).exp()
    return (
        path.start.title, path.sigma, path.sigma**2, path.rate, path.halving, path.errors[0], path.errors[USED - 1],
        float(used.max(dim=1).values.mean()),
    )  # fmt: skip


def _worst_of_bound(path: Path, first: int = USED) -> float:
    """The largest error after iterate ``first`` in units of ``sigma^(2 (j - first))`` times the error there."""
    later = path.errors[first - 1 :]
    bound = later[0] * path.sigma ** (2.0 * np.arange(len(later)))
    known = bound > _FLOOR
    return float((later[known] / bound[known])[1:].max(initial=0.0))


def _in_words(paths: list[Path], literal: Array, decay: float) -> str:
    random, slow = paths[0], paths[-2]
    return (
        f"Iterates of the alignment that is trained, in double precision, {SIZE} features. For random K₀ the error "
        f"falls to σ₂² = {random.sigma**2:.3f} of itself in an iteration, as the theorem says once the third singular "
        "value no longer counts. The nearer K₀ is to a "
        f"permutation, the nearer σ₂ is to 1: for exp(sigmoid(M) / {_TEMPERATURES[-1]}) an error halves in "
        f"{slow.halving:.0f} iterations. Two remarks. (1) Eq. 21 as printed makes r of the c of the step before. "
        "Then two iterations run side by side that never meet, r of one and c of the other, and their product is not "
        f"doubly stochastic: for K₀ = M² its error comes to {literal[-2]:.2g} and {literal[-1]:.2g} in turn. The "
        "theorem holds, and the code iterates, with r made of the new c. (2) For a limit that is a permutation the "
        "paper has that the bound does not drop. The error does, but not geometrically: for K₀ = [[1, 1], [0, 1]], "
        "whose limit is the identity, it goes with "
        f"j to the power of {decay:.2f}."
    )


def _figure(paths: list[Path], literal: Array) -> Any:
    """Left: error by iteration, with the theorem's slope; right: the triangular K0, on logarithmic axes."""
    figure, (rates, triangle) = panels(2, width=4.6, height=3.6)
    for path in paths[:-1]:
        j = np.arange(1, len(path.errors) + 1)
        rates.plot(j, path.errors, color=path.start.colour, linewidth=1.5, label=f"K₀ = {path.start.title}", zorder=3)
        anchor = USED - 1
        slope = path.errors[anchor] * path.sigma ** (2.0 * (j - j[anchor]))
        rates.plot(j[anchor:], slope[anchor:], ":", color="0.2", linewidth=1, zorder=4)
    rates.plot([], [], ":", color="0.2", linewidth=1, label="slope of theorem 5")
    rates.plot(
        np.arange(1, len(literal) + 1), literal, "--", color=paths[0].start.colour, linewidth=1, zorder=2,
        label="K₀ = M², eq. 21 to the letter",
    )  # fmt: skip
    rates.set_yscale("log")
    rates.set_ylim(_FLOOR / 10, 300)
    rates.set_xlim(0, 60)
    calm(rates, "error by iteration", "iteration j", "norm of row and column sums less 1")
    last = paths[-1]
    j = np.arange(1, len(last.errors) + 1)
    triangle.plot(j, last.errors, color=last.start.colour, linewidth=1.5, label=f"K₀ = {last.start.title}", zorder=3)
    triangle.plot(j, last.errors[-1] * len(j) / j, ":", color="0.2", linewidth=1, label="1 / j", zorder=4)
    triangle.set_xscale("log")
    triangle.set_yscale("log")
    triangle.legend(fontsize=8, frameon=False)
    calm(triangle, "a limit that is a permutation", "iteration j", "the same norm")
    rates.legend(fontsize=6.5, frameon=False, loc="lower right", ncols=1)
    return figure
