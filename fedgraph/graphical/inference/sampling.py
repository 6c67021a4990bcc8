"""Rows drawn from graphical models, by Gibbs sampling or by the procedure of the authors' program.

The only information of a model about the noise of a number is its variance, so discrete numbers come out more
continuous than they are, and skewed ones more symmetric, unless they are on a logarithmic scale.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.graphical.inference.full_conditionals import OwnNoise
from fedgraph.graphical.inference.joint_rows import SamplingSettings, in_chunks, joint_rows
from fedgraph.graphical.inference.kept_rows import KeptRows
from fedgraph.graphical.inference.particles import NOWHERE, cloud, distinct_rows
from fedgraph.graphical.inference.released_sampling import released_draw
from fedgraph.graphical.inference.relevance import relevant_to
from fedgraph.graphical.network.network import AT_ONCE, Network
from fedgraph.support.errors import DataError

__all__ = ["SamplingSettings", "draw"]

_LEAST = 64
"""Least number of rows that are drawn given the same values, from which the requested ones are taken."""


def draw(
    network: Network,
    parameters: Tensor,
    count: int,
    names: Sequence[str],
    seed: int,
    given: Tensor | None = None,
    settings: SamplingSettings | None = None,
    kept: KeptRows | None = None,
) -> Tensor:
    """Draw ``count`` rows from each model.

    Categories come as 0 and 1 in their units, numbers as they are drawn: rounding is left to the decoder
    (:meth:`fedgraph.data.encoding.encoding.Encoding.decode`), as it would only be noise to a network that learns from
    samples. Missing values are not drawn. Rows do not influence each other.

    Parameters
    ----------
    network : Network
        Network of all models.
    parameters : Tensor
        ``[clients, parameters]``.
    count : int
        Rows of each model.
    names : sequence of str
        Names of the clients. Where all have one graph and the same features given, the rows of one depend, to float
        tolerance, on its model and name, ``seed`` and ``given`` alone; its first rows are the same for any ``count``,
        except the last 2,048.
    seed : int
        Seed of the experiment.
    given : Tensor, optional
        What is known of the rows, expandable to ``[clients, count, units]``, NaN for what is to be drawn.
    settings : SamplingSettings, optional
        How rows are drawn.
    kept : KeptRows, optional
        Rows of the same models, with the same seed and settings, from which rows with something given are made; drawn
        if they are needed and not given.

    Returns
    -------
    Tensor
        ``[clients, count, units]``.

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
    if settings.method == "released":
        return in_chunks(
            lambda some, random: released_draw(
                network, parameters, some, random, settings.steps, settings.learning_rate
            ),
            known,
            names,
            seed,
            "sample",
        )
    if given is None or bool(given.isnan().all()):
        return joint_rows(network, parameters, count, names, seed, settings)
    if not bool(known.isnan().any()):
        return known.clone()
    rows = kept or KeptRows.drawn(network, parameters, names, seed, settings)
    return in_chunks(lambda some, random: _conditioned(rows, some, random), known, names, seed, "sample-given")


def _conditioned(kept: KeptRows, given: Tensor, random: Sequence[torch.Generator]) -> Tensor:
    """Fill what is NaN in ``given`` ``[clients, rows, units]``.

    Rows with the same values given are taken from one cloud, without replacement, so that they are spread over the
    possible values as evenly as it is.
    """
    place, first = distinct_rows(given.nan_to_num(NOWHERE))
    times = place.bincount()
    draws = max(_LEAST, int(times.max()))
    unknown = given[..., kept.network.first_units].isnan()
    noise = OwnNoise(random)
    filled = torch.empty_like(given)
    for some in torch.arange(len(first)).split(max(1, AT_ONCE // draws)):
        rows = first[some]
        relevant = relevant_to(kept.network, unknown[:, rows], unknown[:, rows])
        units = cloud(kept, given[:, rows], relevant, draws, lambda sweep: noise).units.unflatten(2, (-1, draws))
        order = torch.rand(len(some), draws, generator=random[0]).argsort(1)
        for at, distinct in enumerate(some.tolist()):
            wanted = (place == distinct).nonzero()[:, 0]
            filled[:, wanted] = units[:, :, at, order[at, : len(wanted)]].transpose(1, 2)
    return filled
