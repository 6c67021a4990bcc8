"""Stability of a small electricity grid that is balanced by prices (decentral smart grid control).

All participants measure the frequency of the grid, which sets the price of electricity, and adapt consumption or
production with a delay. With rotor angle theta, power P, damping alpha, coupling K, elasticity gamma, averaging time T
and reaction time tau, participant j follows

    theta_j'' = P_j - alpha theta_j' + sum_k K_jk sin(theta_k - theta_j)
                - gamma_j / T (theta_j(t - tau_j) - theta_j(t - tau_j - T)).

Around the state of equal frequency, small deviations exp(lambda t) have to solve det M(lambda) = 0,

    M(lambda) = diag(d_1, ..., d_4) + L,
    d_j = lambda^2 + alpha lambda + gamma_j / T exp(-lambda tau_j) (1 - exp(-lambda T)),

where L is the Laplacian of the grid, a producer in the middle of three consumers, with weights
K cos(theta_1 - theta_j). The grid is unstable if a root has a positive real part.

Schaefer, Matthiae, Timme, Witthaut: Decentral Smart Grid Control (New Journal of Physics 17, 2015). Schaefer, Grabow,
Auer, Kurths, Witthaut, Timme: Taming instabilities in power grid networks by decentralized control (European Physical
Journal Special Topics 225, 2016). Arzamasov, Boehm, Jochem: Towards Concise Models of Grid Stability (SmartGridComm
2018), which has the four participants and the ranges of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fedgraph.data.owners.shared_samples import Holdings, OwnerSource, SharedSampleSettings
from fedgraph.graph import ClientGraph
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import derive_seed

Array = NDArray[np.float64]

PARTICIPANTS: tuple[str, ...] = ("producer", "consumer-1", "consumer-2", "consumer-3")
FEATURES: tuple[str, ...] = ("reaction-time", "power", "elasticity")
CLASSES = ("stable", "unstable")
_TOGETHER = "grid"

DAMPING = 0.1  # alpha, 1/s
COUPLING = 8.0  # K, 1/s^2
AVERAGING = 2.0  # T, s
REACTION_TIMES = (0.5, 10.0)  # tau, s
CONSUMPTION = (0.5, 2.0)  # -P of a consumer, 1/s^2
ELASTICITIES = (0.05, 1.0)  # gamma, 1/s

# |d_j - lambda^2| + |L| < 36 at |lambda| = 12 with a real part >= 0, a quarter of |lambda^2|: all roots lie below, and
# det M / lambda^8 is close enough to 1 on that arc for its phase to be the principal one.
_LOWEST, _HIGHEST = 1e-9, 12.0
_STEPS, _MUCH = 1200, np.pi / 4
_PARTS, _DIVISIONS = 8, 12
_ROWS_AT_ONCE = 250

GRID_STABILITY: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "grid-stability",
        "Stability of a small grid",
        "synthetic, free to use",
        "4 participants, any number of samples, 10,000 unless set",
        notes="No files: the seed decides everything. The model, and the ranges, of the set of the same name at UCI.",
    ),
)


class GridStabilitySettings(SharedSampleSettings):
    """The table ``[data]`` with ``set = "grid-stability"``: the producer and three consumers of a grid.

    Each knows its reaction time, power and price elasticity; all know whether the grid was stable.

    Attributes
    ----------
    samples  : how many grids.
    seed     : draws them.
    together : one client, ``grid``, knows all participants' features, for comparison.
    """

    set: Literal["grid-stability"] = "grid-stability"
    samples: int = Field(default=10_000, ge=10, le=1_000_000)
    seed: int = 0
    together: bool = False


class GridStabilitySource(OwnerSource):
    """Simulated grids of four participants."""

    title = "stability of simulated grids"

    def __init__(self, settings: GridStabilitySettings, data_dir: Path | None = None) -> None:
        """``data_dir`` is taken like every source's, but nothing is read from it."""
        self.settings: GridStabilitySettings = settings

    def every_client(self) -> tuple[str, ...]:
        """Return the producer and the consumers, or ``grid``."""
        return (_TOGETHER,) if self.settings.together else PARTICIPANTS

    def holdings(self, names: Sequence[str], classes: tuple[str, ...] = ()) -> Holdings:
        """Return reaction time, power and elasticity of the participants ``names``, ``[samples, 3]`` each."""
        values, unstable = _simulated(self.settings.samples, self.settings.seed)
        known = dict(zip(PARTICIPANTS, torch.from_numpy(values.astype(np.float32)), strict=True))
        features = dict.fromkeys(PARTICIPANTS, FEATURES)
        known[_TOGETHER] = torch.cat([known[name] for name in PARTICIPANTS], 1)
        features[_TOGETHER] = tuple(f"{name} {feature}" for name in PARTICIPANTS for feature in FEATURES)
        return Holdings(
            keys=tuple(f"grid-{number:06d}" for number in range(self.settings.samples)),
            labels=torch.from_numpy(unstable.astype(np.int64)),
            classes=CLASSES,
            inputs=tuple(known[name] for name in names),
            present=torch.ones(len(names), self.settings.samples, dtype=torch.bool),
            features=tuple(features[name] for name in names),
        )

    def every_graph(self) -> ClientGraph | None:
        """Return the lines of the grid: the producer is linked with every consumer."""
        if self.settings.together:
            return None
        ends = list(PARTICIPANTS[1:])
        starts = [PARTICIPANTS[0]] * len(ends)
        return ClientGraph.from_lists(PARTICIPANTS, starts, ends, torch.ones(len(ends)), directed=False)


