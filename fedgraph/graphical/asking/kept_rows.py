"""Rows of a model's joint distribution, drawn once and kept, and how well each goes with what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.graphical.asking.full_conditionals import FullConditionals
from fedgraph.graphical.asking.joint_rows import SamplingSettings, pilot
from fedgraph.graphical.network.network import Network


@dataclass(frozen=True)
class KeptRows:
    """Of some models.

    network, parameters : the models, ``[clients, parameters]``.
    names    : of the clients.
    seed     : that the rows were drawn with.
    settings : likewise.
    units    : the rows, ``[clients, rows, units]``.
    shift    : of outputs, ``[clients, units, 1]``, with which the rows were drawn; None where there is none.
    """

    network: Network
    parameters: Tensor
    names: tuple[str, ...]
    seed: int
    settings: SamplingSettings
    units: Tensor
    shift: Tensor | None
    _every: FullConditionals
    _tables: tuple[Tensor, ...]

    @classmethod
    def drawn(
        cls, network: Network, parameters: Tensor, names: Sequence[str], seed: int, settings: SamplingSettings
    ) -> KeptRows:
        """They depend on the models, the names, the seed and the settings alone."""
        parameters = parameters.detach()
        shift, units = pilot(network, parameters, names, seed, settings, settings.kept)
        every = FullConditionals(network, parameters, None, settings.bounded)
        tables = _tables(every, units, shift)
        return cls(network, parameters, tuple(names), seed, settings, units, shift, every, tables)

    def conditionals(self, features: Tensor) -> FullConditionals:
        """Of ``features``, bool ``[features]``, with which Gibbs sampling goes on from the rows."""
        return FullConditionals(self.network, self.parameters, features, self.settings.bounded)

    def log_likelihood(self, units: Tensor, features: Tensor) -> Tensor:
        """Of the chosen ``features`` (bool ``[clients, asked, features]``) of the rows ``units`` ``[clients, asked,
        units]``, in each of the kept rows with all else as it is there: ``[clients, asked, rows]``.

        Chosen features of a row are no neighbours of each other. Terms that all kept rows have in common are left out.
        """
        conditionals, schema = self._every, self.network.schema
        chosen = features[..., schema.unit_feature]
        values = torch.where(chosen, units, 0.0)
        by_value, constant, *at_bounds = self._tables
        lowest, highest = conditionals.lowest.transpose(1, 2), conditionals.highest.transpose(1, 2)
        is_number = self.network.heads.is_number
        inside = chosen
        found = torch.zeros(())
        if at_bounds:
            is_low, is_high = (chosen & is_number & (values <= lowest), chosen & is_number & (values >= highest))
            inside = chosen & ~is_low & ~is_high
            found = is_low.float() @ at_bounds[0] + is_high.float() @ at_bounds[1]
            centred = (values - conditionals.mean.transpose(1, 2)) / conditionals.deviation.transpose(1, 2)
            values = torch.where(is_number, centred, values)
        return found + (values * inside) @ by_value + inside.float() @ constant


def _tables(conditionals: FullConditionals, rows: Tensor, shift: Tensor | None) -> tuple[Tensor, ...]:
    """What the logarithm of a likelihood is made of, ``[clients, units, rows]`` each: by what a value counts, what is
    added, and what numbers at their lower or upper bounds have instead (none where there are no numbers)."""
    units = rows.transpose(1, 2)
    inputs = conditionals.scale.inputs(units)
    has_numbers = bool(conditionals.network.heads.is_number.any())
    tables = [torch.zeros_like(inputs) for _ in range(4 if has_numbers else 2)]
    for part in conditionals.parts:
        own = part.units
        predicted = part(inputs, shift=shift)
        zero, one = (conditionals.log_likelihood(part, predicted, torch.full_like(predicted, at)) for at in (0.0, 1.0))
        number = part.is_number[:, None]
        deviation = conditionals.deviation[:, own]
        # A normal likelihood but for the square of the value itself, in deviations from the mean.
        at_mean = (predicted - conditionals.mean[:, own]) / deviation
        precision = (deviation / conditionals.finest(own)).square()
        tables[0][:, own] = torch.where(number, at_mean * precision, one - zero)
        tables[1][:, own] = torch.where(number, -0.5 * at_mean.square() * precision, zero)
        if has_numbers:
            for table, bound in zip(tables[2:], (conditionals.lowest, conditionals.highest), strict=True):
                at_bound = bound[:, own].expand_as(predicted)
                table[:, own] = conditionals.log_likelihood(part, predicted, at_bound)
    return tuple(tables)
