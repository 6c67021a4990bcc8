"""Rows of a model's joint distribution, drawn once and kept, and the likelihood of known values in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.graphical.inference.full_conditionals import FullConditionals
from fedgraph.graphical.inference.joint_rows import SamplingSettings, pilot
from fedgraph.graphical.network.network import Network


@dataclass(frozen=True)
class KeptRows:
    """Rows of the joint distributions of some models, kept for further queries.

    Attributes
    ----------
    network : Network
        Network of all models.
    parameters : Tensor
        ``[clients, parameters]``.
    names : tuple of str
        Names of the clients.
    seed : int
        Seed with which the rows were drawn.
    settings : SamplingSettings
        Settings with which they were drawn.
    units : Tensor
        The rows, ``[clients, rows, units]``.
    shift : Tensor or None
        Shift of outputs with which the rows were drawn in the end, ``[clients, units, 1]``; None where there is none.
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
        """Draw ``settings.kept`` rows, which depend on the models, the names, the seed and the settings alone."""
        parameters = parameters.detach()
        shifts, units = pilot(network, parameters, names, seed, settings, settings.kept)
        shift = None if shifts is None else shifts[-1]
        every = FullConditionals(network, parameters, None, bounded=True)
        tables = _tables(every, units, shift)
        return cls(network, parameters, tuple(names), seed, settings, units, shift, every, tables)

    def conditionals(self, features: Tensor) -> FullConditionals:
        """Return full conditionals of ``features``, bool ``[features]``, to continue Gibbs sampling from the rows."""
        return FullConditionals(self.network, self.parameters, features, bounded=True)

    def log_likelihood(self, units: Tensor, features: Tensor) -> Tensor:
        """Compute the log-likelihood of chosen features of some rows, given all other features of each kept row.

        Chosen features of a row must be no neighbours of each other. Terms that all kept rows have in common are left
        out.

        Parameters
        ----------
        units : Tensor
            Rows with known values, ``[clients, asked, units]``.
        features : Tensor
            The chosen features, bool ``[clients, asked, features]``.

        Returns
        -------
        Tensor
            ``[clients, asked, rows]``.
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
    """Return the terms of the log-likelihood, ``[clients, units, rows]`` each.

    They are the factor of a value, the constant, and for numbers the values at their lower and upper bounds (left out
    where there are no numbers).
    """
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
