"""Training of a network that forecasts the windows of all owners together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fedgraph.fusion.forecasting.windows import OwnerWindows
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.randomness import derive_seed, generator
from fedgraph.support.settings import Settings
from fedgraph.support.threads import pinned_threads

_EVALUATED_AT_ONCE = 1024
_CLIP_NORM = 5.0

Look = Callable[[int, float, float], None]
"""Called with the step, the mean training loss since the last evaluation, and the validation loss."""

Network = TypeVar("Network", bound=nn.Module)
"""``forward`` maps windows ``[owners, batch, size]`` and presence ``[owners, batch]`` to forecasts."""


class FitSettings(Settings):
    """Settings of the training of a network.

    Attributes
    ----------
    steps : training steps of Adam; the learning rate decays to 0 along a cosine.
    evaluate_every : steps between evaluations on the validation windows; the best network is kept.
    batch_size : windows per training step.
    learning_rate : initial learning rate.
    weight_decay : decoupled (AdamW), of all parameters except biases and the graph.
    """

    steps: int = Field(default=3000, ge=1)
    evaluate_every: int = Field(default=250, ge=1)
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=0.002, gt=0)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)


@dataclass(frozen=True)
class ForecastFit(Generic[Network]):
    """A fitted network.

    Attributes
    ----------
    network : nn.Module
        With the weights of the smallest validation loss.
    step : int
        The step of these weights.
    validation_loss : float
        Mean absolute error of scaled readings.
    """

    network: Network
    step: int
    validation_loss: float


def fit_network(
    build: Callable[[], Network],
    settings: FitSettings,
    training: OwnerWindows,
    validation: OwnerWindows,
    seed: int,
    on_look: Look = lambda step, training, validation: None,
    graph: Collection[str] = (),
    graph_rate: float = 1.0,
) -> ForecastFit[Network]:
    """Train a network to forecast the windows of all owners, by the mean absolute error of observed targets.

    Raises DataError without training or validation windows with an observed target, and RunError if training diverges.

    Parameters
    ----------
    build : callable
        Makes the network; the default generator of PyTorch is seeded for it.
    settings : FitSettings
        Settings of the training.
    training, validation : OwnerWindows
        With targets.
    seed : int
        Seed of the experiment.
    on_look : callable
        Called at every evaluation.
    graph : collection of str
        Parameters of the graph: without weight decay, and with ``graph_rate`` times the learning rate.
    """
    for name, part in (("training", training), ("validation", validation)):
        if not bool(part.known.any()):
            raise DataError(f"there are no {name} windows with readings to forecast: check the shares of splits")
    # One thread, so that the result does not depend on the number of cores.
    with pinned_threads(1), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "forecast network"))
        network = build()
        groups = _groups(network, settings, graph, graph_rate)
        optimizer = torch.optim.AdamW(groups, settings.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
        order = generator(seed, "forecast fusion batches")
        best, best_step, lowest, total = dict(network.state_dict()), 0, math.inf, 0.0
        for step in range(1, settings.steps + 1):
            batch = training.batch(torch.randint(len(training), (settings.batch_size,), generator=order))
            loss = _error(network(batch.embeddings, batch.present), batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), _CLIP_NORM)
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
            if step % settings.evaluate_every and step < settings.steps:
                continue
            since = settings.evaluate_every if step % settings.evaluate_every == 0 else step % settings.evaluate_every
            found = _error(forecasts(network, validation), validation).item()
            if not math.isfinite(found):
                raise RunError(f"learning the fusion diverged before step {step}: lower learning-rate")
            on_look(step, total / since, found)
            total = 0.0
            if found < lowest:
                lowest, best_step = found, step
                best = {name: value.clone() for name, value in network.state_dict().items()}
        network.load_state_dict(best)
    return ForecastFit(network, best_step, lowest)


@torch.no_grad()
def forecasts(network: nn.Module, windows: OwnerWindows) -> Tensor:
    """Forecast all windows, in evaluation mode. Returns ``[owners, windows, steps]``, scaled as the targets are."""
    before = network.training
    network.eval()
    with pinned_threads(1):
        parts = torch.arange(len(windows)).split(_EVALUATED_AT_ONCE)
        found = [network(part.embeddings, part.present) for part in map(windows.batch, parts)]
    network.train(before)
    return torch.cat(found, 1)


def _groups(
    network: nn.Module, settings: FitSettings, graph: Collection[str], graph_rate: float
) -> list[dict[str, object]]:
    """Parameter groups of AdamW: weights, biases, which do not decay, and the graph, which has a rate of its own."""
    kinds: dict[str, list[nn.Parameter]] = {"weights": [], "biases": [], "graph": []}
    for name, parameter in network.named_parameters():
        kinds["graph" if name in graph else "biases" if "bias" in name else "weights"].append(parameter)
    return [
        {"params": kinds["weights"], "weight_decay": settings.weight_decay},
        {"params": kinds["biases"], "weight_decay": 0.0},
        {"params": kinds["graph"], "weight_decay": 0.0, "lr": settings.learning_rate * graph_rate},
    ]


def _error(found: Tensor, windows: OwnerWindows) -> Tensor:
    """Mean absolute error over the observed targets; 0 without any."""
    known = windows.known
    return ((found - windows.targets).abs() * known).sum() / known.sum().clamp(min=1)
