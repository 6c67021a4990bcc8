"""The distribution of some features given any others: a mixture over what the features that are unknown may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.errors import DataError
from fedgraph.graphical.gibbs import Gibbs
from fedgraph.graphical.inference import ROWS, Scale, check_units
from fedgraph.graphical.network import Network
from fedgraph.graphical.network_parts import parts_of
from fedgraph.graphical.sampling import SamplingSettings, centring, in_chunks

_HALVINGS = 50
_FARTHEST = 10.0
"""Deviations from the components of a mixture within which its quantiles are looked for."""


@dataclass(frozen=True)
class Conditional:
    """Of the features asked for, in each row: numbers are normal around each of their ``expected`` values, which are
    those with some draws of what else is unknown in the row.

    units    : of these features, int64 ``[units]``, positions in the schema.
    expected : expectations of numbers and probabilities of categories, ``[clients, rows, draws, units]``.
    noise    : deviation of numbers around them, ``[clients, units]``.
    """

    units: Tensor
    expected: Tensor
    noise: Tensor

    @property
    def mean(self) -> Tensor:
        """Expectations of numbers and probabilities of categories, ``[clients, rows, units]``."""
        return self.expected.mean(2)

    @property
    def deviation(self) -> Tensor:
        """Standard deviations of numbers, ``[clients, rows, units]``."""
        return (self.expected.var(2, correction=0) + self.noise[:, None].square()).sqrt()

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Quantiles of numbers, ``[clients, rows, levels, units]``, by halving of intervals.

        Raises DataError for levels that are not between 0 and 1.
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
        return torch.cat(found, 2).float()


def conditional(
    network: Network,
    parameters: Tensor,
    units: Tensor,
    targets: Sequence[str],
    names: Sequence[str],
    seed: int,
    draws: int = 100,
    settings: SamplingSettings | None = None,
) -> Conditional:
    """The distribution of each of ``targets`` given what is known in ``units`` ``[clients, rows, units]``, NaN for
    missing; what is known of the targets themselves does not count.

    parameters : ``[clients, parameters]`` of the clients ``names``.
    draws      : of the unknown features of each row, by Gibbs sampling. None are needed where all neighbours of the
                 targets are known: that is exact.

    Raises
    ------
    DataError
        When a target is no feature, or ``units`` do not fit.
    """
    settings = settings or SamplingSettings()
    check_units(network, parameters, units)
    parameters, schema = parameters.detach(), network.schema
    wanted = torch.zeros(len(schema.features), dtype=torch.bool)
    wanted[[schema.names.index(schema[name].name) for name in targets]] = True
    units = units.masked_fill(wanted[schema.unit_feature], torch.nan)
    unknown = units[..., network.first_units].isnan().flatten(0, 1).any(0)
    graph = network.adjacency.any(0) if network.adjacency.dim() == 3 else network.adjacency
    # The paper's network may look beyond its graph.
    seen = graph[wanted].any(0) if network.masked else torch.ones_like(wanted)
    if int(wanted.sum()) == 1:
        seen = seen & ~wanted
    exact = not bool((seen & unknown).any())
    draws = 1 if exact else draws
    shift = None if exact else centring(network, parameters, names, seed, settings)
    positions = wanted[schema.unit_feature].nonzero()[:, 0]
    mean, scale = network.state(parameters)["mean"][:, None], Scale(network, parameters)
    parts = parts_of(network, parameters, wanted, shift)

    def expected(some: Tensor, random: Sequence[torch.Generator]) -> Tensor:
        if exact:
            rows = torch.where(some.isnan(), mean, some)
        else:
            chains = Gibbs(network, parameters, some.repeat_interleave(draws, 1), random, settings.bounded, shift)
            chains.run(settings.sweeps, settings.overrelaxation)
            rows = chains.rows
        inputs = scale.inputs(rows.transpose(1, 2))
        predictions = torch.empty_like(inputs)
        for part in parts:
            predictions[:, part.units] = part(inputs)
        return predictions[:, positions].transpose(1, 2).unflatten(1, (-1, draws))

    found = in_chunks(expected, units, names, seed, "conditional", max(1, ROWS // draws))
    noise = network.state(parameters)["residual"].clamp(min=0).sqrt()
    return Conditional(positions, found, noise[:, positions])
