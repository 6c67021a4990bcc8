"""The distribution of some features given any others: a mixture over the possible values of the unknown features.

Where all neighbours of the targets are known, it is the network's prediction. Elsewhere rows are drawn given what is
known (:mod:`fedgraph.graphical.inference.particles`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.graphical.inference.full_conditionals import FullConditionals, SharedNoise
from fedgraph.graphical.inference.joint_rows import SamplingSettings
from fedgraph.graphical.inference.kept_rows import KeptRows
from fedgraph.graphical.inference.particles import NOWHERE, cloud, distinct_rows
from fedgraph.graphical.inference.prediction import ROWS, check_units
from fedgraph.graphical.inference.relevance import Relevant, relevant_to
from fedgraph.graphical.network.network import AT_ONCE, Network
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator
from fedgraph.support.threads import available_cores, side_by_side

log = logging.getLogger("fedgraph")

DRAWS = 2048
"""Number of draws of the unknown features of each row."""

FEW = 50
"""Effective sample size below which an answer is unreliable: a probability may be off by 0.07 and more."""

_TIMES = 4
"""Factor by which draws are increased for rows whose answer would otherwise rest on too few."""
_HALVINGS = 50
_FARTHEST = 10.0
"""Quantiles are searched within this many deviations of the components of a mixture."""


@dataclass(frozen=True)
class Conditional:
    """Conditional distributions of the targets in each row, as mixtures.

    A number is normal around each of its ``expected`` values, one for each draw of the other unknown features of the
    row.

    Attributes
    ----------
    units : Tensor
        Positions of the targets' units in the schema, int64 ``[units]``.
    expected : Tensor
        Expectations of numbers and probabilities of categories, ``[clients, rows, draws, units]``.
    noise : Tensor
        Deviation of numbers around them, ``[clients, units]``.
    effective : Tensor
        Effective sample size, ``[clients, rows]``: the number of independent rows of the model's joint distribution
        that would give an answer as good; infinite where the answer is exact.
    """

    units: Tensor
    expected: Tensor
    noise: Tensor
    effective: Tensor

    @property
    def mean(self) -> Tensor:
        """Expectations of numbers and probabilities of categories, ``[clients, rows, units]``."""
        return self.expected.mean(2)

    @property
    def deviation(self) -> Tensor:
        """Standard deviations of numbers, ``[clients, rows, units]``."""
        return (self.expected.var(2, correction=0) + self.noise[:, None].square()).sqrt()

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Compute quantiles of numbers, ``[clients, rows, levels, units]``, by bisection.

        Raises
        ------
        DataError
            When a level is not between 0 and 1.
        """
        if not all(0 < level < 1 for level in levels):
            raise DataError(f"quantiles are between 0 and 1; got {', '.join(map(str, levels))}")
        expected, noise = self.expected.double(), self.noise.double()[:, None, None].clamp(min=1e-12)
        found = []
        for level in levels:
            low = expected.amin(2, keepdim=True) - _FARTHEST * noise
            high = expected.amax(2, keepdim=True) + _FARTHEST * noise
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                below = torch.special.ndtr((middle - expected) / noise).mean(2, keepdim=True) < level
                low, high = torch.where(below, middle, low), torch.where(below, high, middle)
            found.append((low + high) / 2)
        return torch.cat([expected[:, :, :0], *found], 2).float()

    @classmethod
    def joined(cls, first: Conditional, second: Conditional, of_first: Tensor) -> Conditional:
        """Join answers of different rows to one question; ``of_first``, bool ``[rows]``, says which are the first's.

        The noise is the first's.
        """
        draws = max(first.expected.shape[2], second.expected.shape[2])
        expected = first.expected.new_empty(len(first.expected), len(of_first), draws, len(first.units))
        effective = first.effective.new_empty(len(first.expected), len(of_first))
        for part, rows in ((first, of_first), (second, ~of_first)):
            # An exact answer is one draw.
            expected[:, rows] = part.expected.expand(-1, -1, draws, -1)
            effective[:, rows] = part.effective
        return cls(first.units, expected, first.noise, effective)


