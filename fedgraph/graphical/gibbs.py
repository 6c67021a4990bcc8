"""Gibbs sampling from graphical models: every feature is drawn anew given all others, again and again.

Not in the papers on neural graphical models; overrelaxation: Adler, Physical Review D 23 (1981) 2901; dependences that
grow from sweep to sweep: Neal, Statistics and Computing 11 (2001) 125.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgraph.graphical.asking.full_conditionals import FullConditionals, Noise, OwnNoise, random_values
from fedgraph.graphical.network import Network


@dataclass(frozen=True)
class Course:
    """What the sweeps of a run are like, one after the other.

    strengths : of all dependences, of each sweep; 1 in the end.
    shifts    : added to outputs in each sweep, ``[clients, units, 1]``; none where there are none.
    """

    strengths: tuple[float, ...]
    shifts: tuple[Tensor, ...] = ()

    @classmethod
    def annealed(cls, sweeps: int, share: float) -> Course:
        """In this share of the sweeps, dependences grow evenly from none; from then on they are what they are."""
        rising = min(int(share * sweeps), sweeps - 1)
        return cls(tuple(min(1.0, (sweep + 1) / (rising + 1)) for sweep in range(sweeps)))

    @property
    def last_shift(self) -> Tensor | None:
        """Of the sweeps of full strength, the mean."""
        full = [shift for strength, shift in zip(self.strengths, self.shifts, strict=False) if strength == 1]
        return torch.stack(full).mean(0) if full else None

    def steadied(self) -> Course:
        """With the mean shift in all sweeps of full strength: what it varies by is due to the rows that it is from."""
        last = self.last_shift
        shifts = zip(self.strengths, self.shifts, strict=False)
        return replace(
            self,
            shifts=tuple(last if strength == 1 and last is not None else shift for strength, shift in shifts),
        )


class Gibbs:
    """Rows of some models while they are drawn.

    units   : ``[clients, units, rows]``, without gaps.
    unknown : what of them is drawn, bool alike; it may be replaced.
    """

    def __init__(self, conditionals: FullConditionals, units: Tensor, unknown: Tensor) -> None:
        self._conditionals = conditionals
        self._inputs = conditionals.scale.inputs(units)
        self.units, self.unknown = units, unknown

    @classmethod
    def of_independent(cls, conditionals: FullConditionals, given: Tensor, noise: Noise) -> Gibbs:
        """Rows whose features are drawn regardless of each other, where ``given`` ``[clients, rows, units]`` is NaN."""
        unknown = given.transpose(1, 2).isnan()
        units = given.transpose(1, 2).contiguous()
        for part in conditionals.parts:
            mean, deviation = conditionals.mean[:, part.units], conditionals.deviation[:, part.units]
            start = random_values(part, mean.expand(-1, -1, given.shape[1]), deviation, noise)
            units[:, part.units] = torch.where(unknown[:, part.units], start, units[:, part.units])
        return cls(conditionals, units, unknown)

    @property
    def rows(self) -> Tensor:
        """As they are now, ``[clients, rows, units]``."""
        return self.units.transpose(1, 2)

    @property
    def inputs(self) -> Tensor:
        """The same as networks take them, ``[clients, units, rows]``."""
        return self._inputs

    def run(self, course: Course, overrelaxation: float, noise: Noise) -> None:
        """Draw everything once in each sweep.

        The first sweep is without overrelaxation: it forgets where numbers started, so that those whose neighbours are
        known need no second.
        """
        for sweep, strength in enumerate(course.strengths):
            shift = course.shifts[sweep] if course.shifts else None
            self.sweep(noise, overrelaxation if sweep else 0.0, strength, shift)

    def sweep(
        self, noise: Noise, overrelaxation: float = 0.0, strength: float = 1.0, shift: Tensor | None = None
    ) -> None:
        """Draw everything once."""
        for part in self._conditionals.parts:
            predicted = part(self._inputs, strength, shift)
            before = self.units[:, part.units]
            drawn = self._conditionals.drawn(part, predicted, before, noise, overrelaxation, strength)
            self._put(part.units, drawn, self.unknown[:, part.units])

    def centring(self, course: Course, overrelaxation: float, noise: Noise) -> Course:
        """The same run, with predictions shifted in every sweep so that rows have the means of the training rows.

        Returns the course with these shifts. They are small where dependences grow slowly: what a relation fixes that
        no single draw can change, such as which of two features that determine each other are 1, is settled while it is
        weak, and then by rows whose means are right.
        """
        conditionals = self._conditionals
        shift = torch.zeros_like(conditionals.mean)
        shifts = []
        for sweep, strength in enumerate(course.strengths):
            for part in conditionals.parts:
                outputs = part.outputs(self._inputs, strength)
                expected = conditionals.expected(part, part.predictions(outputs, shift))
                shift[:, part.units] += part.centre(expected, conditionals.mean[:, part.units])
                predicted = part.predictions(outputs, shift)
                before, share = self.units[:, part.units], overrelaxation if sweep else 0.0
                drawn = conditionals.drawn(part, predicted, before, noise, share, strength)
                self._put(part.units, drawn, self.unknown[:, part.units])
            shifts.append(shift.clone())
        return replace(course, shifts=tuple(shifts)).steadied()

    def put(self, values: Tensor, chosen: Tensor) -> None:
        """Replace what is chosen, bool, by values, both ``[clients, units, rows]``."""
        every = torch.arange(values.shape[1])
        self._put(every, values, chosen)

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, int64 ``[clients, rows]``, of which some may be there several times."""
        index = rows[:, None].expand(-1, self.units.shape[1], -1)
        self.units, self._inputs = self.units.gather(2, index), self._inputs.gather(2, index)

    def _put(self, units: Tensor, values: Tensor, chosen: Tensor) -> None:
        self.units[:, units] = torch.where(chosen, values, self.units[:, units])
        self._inputs[:, units] = self._conditionals.scale.of_units(self.units[:, units], units)


def chains(
    network: Network, parameters: Tensor, given: Tensor, random: Sequence[torch.Generator], bounded: bool = False
) -> tuple[Gibbs, Noise]:
    """Rows with independent features to start from, and noise for them; ``given`` is NaN where something is drawn."""
    features = given[..., network.first_units].isnan().flatten(0, 1).any(0)
    noise = OwnNoise(random)
    return Gibbs.of_independent(FullConditionals(network, parameters, features, bounded), given, noise), noise
