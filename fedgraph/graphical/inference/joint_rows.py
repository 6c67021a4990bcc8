"""Rows drawn from the joint distribution of graphical models, without any known features.

A neural graphical model is made of conditional distributions, which were learned one by one and need not be those of
any joint distribution. Its joint distribution means here: rows whose features are independent at first, after some
sweeps of a Gibbs sampler whose means are held at those of the training rows. Sweeps without end would not be better: a
sampler hardly ever gets from one side of a near-deterministic relation to the other, and the share of rows on either
side would in the end depend on tiny probabilities, which no model learns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.graphical.inference.gibbs import chains
from fedgraph.graphical.inference.prediction import ROWS
from fedgraph.graphical.network.network import Network
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings
from fedgraph.support.threads import available_cores, pinned_threads, side_by_side

_CENTRED_BY = 4096
"""Number of rows that centre predictions where none are kept: they determine a mean to a sixtieth of its deviation."""


OVERRELAXATION = 0.5
"""Numbers are drawn on the other side of their expectation from their current value, by this share of the distance and
with so much less noise. The distribution is the same, and is reached in fewer sweeps."""


class SamplingSettings(Settings):
    """How rows are drawn from a model, and how it computes conditional distributions.

    Attributes
    ----------
    method         : ``gibbs``: rows start with independent features, and every sweep draws each feature anew given all
        others. ``released``: the procedure of the authors' program,
        :mod:`fedgraph.graphical.inference.released_sampling`, for comparison: it draws
        uniformly from ranges and adds noise of 1 % of a value, whatever the data are.
    sweeps         : of ``gibbs``. More are needed where features nearly determine each other.
    centred        : shift all predictions a little, so that samples have the means of the training rows. Without
        that a small common error of predictions becomes a large one of samples, where features depend strongly on
        each other.
    kept           : rows that are kept with a queried model: answers are made of those that agree with what is known.
        The rarer that is, the more are needed.
    steps          : of the gradient method of inference, for each feature that ``released`` draws.
    learning_rate  : of the same.
    """

    method: Literal["gibbs", "released"] = "gibbs"
    sweeps: int = Field(default=30, ge=1)
    centred: bool = True
    kept: int = Field(default=16_384, ge=100)
    steps: int = Field(default=20, ge=1)
    learning_rate: float = Field(default=0.01, gt=0)


def pilot(
    network: Network, parameters: Tensor, names: Sequence[str], seed: int, settings: SamplingSettings, count: int
) -> tuple[Tensor | None, Tensor]:
    """Draw the first ``count`` rows of the models ``[clients, parameters]``.

    Returns the shifts of outputs that centre the predictions of each sweep, ``[sweeps, clients, units, 1]``, or None
    without centring, and the rows ``[clients, rows, units]``.
    """
    blank = torch.full((len(parameters), count, len(network.schema.unit_feature)), torch.nan)
    random = [generator(seed, "pilot", name) for name in names]
    shifts = None
    with pinned_threads(1):
        rows, noise = chains(network, parameters, blank, random, bounded=True)
        if settings.centred:
            shifts = rows.centring(settings.sweeps, OVERRELAXATION, noise)
        else:
            rows.run(settings.sweeps, OVERRELAXATION, noise)
    return shifts, rows.rows


def joint_rows(
    network: Network, parameters: Tensor, count: int, names: Sequence[str], seed: int, settings: SamplingSettings
) -> Tensor:
    """Draw ``count`` rows of each model, ``[clients, count, units]``."""
    shifts = None
    if settings.centred:
        shifts, _ = pilot(network, parameters, names, seed, settings, min(settings.kept, _CENTRED_BY))
    blank = torch.full((1, 1, 1), torch.nan).expand(len(parameters), count, len(network.schema.unit_feature))

    def fill(some: Tensor, random: Sequence[torch.Generator]) -> Tensor:
        rows, noise = chains(network, parameters, some, random, bounded=True)
        rows.run(settings.sweeps, OVERRELAXATION, noise, shifts)
        return rows.rows

    return in_chunks(fill, blank, names, seed, "sample")


def in_chunks(
    work: Callable[[Tensor, Sequence[torch.Generator]], Tensor],
    units: Tensor,
    names: Sequence[str],
    seed: int,
    purpose: str,
    rows: int = ROWS,
) -> Tensor:
    """Apply ``work`` to ``rows`` rows of ``units`` ``[clients, rows, units]`` at a time, which bounds the memory.

    ``work`` takes a generator for each client, and returns a tensor whose second dimension is the rows.
    """

    def chunk(job: tuple[int, Tensor]) -> Tensor:
        place, some = job
        return work(some, [generator(seed, purpose, name, place) for name in names])

    chunks = side_by_side(chunk, enumerate(units.split(rows, 1)), available_cores(), 1)
    return torch.cat(chunks, 1)