def conditional(
    network: Network,
    parameters: Tensor,
    units: Tensor,
    targets: Sequence[str],
    names: Sequence[str],
    seed: int,
    draws: int = DRAWS,
    settings: SamplingSettings | None = None,
    kept: Callable[[], KeptRows] | None = None,
) -> Conditional:
    """Compute the distribution of each of ``targets`` given what is known in ``units``.

    An answer does not depend, to float tolerance, on the other rows of the query. Unreliable answers, where what is
    known is too rare in the model, are logged in one warning for all rows.

    Parameters
    ----------
    network : Network
        Network of all models.
    parameters : Tensor
        Models ``[clients, parameters]`` of the clients ``names``.
    units : Tensor
        ``[clients, rows, units]``, NaN for missing. Known values of the targets are ignored.
    targets : sequence of str
        Features asked for.
    names : sequence of str
        Names of the clients; they seed the random numbers, with ``seed``.
    seed : int
        Seed of the experiment.
    draws : int
        Number of draws of the unknown features of each row. None are needed in rows in which all neighbours of the
        targets are known: there the answer is exact.
    settings : SamplingSettings, optional
        How rows are drawn.
    kept : callable, optional
        Returns rows of the same models, with the same seed and settings, and is called only if they are needed. None:
        they are drawn then.

    Returns
    -------
    Conditional
        Distributions of the units of the targets.

    Raises
    ------
    DataError
        When a target is no feature, or ``units`` do not fit.
    """
    check_units(network, parameters, units)
    parameters, schema = parameters.detach(), network.schema
    wanted = torch.zeros(len(schema.features), dtype=torch.bool)
    wanted[[schema.names.index(schema[name].name) for name in targets]] = True
    units = units.masked_fill(wanted[schema.unit_feature], torch.nan)
    unknown = units[..., network.first_units].isnan()
    relevant = relevant_to(network, wanted.expand_as(unknown), unknown)
    exact = _is_exact(network, wanted, relevant)
    draws = 1 if bool(exact.all()) else draws
    positions = wanted[schema.unit_feature].nonzero()[:, 0]
    conditionals = FullConditionals(network, parameters, wanted)
    expected = units.new_empty(*units.shape[:2], draws, len(positions))
    effective = torch.full(units.shape[:2], torch.inf)
    if bool(exact.any()):
        once = _predicted(conditionals, units, positions)
        expected[:, exact] = once[:, exact][:, :, None]
    if not bool(exact.all()):
        rows = kept() if kept else KeptRows.drawn(network, parameters, names, seed, settings or SamplingSettings())
        some = ~exact
        own = Relevant(relevant.unknown[:, some], relevant.known[:, some])
        found, effective[:, some] = _by_draws(rows, conditionals, units[:, some], own, positions, draws)
        expected[:, some] = found
        _warn(effective)
    noise = network.state(parameters)["residual"].clamp(min=0).sqrt()
    return Conditional(positions, expected, noise[:, positions], effective)


def _is_exact(network: Network, wanted: Tensor, relevant: Relevant) -> Tensor:
    """Return in which rows no unknown feature influences the targets, for all clients: bool ``[rows]``."""
    graph = network.linked
    if bool(graph[wanted][:, wanted].any()) or (not network.masked and int(wanted.sum()) > 1):
        return torch.zeros(relevant.unknown.shape[1], dtype=torch.bool)
    return ~(relevant.unknown & ~wanted).any(2).any(0)


def _predicted(conditionals: FullConditionals, units: Tensor, positions: Tensor) -> Tensor:
    """Predict the units at ``positions`` in one pass of the network, ``[clients, rows, positions]``."""
    mean = conditionals.mean.transpose(1, 2)

    def some(rows: Tensor) -> Tensor:
        inputs = conditionals.scale.inputs(torch.where(rows.isnan(), mean, rows).transpose(1, 2))
        return _of_parts(conditionals, inputs, None)[:, positions].transpose(1, 2)

    return torch.cat(side_by_side(some, units.split(ROWS, 1), available_cores(), 1), 1)


def _of_parts(conditionals: FullConditionals, inputs: Tensor, shift: Tensor | None) -> Tensor:
    found = torch.empty_like(inputs)
    for part in conditionals.parts:
        found[:, part.units] = part(inputs, shift=shift)
    return found


def _by_draws(
    kept: KeptRows, conditionals: FullConditionals, units: Tensor, relevant: Relevant, positions: Tensor, draws: int
) -> tuple[Tensor, Tensor]:
    """Return expectations with each of the draws, ``[clients, rows, draws, positions]``, and effective sample sizes.

    Rows with the same relevant values are computed once.
    """
    unit_feature = kept.network.schema.unit_feature
    known = units.masked_fill(~relevant.known[..., unit_feature], torch.nan)
    key = torch.cat([known.nan_to_num(NOWHERE), relevant.unknown.float()], 2)
    place, first = distinct_rows(key)
    counts = (units.shape[2], len(kept.network.first_units))

    def asked(distinct: Tensor, times: int) -> tuple[Tensor, Tensor]:
        """Answer these rows with ``times`` times the draws, and return every ``times``-th of them."""
        many = times * draws

        def noise(sweep: int) -> SharedNoise:
            random = [generator(kept.seed, "conditional", name, sweep, times) for name in kept.names]
            return SharedNoise(random, counts, many)

        def some(rows: Tensor) -> tuple[Tensor, Tensor]:
            drawn = cloud(kept, known[:, rows], Relevant(*(each[:, rows] for each in relevant)), many, noise)
            inputs = conditionals.scale.inputs(drawn.units)
            found = _of_parts(conditionals, inputs, kept.shift)[:, positions]
            expected = found.transpose(1, 2).unflatten(1, (-1, many))
            return expected[:, :, ::times], drawn.effective(expected)

        chunks = side_by_side(some, distinct.split(max(1, AT_ONCE // many)), available_cores(), 1)
        expected, effective = (torch.cat(each, 1) for each in zip(*chunks, strict=True))
        return expected, effective

    expected, effective = asked(first, 1)
    few = (effective < FEW).any(0)
    if bool(few.any()):
        expected[:, few], effective[:, few] = asked(first[few], _TIMES)
    return expected[:, place], effective.clamp(max=draws)[:, place]


def _warn(effective: Tensor) -> None:
    few = effective < FEW
    if bool(few.any()):
        log.warning(
            "what is known of %d of %d rows is rare in the model: answers rest on effectively %.0f draws of it where "
            "they rest on fewest, and may be far off; more rows kept with the model (sampling: kept) help",
            int(few.sum()),
            few.numel(),
            float(effective.min()),
        )
