"""Prediction of unknown features from any known ones, for many models and rows at once.

Shrivastava, Chajewska: Neural Graphical Models (ECSQARU 2023), section 3.2, on which section 2.2 of Federated Learning
with Neural Graphical Models builds. The fixed point is not theirs.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.parts import split_parts
from fedgraph.support.errors import DataError
from fedgraph.support.settings import Settings
from fedgraph.support.threads import available_cores, side_by_side

ROWS = 2048
"""Number of rows that are computed together, which bounds the memory."""

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class InferenceSettings(Settings):
    """How unknown features are predicted.

    Attributes
    ----------
    method : ``fixed-point``: every unknown feature is predicted from its neighbours, unknown ones by their own
        predictions, until nothing changes any more; where features depend on each other linearly, that is the exact
        conditional expectation. ``forward``: once, with unknown neighbours missing; the regression mode of the authors'
        program. ``gradient``: the authors' procedure: unknown inputs start at their means, and Adam moves them until
        the network reproduces the known features as well as it can.
    sweeps, tolerance    : of the fixed point: at most this many sweeps, until no unit changes by more than the
        tolerance (in standard deviations).
    steps, learning_rate : of the gradient method.
    """

    method: Literal["fixed-point", "forward", "gradient"] = "fixed-point"
    sweeps: int = Field(default=100, ge=1)
    tolerance: float = Field(default=1e-4, gt=0)
    steps: int = Field(default=1000, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)


def infer(network: Network, parameters: Tensor, units: Tensor, settings: InferenceSettings | None = None) -> Tensor:
    """Predict what is unknown (NaN) in ``units``, and return what is known unchanged.

    Numbers are predicted by expectations, units of binary and categorical features by probabilities (by estimates with
    ``gradient`` or under the squared loss; see :meth:`Network.probabilities`). With all neighbours known, ``forward``
    and ``fixed-point`` give the same result. Rows do not influence each other.

    Parameters
    ----------
    network : Network
        Network of all models.
    parameters : Tensor
        ``[clients, parameters]``.
    units : Tensor
        ``[clients, rows, units]``, NaN for unknown.
    settings : InferenceSettings, optional
        Method and its parameters.

    Returns
    -------
    Tensor
        ``[clients, rows, units]`` without NaN.

    Raises
    ------
    DataError
        When ``units`` do not fit the network and the number of models.
    """
    settings = settings or InferenceSettings()
    check_units(network, parameters, units)
    parameters = parameters.detach()
    predict = {"fixed-point": _fixed_point, "forward": _forward, "gradient": _gradient}[settings.method]
    chunks = side_by_side(
        lambda some: predict(network, parameters, some, settings), units.split(ROWS, 1), available_cores(), 1
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
def _forward(network: Network, parameters: Tensor, units: Tensor, settings: InferenceSettings) -> Tensor:
    return network.forward(parameters, units)


@torch.no_grad()
def _fixed_point(network: Network, parameters: Tensor, units: Tensor, settings: InferenceSettings) -> Tensor:
    unknown = units.isnan()
    if not bool(unknown.any()):
        return units
    unknown_features = unknown[..., network.first_units].flatten(0, 1).any(0)
    parts = split_parts(network, parameters, unknown_features)
    scale = Scale(network, parameters)
    start = network.forward(parameters, units)
    inputs = scale.inputs(torch.where(unknown, start, units).transpose(1, 2).contiguous())
    unknown = unknown.transpose(1, 2)
    for _ in range(settings.sweeps):
        change = 0.0
        # One class after the other: all at once could oscillate for ever.
        for part in parts:
            before = inputs[:, part.units]
            after = torch.where(unknown[:, part.units], scale.of_units(part(inputs), part.units), before)
            inputs[:, part.units] = after
            change = max(change, float((after - before).abs().max()))
        if change <= settings.tolerance:
            break
    return scale.units(inputs).transpose(1, 2)


def _gradient(network: Network, parameters: Tensor, units: Tensor, settings: InferenceSettings) -> Tensor:
    """Adam written out, as each row keeps the iterate that is its own best."""
    unknown = units.isnan()
    mean = network.state(parameters)["mean"][:, None]
    values = torch.where(unknown, mean, units)
    known, best = values, values
    least = values.new_full(values.shape[:2], torch.inf)
    first, second = torch.zeros_like(values), torch.zeros_like(values)
    for step in range(1, settings.steps + 1):
        values = values.detach().requires_grad_()
        errors = (network.forward(parameters, values) - known).square().masked_fill(unknown, 0.0).mean(2)
        gradient = torch.autograd.grad(errors.sum(), values)[0].masked_fill_(~unknown, 0.0)
        with torch.no_grad():
            better = errors < least
            least = torch.where(better, errors, least)
            best = torch.where(better[..., None], values, best)
            first.lerp_(gradient, 1 - _BETAS[0])
            second.lerp_(gradient.square(), 1 - _BETAS[1])
            rate = settings.learning_rate / (1 - _BETAS[0] ** step)
            values = values - rate * first / ((second / (1 - _BETAS[1] ** step)).sqrt() + _EPSILON)
    return best.detach()


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
