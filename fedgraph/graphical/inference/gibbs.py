"""Gibbs sampling from graphical models: every feature is redrawn given all others, again and again.

Not in the papers on neural graphical models; overrelaxation: Adler, Physical Review D 23 (1981) 2901.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgraph.graphical.inference.full_conditionals import FullConditionals, Noise, OwnNoise, SomeNoise, random_values
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.parts import Part


class Gibbs:
    """Rows of some models during Gibbs sampling.

    units   : ``[clients, units, rows]``, without missing values.
    unknown : the units that are drawn, bool of the same shape; it may be replaced.
    inputs  : the units as the network's inputs.
    """

    def __init__(self, conditionals: FullConditionals, units: Tensor, unknown: Tensor) -> None:
        self._conditionals = conditionals
        self.inputs = conditionals.scale.inputs(units)
        self.units, self.unknown = units, unknown

    @classmethod
    def of_independent(cls, conditionals: FullConditionals, given: Tensor, noise: Noise) -> Gibbs:
        """Start with independently drawn features where ``given`` ``[clients, rows, units]`` is NaN."""
        unknown = given.transpose(1, 2).isnan()
        units = given.transpose(1, 2).contiguous()
        for part in conditionals.parts:
            mean, deviation = conditionals.mean[:, part.units], conditionals.deviation[:, part.units]
            start = random_values(part, mean.expand(-1, -1, given.shape[1]), deviation, noise)
            units[:, part.units] = torch.where(unknown[:, part.units], start, units[:, part.units])
        return cls(conditionals, units, unknown)

    @property
    def rows(self) -> Tensor:
        """The current rows, ``[clients, rows, units]``."""
        return self.units.transpose(1, 2)

    def run(self, sweeps: int, overrelaxation: float, noise: Noise, shifts: Tensor | None = None) -> None:
        """Run ``sweeps`` sweeps, with ``shifts`` ``[sweeps, clients, units, 1]`` added to outputs.

        The first sweep is without overrelaxation: it forgets where numbers started, so that numbers whose neighbours
        are known need no second sweep.
        """
        for sweep in range(sweeps):
            self.sweep(noise, overrelaxation if sweep else 0.0, None if shifts is None else shifts[sweep])

    def sweep(self, noise: Noise, overrelaxation: float = 0.0, shift: Tensor | None = None) -> None:
        """Draw everything once; of a part, only rows in which it is unknown are computed."""
        for part in self._conditionals.parts:
            rows = self.unknown[:, part.units].any(1).any(0).nonzero()[:, 0]
            if len(rows) == self.units.shape[2]:
                self._draw(part, part(self.inputs, shift), noise, overrelaxation)
            elif len(rows):
                self._draw(part, part(self.inputs.index_select(2, rows), shift), noise, overrelaxation, rows)

    def centring(self, sweeps: int, overrelaxation: float, noise: Noise) -> Tensor:
        """Run ``sweeps`` sweeps, each with predictions shifted so that rows have the means of the training rows.

        Returns the shifts of outputs, ``[sweeps, clients, units, 1]``. Other rows need those of each sweep: while
        features that started independent become dependent, the necessary shift changes, and where a relation is nearly
        deterministic, so that few rows go from one side of it to the other, it grows. In the second half its variation
        is mostly due to these rows, and it is the mean there.
        """
        conditionals = self._conditionals
        shift = torch.zeros_like(conditionals.mean)
        shifts = shift.repeat(sweeps, 1, 1, 1)
        for sweep in range(sweeps):
            for part in conditionals.parts:
                outputs = part.outputs(self.inputs)
                expected = conditionals.expected(part, part.predictions(outputs, shift))
                shift[:, part.units] += part.centre(expected, conditionals.mean[:, part.units])
                self._draw(part, part.predictions(outputs, shift), noise, overrelaxation if sweep else 0.0)
            shifts[sweep] = shift
        shifts[sweeps // 2 :] = shifts[sweeps // 2 :].mean(0)
        return shifts

    def put(self, values: Tensor, chosen: Tensor) -> None:
        """Replace the ``chosen`` units, bool, by ``values``, both ``[clients, units, rows]``."""
        every = torch.arange(values.shape[1])
        self._put(every, values, chosen)

    def select(self, rows: Tensor) -> None:
        """Continue with these rows, int64 ``[clients, rows]``, which may contain a row several times."""
        index = rows[:, None].expand(-1, self.units.shape[1], -1)
        self.units, self.inputs = self.units.gather(2, index), self.inputs.gather(2, index)

    def _draw(
        self, part: Part, predicted: Tensor, noise: Noise, overrelaxation: float, rows: Tensor | None = None
    ) -> None:
        before, unknown = self.units[:, part.units], self.unknown[:, part.units]
        if rows is None:
            drawn = self._conditionals.drawn(part, predicted, before, noise, overrelaxation)
            self._put(part.units, drawn, unknown)
            return
        some = SomeNoise(noise, rows, before.shape[2])
        drawn = self._conditionals.drawn(part, predicted, before.index_select(2, rows), some, overrelaxation)
        self._put(part.units, before.index_copy(2, rows, drawn), unknown)

    def _put(self, units: Tensor, values: Tensor, chosen: Tensor) -> None:
        self.units[:, units] = torch.where(chosen, values, self.units[:, units])
        self.inputs[:, units] = self._conditionals.scale.of_units(self.units[:, units], units)


def chains(
    network: Network, parameters: Tensor, given: Tensor, random: Sequence[torch.Generator], bounded: bool = False
) -> tuple[Gibbs, Noise]:
    """Return rows with independent features to start from, and their noise; ``given`` is NaN where values are drawn."""
    features = given[..., network.first_units].isnan().flatten(0, 1).any(0)
    noise = OwnNoise(random)
    return Gibbs.of_independent(FullConditionals(network, parameters, features, bounded), given, noise), noise