@lru_cache(maxsize=4)
def _simulated(samples: int, seed: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return the participants' features ``[participants, samples, features]``, and which grids are unstable."""
    values = np.stack([_drawn(name, samples, seed) for name in PARTICIPANTS])
    values[0, :, 1] = -values[1:, :, 1].sum(0)  # the producer generates the power that the consumers use
    delay, power, elasticity = values.transpose(2, 1, 0)
    return values, unstable_roots(delay, power, elasticity) > 0


def _drawn(name: str, samples: int, seed: int) -> Array:
    """Return reaction times, power and elasticities of a consumer, ``[samples, 3]``."""
    random = np.random.default_rng(derive_seed(seed, "grid-stability", name))
    columns = [random.uniform(*limits, samples) for limits in (REACTION_TIMES, CONSUMPTION, ELASTICITIES)]
    return np.stack([columns[0], -columns[1], columns[2]], 1)


def unstable_roots(delay: Array, power: Array, elasticity: Array, right_of: float = 0.0) -> NDArray[np.int64]:
    """Count the roots of the characteristic equation with a larger real part than ``right_of``.

    By the argument principle: how often det M(lambda) / lambda, which is free of the root at 0 that all rotors share,
    turns around 0 while lambda goes along the line with that real part and back on a large arc. Returns int64
    ``[grids]``; a grid is stable where there are none right of 0. Raises DataError when power exceeds what a line can
    carry, or a root lies on the line.

    Parameters
    ----------
    delay, power, elasticity : tau, P and gamma of each grid, ``[grids, participants]``, the producer first.
    """
    heaviest = np.abs(power[:, 1:]).max(initial=0.0)
    if heaviest >= COUPLING:
        raise DataError(f"a consumer's power of {heaviest:g} exceeds what a line can carry, less than {COUPLING:g}")
    counts = [
        _turns(delay[rows], power[rows], elasticity[rows], right_of)
        for rows in np.split(np.arange(len(delay)), range(_ROWS_AT_ONCE, len(delay), _ROWS_AT_ONCE))
    ]
    return np.concatenate(counts)


def _turns(delay: Array, power: Array, elasticity: Array, right_of: float) -> NDArray[np.int64]:
    """Count the roots right of a line; steps along it with large phase changes are subdivided."""

    def value(rows: slice | NDArray[np.int64], heights: Array) -> NDArray[np.complex128]:
        root = np.asarray(right_of + 1j * heights, dtype=np.complex128)
        return _determinant(root, delay[rows], power[rows], elasticity[rows]) / root

    ends = np.linspace(_LOWEST, _HIGHEST, _STEPS + 1)
    values = value(slice(None), ends[None])
    turned = np.angle(values[:, 1:] / values[:, :-1])
    wide = np.abs(turned) > _MUCH
    total = np.where(wide, 0.0, turned).sum(1)
    rows, step = np.nonzero(wide)
    low, high = ends[step], ends[step + 1]
    for _ in range(_DIVISIONS):
        if not len(rows):
            break
        heights = np.linspace(low, high, _PARTS + 1, axis=1)
        values = value(rows, heights)
        turned = np.angle(values[:, 1:] / values[:, :-1])
        wide = np.abs(turned) > _MUCH
        np.add.at(total, rows, np.where(wide, 0.0, turned).sum(1))
        which, part = np.nonzero(wide)
        rows, low, high = rows[which], heights[which, part], heights[which, part + 1]
    if len(rows):
        raise DataError(f"a grid has a root at the real part {right_of}, or too near to it to be told")
    end = right_of + 1j * _HIGHEST
    arc = 7 * np.pi / 2 + np.angle(value(slice(None), ends[None, -1:])[:, 0] / end**7)
    return np.rint((arc - total) / np.pi).astype(np.int64)


def _determinant(root: NDArray[np.complex128], delay: Array, power: Array, elasticity: Array) -> NDArray[np.complex128]:
    """Return det M of each grid at each of its lambdas, ``[grids, lambdas]``, for a star around the producer."""
    lines = np.sqrt(COUPLING**2 - power[:, 1:, None] ** 2)  # K cos of the angle at which a line carries the power
    root = root[:, None]
    answer = np.exp(-root * delay[..., None]) * (elasticity[..., None] / AVERAGING)
    own = root**2 + DAMPING * root + answer * (1 - np.exp(-root * AVERAGING))
    linked = own[:, 1:] + lines
    # Consumers are eliminated: d_1 + sum_j k_j d_j / (d_j + k_j), times the pivots d_j + k_j.
    return (own[:, 0] + (lines * own[:, 1:] / linked).sum(1)) * linked.prod(1)
