"""Rescaling of graphical models to other means and deviations of their inputs and outputs."""

from __future__ import annotations

from torch import Tensor

from fedgraph.graphical.network.network import Network


def rescaled(network: Network, parameters: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return models ``[clients, parameters]`` with the same predictions and another mean and deviation of the units.

    ``mean`` and ``deviation`` are ``[units]`` for all or ``[clients, units]``. The paper's perceptron takes units as
    they are; of its models only the means change, which replace missing values.
    """
    state = dict(network.state(parameters))
    old_mean, old_deviation = state["mean"], state["deviation"]
    if network.masked:
        # Units in the old scaling are ratio * units in the new scaling + shift.
        ratio, shift = deviation / old_deviation, (mean - old_mean) / old_deviation
        first = network.first_weight(state)
        state["hidden.0.weight"] = state["hidden.0.weight"] * ratio[:, None, None]
        shifts = first * shift[:, None, None]
        state["hidden.0.bias"] = state["hidden.0.bias"] + shifts.sum(3)
        # Missing values were 0 before, and have to be 0 again.
        state["missing.weight"] = state["missing.weight"] - shifts @ network.membership
        state["head.weight"] = state["head.weight"] / ratio[..., None]
        marginal = network.unlearned(state) - network.heads.marginal(mean.expand_as(old_mean))
        state["head.bias"] = (state["head.bias"] * old_deviation + marginal) / deviation
    state["mean"] = mean.expand_as(old_mean)
    state["deviation"] = deviation.expand_as(old_deviation)
    return network.pruned(network.layout.flatten(state))
