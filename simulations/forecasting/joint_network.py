"""One network that sees the windows of all clients, in one place: what sharing everything reaches.

Graph WaveNet: Wu, Pan, Long, Jiang, Zhang: Graph WaveNet for Deep Spatial-Temporal Graph Modeling (IJCAI 2019),
sections 3.2 to 3.4. https://arxiv.org/abs/1906.00121
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedgraph.fusion.forecasting import FitSettings, ForecastFit, Look, OwnerWindows, fit_network

_DILATIONS = (1, 2, 1, 2, 1, 2, 1, 2)
_CHANNELS, _SKIPPED, _LAST = 32, 256, 512
_NODE_EMBEDDING = 10
_DIFFUSION_STEPS = 2
_DROPOUT = 0.3
_HIDDEN = 512

JointNetwork = Literal["graph-wavenet", "perceptron"]
"""The networks that see all clients."""


class JointForecastSettings(FitSettings):
    """``[JointForecast]``: the network, and how it is trained.

    Attributes
    ----------
    network : ``graph-wavenet``, of the published size, over an adaptive graph and, where [graph] gives one, over that
              too; or a ``perceptron`` of two hidden layers, from all windows to all forecasts.
    """

    network: JointNetwork = "graph-wavenet"
    steps: int = Field(default=1500, ge=1)


class JointPerceptron(nn.Module):
    """A perceptron from the windows of all clients to the forecasts of all."""

    def __init__(self, clients: int, size: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(clients * size, _HIDDEN), nn.ReLU(), nn.Dropout(_DROPOUT),
            nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), nn.Dropout(_DROPOUT),
            nn.Linear(_HIDDEN, clients * outputs),
        )  # fmt: skip

    def forward(self, windows: Tensor, present: Tensor) -> Tensor:
        """Forecast; windows ``[clients, batch, size]``, those that a client lacks 0."""
        found: Tensor = self.layers(windows.transpose(0, 1).flatten(1))
        return found.unflatten(1, (len(windows), -1)).transpose(0, 1)


class GraphWaveNet(nn.Module):
    """Graph WaveNet with an adaptive adjacency matrix: gated dilated convolutions over time, diffusion over the graph.

    Parameters
    ----------
    clients, steps, outputs : int
        Clients, steps of a window, and steps of a forecast.
    features : int
        Numbers of a step.
    given_graph : Tensor or None
        Weights of the client graph, ``[clients, clients]``, whose transitions are used in both directions.
    """

    transitions: Tensor

    def __init__(self, clients: int, steps: int, features: int, outputs: int, given_graph: Tensor | None) -> None:
        super().__init__()
        known = [] if given_graph is None else [_walk(given_graph), _walk(given_graph.T)]
        self.register_buffer("transitions", torch.stack(known) if known else torch.zeros(0, clients, clients))
        self.sources = nn.Parameter(torch.randn(clients, _NODE_EMBEDDING))
        self.targets = nn.Parameter(torch.randn(_NODE_EMBEDDING, clients))
        self.steps, self.reach = steps, 1 + sum(_DILATIONS)
        mixed = (1 + _DIFFUSION_STEPS * (1 + len(known))) * _CHANNELS
        self.start = nn.Linear(features, _CHANNELS)
        self.gated = nn.ModuleList(nn.Linear(2 * _CHANNELS, 2 * _CHANNELS) for _ in _DILATIONS)
        self.mixing = nn.ModuleList(nn.Linear(mixed, _CHANNELS) for _ in _DILATIONS)
        self.norms = nn.ModuleList(nn.BatchNorm1d(_CHANNELS) for _ in _DILATIONS)
        self.skips = nn.ModuleList(nn.Linear(_CHANNELS, _SKIPPED) for _ in _DILATIONS)
        self.end = nn.Sequential(nn.ReLU(), nn.Linear(_SKIPPED, _LAST), nn.ReLU(), nn.Linear(_LAST, outputs))

    def forward(self, windows: Tensor, present: Tensor) -> Tensor:
        """Forecast; windows ``[clients, batch, steps * features]``, those that a client lacks 0."""
        x = windows.unflatten(2, (self.steps, -1))  # [clients, batch, steps, features]
        x = self.start(nn.functional.pad(x, (0, 0, max(self.reach - self.steps, 0), 0)))
        adaptive = (self.sources @ self.targets).relu().softmax(1)
        supports = [*self.transitions, adaptive]
        skipped = x.new_zeros(())
        layers = zip(_DILATIONS, self.gated, self.mixing, self.norms, self.skips, strict=True)
        for dilation, gated, mixing, norm, skip in layers:
            filtered, gate = gated(torch.cat([x[:, :, :-dilation], x[:, :, dilation:]], 3)).chunk(2, 3)
            h = filtered.tanh() * gate.sigmoid()
            # The last step alone is forecast from.
            skipped = skipped + skip(h[:, :, -1])
            parts = [h]
            for support in supports:
                diffused = h.flatten(1)
                for _ in range(_DIFFUSION_STEPS):
                    diffused = support @ diffused
                    parts.append(diffused.view_as(h))
            h = nn.functional.dropout(mixing(torch.cat(parts, 3)), _DROPOUT, self.training)
            x = h + x[:, :, -h.shape[2] :]
            x = norm(x.flatten(0, 2)).view_as(x)
        found: Tensor = self.end(skipped)
        return found


def _walk(weights: Tensor) -> Tensor:
    """The transitions of a random walk: rows divided by their sums."""
    return weights / weights.sum(1, keepdim=True).clamp(min=1e-12)


def fit_joint(
    settings: JointForecastSettings,
    steps: int,
    training: OwnerWindows,
    validation: OwnerWindows,
    given_graph: Tensor | None,
    seed: int,
    on_look: Look = lambda step, training, validation: None,
) -> ForecastFit[nn.Module]:
    """Train one network on the windows of all clients.

    Parameters
    ----------
    settings : JointForecastSettings
        What is trained, and how.
    steps : int
        Steps of a window.
    training, validation : OwnerWindows
        The windows themselves instead of embeddings, ``[clients, windows, steps * features]``, with targets.
    given_graph : Tensor or None
        Weights of the client graph, ``[clients, clients]``.
    seed : int
        Seed of the experiment.
    on_look : callable
        Told the step, the mean training loss since the last look, and the validation loss.

    Raises
    ------
    FedgraphError
        As :func:`fit_network`.
    """
    clients, _, size = training.embeddings.shape
    outputs = training.targets.shape[2]

    def build() -> nn.Module:
        if settings.network == "perceptron":
            return JointPerceptron(clients, size, outputs)
        return GraphWaveNet(clients, steps, size // steps, outputs, given_graph)

    return fit_network(build, settings, training, validation, seed, on_look)
