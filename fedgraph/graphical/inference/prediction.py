"""Single values in place of unknown features, for many models and rows at once: what answers are compared with.

The regression of Shrivastava, Chajewska: Neural Graphical Models (ECSQARU 2023), section 3.2, repeated until nothing
changes any more, which is not theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.parts import split_parts
from fedgraph.support.errors import DataError
from fedgraph.support.threads import available_cores, side_by_side

ROWS = 2048
"""Number of rows that are computed together, which bounds the memory."""

_SWEEPS, _TOLERANCE = 100, 1e-4
"""At most so many sweeps, until no unit changes by more than the tolerance, in standard deviations."""


def infer(network: Network, parameters: Tensor, units: Tensor) -> Tensor:
    """Predict what is unknown (NaN) in ``units`` from its neighbours, unknown ones by their own predictions.

    Numbers are predicted by expectations, units of binary and categorical features by probabilities (by estimates under
    the squared loss; see :meth:`Network.probabilities`). Where features depend on each other linearly, that is the
    exact conditional expectation; where they nearly determine each other it is wrong, as what is unlikely by itself is
    taken for impossible. Rows do not influence each other.

    Parameters
    ----------
    network : Network
        Network of all models.
    parameters : Tensor
        ``[clients, parameters]``.
    units : Tensor
        ``[clients, rows, units]``, NaN for unknown.

    Returns
    -------
    Tensor
        ``[clients, rows, units]`` without NaN, what is known unchanged.

    Raises
    ------
    DataError
        When ``units`` do not fit the network and the number of models.
    """
    check_units(network, parameters, units)
    parameters = parameters.detach()
    chunks = side_by_side(
        lambda some: _fixed_point(network, parameters, some), units.split(ROWS, 1), available_cores(), 1
    )
    return torch.where(units.isnan(), torch.cat(chunks, 1), units)


def check_units(network: Network, parameters: Tensor, units: Tensor) -> None:
    """Raise DataError unless ``units`` are ``[clients, rows, units]`` of the network, one client for each model."""
    wanted = (len(parameters), len(network.schema.unit_feature))
    if units.dim() != 3 or (units.shape[0], units.shape[2]) != wanted:
        raise DataError(
            f"units of shape {list(units.shape)} do not fit {wanted[0]} models of {wanted[1]} units: they need "
            f"[{wanted[0]}, rows, {wanted[1]}]"
        )


@torch.no_grad()
def _fixed_point(network: Network, parameters: Tensor, units: Tensor) -> Tensor:
    unknown = units.isnan()
    if not bool(unknown.any()):
        return units
    unknown_features = unknown[..., network.first_units].flatten(0, 1).any(0)
    parts = split_parts(network, parameters, unknown_features)
    scale = Scale(network, parameters)
    start = network.forward(parameters, units)
    inputs = scale.inputs(torch.where(unknown, start, units).transpose(1, 2).contiguous())
    unknown = unknown.transpose(1, 2)
    for _ in range(_SWEEPS):
        change = 0.0
        # One class after the other: all at once could oscillate for ever.
        for part in parts:
            before = inputs[:, part.units]
            after = torch.where(unknown[:, part.units], scale.of_units(part(inputs), part.units), before)
            inputs[:, part.units] = after
            change = max(change, float((after - before).abs().max()))
        if change <= _TOLERANCE:
            break
    return scale.units(inputs).transpose(1, 2)


class Scale:
    """Conversion between units and the inputs of the network of some models; tensors are ``[clients, units, rows]``."""

    def __init__(self, network: Network, parameters: Tensor) -> None:
        state = network.state(parameters)
        self._mean, self._deviation = state["mean"][:, :, None], state["deviation"][:, :, None]
        if not network.masked:
            self._mean, self._deviation = torch.zeros_like(self._mean), torch.ones_like(self._deviation)

    def inputs(self, units: Tensor) -> Tensor:
        """Convert all units to inputs."""
        return (units - self._mean) / self._deviation

    def of_units(self, values: Tensor, units: Tensor) -> Tensor:
        """Convert the values of some units, int64 positions, to inputs."""
        return (values - self._mean[:, units]) / self._deviation[:, units]

    def units(self, inputs: Tensor) -> Tensor:
        """Convert inputs to all units."""
        return inputs * self._deviation + self._mean
