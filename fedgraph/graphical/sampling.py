"""Rows drawn from graphical models, by Gibbs sampling or by the procedure of the authors' program.

A model holds no more about the noise of a number than its variance, so numbers that are discrete come out more
continuous than they are, and skewed ones more symmetric, unless they are on a logarithmic scale.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.errors import DataError
from fedgraph.graphical.gibbs import Gibbs
from fedgraph.graphical.inference import ROWS
from fedgraph.graphical.network import Network
from fedgraph.graphical.released_sampling import released_draw
from fedgraph.seeding import generator
from fedgraph.settings import Settings
from fedgraph.threads import available_cores, pinned_threads, side_by_side

PILOT = 4096
"""Rows by which predictions are centred."""


class SamplingSettings(Settings):
    """How rows are drawn from a model.

    method         : ``gibbs``: rows start with independent features, and every sweep draws each feature anew given all
        others. ``released``: the procedure of the authors' program, :mod:`fedgraph.graphical.released_sampling`, for
        comparison: it draws uniformly from ranges and adds noise of 1 % of a value, whatever the data are.
    sweeps         : of ``gibbs``. More are needed where features nearly determine each other.
    overrelaxation : numbers are drawn on the other side of their expectation from where they are, by this share of the
        distance, and with so much less noise; 0: regardless of where they are. The distribution is the same, and is
        reached in fewer sweeps.
    bounded        : an integer or ordinal that would lie outside its range is drawn as the end of the range: most are
        counts, or steps of a scale, and often at an end. What lies beyond a range in the data is then never drawn.
    centred        : first shift all predictions a little, so that samples have the means of the training rows. Without
        that a small common error of predictions becomes a large one of samples, where features depend strongly on
        each other.
    steps          : of the gradient method of inference, for each feature that ``released`` draws.
    learning_rate  : of the same.
    """

    method: Literal["gibbs", "released"] = "gibbs"
    sweeps: int = Field(default=30, ge=1)
    overrelaxation: float = Field(default=0.5, ge=0, lt=1)
    bounded: bool = True
    centred: bool = True
    steps: int = Field(default=20, ge=1)
    learning_rate: float = Field(default=0.01, gt=0)


def draw(
    network: Network,
    parameters: Tensor,
    count: int,
    names: Sequence[str],
    seed: int,
    given: Tensor | None = None,
    settings: SamplingSettings | None = None,
) -> Tensor:
    """Draw ``count`` rows from each model of ``parameters`` ``[clients, parameters]``: ``[clients, count, units]``.

    names : of the clients. Where all have one graph and the same features given, what is drawn for one depends, to
        float tolerance, on its model and name, ``seed`` and ``given`` alone; its first rows are the same whatever
        ``count``, but for the last 2,048.
    given : what is known of the rows, ``[clients, count, units]`` or what expands to it, NaN for what is to be drawn.

    Categories come as 0 and 1 in their units, numbers as they are drawn: rounding is left to those who decode them
    (:meth:`fedgraph.graphical.encoding.Encoding.decode`), as it would only be noise to a network that learns from
    samples. Missing values are not drawn. Rows do not influence each other.

    Raises
    ------
    DataError
        When ``given`` does not fit.
    """
    settings = settings or SamplingSettings()
    parameters = parameters.detach()
    shape = (len(parameters), count, len(network.schema.unit_feature))
    try:
        known = torch.full((1, 1, 1), torch.nan).expand(shape) if given is None else given.expand(shape)
    except RuntimeError:
        raise DataError(
            f"known values of shape {list(given.shape if given is not None else ())} do not fit {count} rows of "
            f"{len(parameters)} models: they need {list(shape)}"
        ) from None
    shift = None
    if settings.method == "gibbs" and bool(known.isnan().any()):
        shift = centring(network, parameters, names, seed, settings)

    def fill(some: Tensor, random: Sequence[torch.Generator]) -> Tensor:
        if settings.method == "released":
            return released_draw(network, parameters, some, random, settings.steps, settings.learning_rate)
        chains = Gibbs(network, parameters, some, random, settings.bounded, shift)
        chains.run(settings.sweeps, settings.overrelaxation)
        return chains.rows

    return in_chunks(fill, known, names, seed, "sample")


def in_chunks(
    work: Callable[[Tensor, Sequence[torch.Generator]], Tensor],
    units: Tensor,
    names: Sequence[str],
    seed: int,
    purpose: str,
    rows: int = ROWS,
) -> Tensor:
    """``work`` on so many rows of ``units`` ``[clients, rows, units]`` at a time, which bounds the memory.

    ``work`` is given a generator for each client, and returns a tensor of which the second dimension are the rows.
    """

    def chunk(job: tuple[int, Tensor]) -> Tensor:
        place, some = job
        return work(some, [generator(seed, purpose, name, place) for name in names])

    chunks = side_by_side(chunk, enumerate(units.split(rows, 1)), available_cores(), 1)
    return torch.cat(chunks, 1)


def centring(
    network: Network, parameters: Tensor, names: Sequence[str], seed: int, settings: SamplingSettings
) -> Tensor | None:
    """By how much outputs of models ``[clients, parameters]`` have to be shifted, ``[clients, units]``, so that Gibbs
    samples have the means of the training rows; None where the settings do not ask for it."""
    if not settings.centred:
        return None
    blank = torch.full((len(parameters), PILOT, len(network.schema.unit_feature)), torch.nan)
    random = [generator(seed, "centring", name) for name in names]
    with pinned_threads(1):
        chains = Gibbs(network, parameters, blank, random, settings.bounded)
        return chains.centring(settings.sweeps, settings.overrelaxation)
