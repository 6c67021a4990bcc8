"""Forecasts from the embeddings of all owners: alignment, a graph over which embeddings are mixed, a head per owner.

After Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
eqs. 4 and 8. The paper has one label for all owners; here each owner has its own targets, so there is no pooling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from fedgraph.fusion.forecasting.fitting import FitSettings, ForecastFit, Look, fit_network
from fedgraph.fusion.forecasting.windows import OwnerWindows
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.files import load_state, save_state
from fedgraph.support.randomness import generator
from fedgraph.support.settings import select_settings

OwnerGraph = Literal["learned", "given", "permuted", "complete", "none"]
"""The graph over which embeddings are mixed."""


class ForecastFusionSettings(FitSettings):
    """Settings of the network that the server fits to embeddings.

    Attributes
    ----------
    graph         : ``learned``: matrices of mixing weights, whose rows sum to one; ``given``: the client graph of
                    [graph], its rows divided by their sums; ``complete``: all clients alike; ``none``; ``permuted``:
                    the given graph with randomly permuted clients.
    controls      : other graphs with which a network is fitted to the same embeddings, for comparison. The names of
                    their errors end in -no-graph, -given-graph and so on.
    mixes         : learned matrices, or hops of another graph.
    graph_rate    : learning rate of a learned graph, as a multiple of learning-rate.
    aligned_size  : length of an aligned embedding.
    hidden        : width of each owner's forecaster.
    """

    graph: OwnerGraph = "learned"
    controls: tuple[OwnerGraph, ...] = ()
    mixes: int = Field(default=2, ge=1)
    graph_rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    aligned_size: int = Field(default=32, ge=1)
    hidden: int = Field(default=64, ge=1)

    def over(self, graph: OwnerGraph) -> Self:
        """Return the same settings with another graph."""
        return self.model_copy(update={"graph": graph})

    @property
    def needs_graph(self) -> bool:
        """Whether a client graph is required."""
        return not {"given", "permuted"}.isdisjoint((self.graph, *self.controls))


class ForecastFusion(nn.Module):
    """``f_i(z_i, (M_1 Z)_i, ..., (M_K Z)_i)`` with ``z_i = relu(P_i h_i + b_i)`` for every owner i.

    f_i is a perceptron with one hidden layer for owner i. Rows of M are normalised over the owners that have the
    window; a row without any is 0.

    Parameters
    ----------
    owners, size, outputs : int
        Numbers of owners, of numbers in an embedding, and of steps in a forecast.
    settings : ForecastFusionSettings
        The settings of the network.
    weights : Tensor or None
        Of the graph, ``[owners, owners]``, as :func:`graph_weights` makes them.
    random : torch.Generator
        Draws the initial weights.
    """

    hops: Tensor | None

    def __init__(
        self,
        owners: int,
        size: int,
        outputs: int,
        settings: ForecastFusionSettings,
        weights: Tensor | None,
        random: torch.Generator,
    ) -> None:
        super().__init__()
        aligned, hidden = settings.aligned_size, settings.hidden
        self.register_buffer("hops", None)
        self.edges: nn.Parameter | None = None
        if settings.graph == "learned":
            self.edges = nn.Parameter(0.1 * torch.randn(settings.mixes, owners, owners, generator=random))
        elif weights is not None:
            self.hops = _hops(weights, settings.mixes)
        inputs = aligned * (1 if settings.graph == "none" else 1 + settings.mixes)
        self.alignment, self.alignment_bias = _layers(owners, size, aligned, random)
        self.first, self.first_bias = _layers(owners, inputs, hidden, random)
        self.second, self.second_bias = _layers(owners, hidden, outputs, random)

    def forward(self, embeddings: Tensor, present: Tensor) -> Tensor:
        """Forecast all owners' futures.

        Returns ``[owners, batch, outputs]``; an owner that lacks a window is forecast from the others' embeddings.

        Parameters
        ----------
        embeddings : Tensor
            Float32 ``[owners, batch, size]``.
        present : Tensor
            Bool ``[owners, batch]``.
        """
        there = present[..., None].to(embeddings.dtype)
        aligned = torch.baddbmm(self.alignment_bias, embeddings * there, self.alignment).relu() * there
        parts = [aligned]
        mixing = self.mixing()
        if mixing is not None:
            for matrix in mixing:
                total = (matrix @ aligned.flatten(1)).view_as(aligned)
                parts.append(total / (matrix @ there[..., 0]).clamp(min=1e-6)[..., None])
        hidden = torch.baddbmm(self.first_bias, torch.cat(parts, 2), self.first).relu()
        return torch.baddbmm(self.second_bias, hidden, self.second)

    def mixing(self) -> Tensor | None:
        """The matrices M, ``[mixes, owners, owners]``; None without a graph."""
        return self.hops if self.edges is None else self.edges.softmax(2)


def _layers(owners: int, inputs: int, outputs: int, random: torch.Generator) -> tuple[nn.Parameter, nn.Parameter]:
    """A linear layer for each owner: weights ``[owners, inputs, outputs]`` and biases ``[owners, 1, outputs]``."""
    weights = torch.randn(owners, inputs, outputs, generator=random) / math.sqrt(inputs)
    return nn.Parameter(weights), nn.Parameter(torch.zeros(owners, 1, outputs))


def graph_weights(graph: OwnerGraph, given_graph: Tensor | None, owners: int, seed: int) -> Tensor | None:
    """Return the weights over which embeddings are mixed.

    Returns ``[owners, owners]``; None if they are learned, or nothing is mixed. Raises DataError if ``graph`` is
    ``given`` or ``permuted`` and ``given_graph`` is None.

    Parameters
    ----------
    graph : str
        As in the settings.
    given_graph : Tensor or None
        Weights of the client graph, ``[owners, owners]``.
    owners, seed : int
        The number of owners, and the seed of the permutation of ``permuted``.
    """
    if graph in ("learned", "none"):
        return None
    if graph == "complete":
        return torch.ones(owners, owners)
    if given_graph is None:
        raise DataError(f'graph = "{graph}" needs a client graph: set source of [graph]')
    if graph == "given":
        return given_graph
    places = torch.randperm(owners, generator=generator(seed, "permuted graph"))
    return given_graph[places][:, places]


def _hops(weights: Tensor, number: int) -> Tensor:
    """The first powers of a row-normalised graph without self loops."""
    weights = weights.float() * (1 - torch.eye(len(weights)))
    step = weights / weights.sum(1, keepdim=True).clamp(min=1e-12)
    powers = [step]
    while len(powers) < number:
        powers.append(powers[-1] @ step)
    return torch.stack(powers)


def fit_forecasts(
    settings: ForecastFusionSettings,
    training: OwnerWindows,
    validation: OwnerWindows,
    given_graph: Tensor | None,
    seed: int,
    on_look: Look = lambda step, training, validation: None,
) -> ForecastFit[ForecastFusion]:
    """Train the network on the windows of all owners.

    Raises FedgraphError as :func:`fit_network`, and when the required client graph is missing.

    Parameters
    ----------
    settings : ForecastFusionSettings
        Settings of the network and its training.
    training, validation : OwnerWindows
        With targets.
    given_graph : Tensor or None
        Weights of the client graph, ``[owners, owners]``.
    seed : int
        Seed of the experiment.
    on_look : callable
        Called with the step, the mean training loss since the last evaluation, and the validation loss.
    """
    owners, _, size = training.embeddings.shape
    weights = graph_weights(settings.graph, given_graph, owners, seed)

    def build() -> ForecastFusion:
        random = generator(seed, "forecast fusion")
        return ForecastFusion(owners, size, training.targets.shape[2], settings, weights, random)

    return fit_network(build, settings, training, validation, seed, on_look, ("edges",), settings.graph_rate)


@dataclass(frozen=True)
class FittedForecasts:
    """A fitted network with its settings and owners, as ``fusion.safetensors`` of a run has them.

    Attributes
    ----------
    network : ForecastFusion
        The network.
    settings : ForecastFusionSettings
        Its settings.
    owners : tuple of str
        In the order of its inputs.
    """

    network: ForecastFusion
    settings: ForecastFusionSettings
    owners: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """The length of an embedding, and of a forecast."""
        return self.network.alignment.shape[1], self.network.second.shape[2]

    def write(self, path: Path) -> None:
        """Write the network atomically."""
        settings = select_settings(ForecastFusionSettings, self.settings.as_table(), "the fusion's settings").as_table()
        state = {"settings": settings, "owners": list(self.owners), "sizes": list(self.sizes)}
        save_state(path, {**state, "network": self.network.state_dict()})

    @classmethod
    def read(cls, path: Path) -> FittedForecasts:
        """Read a network. Raises RunError when the file is missing, broken or not such a network."""
        state = load_state(path)
        try:
            settings, owners = ForecastFusionSettings.model_validate(state["settings"]), tuple(state["owners"])
            # Replaced by the weights of the file.
            graph = torch.zeros(len(owners), len(owners)) if "hops" in state["network"] else None
            size, steps = state["sizes"]
            network = ForecastFusion(len(owners), size, steps, settings, graph, torch.Generator())
            network.load_state_dict(state["network"])
        except Exception as error:
            raise RunError(f"{path} is not a forecasting network of this version: {error}") from None
        return cls(network, settings, owners)
