"""``fusion-loop``: training F3's fusion network beside a plain PyTorch loop of the same network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from fedgraph.fusion import FusionData, FusionSettings, training
from fedgraph.simulations.benchmarks.fusion import random_data
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Repeats,
    Timing,
    in_turn,
    print_report,
    ratio,
    target_line,
    timing_table,
    warmed,
    write_raw,
)
from fedgraph.support.errors import ExperimentError
from fedgraph.support.threads import pinned_threads

SHAPES = ("4x10000", "2x150", "20x2000", "200x1000")
OURS, WITHOUT, PLAIN = "fit", "fit, compile = false", "plain PyTorch loop"
LARGEST_SHARE = 0.2
"""Of the time of the plain loop, for 10,000 samples of 4 owners."""
_SAMPLES_AT_LEAST = 20_000


def fusion_loop(
    shape: Annotated[list[str] | None, typer.Option(help="OWNERSxSAMPLES; may be given several times.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Length of an embedding.")] = 32,
    repeats: Repeats = 3,
    json_: JsonFile = None,
) -> None:
    """Core-seconds of training F3's fusion on random embeddings: ours, ours without C++, and a plain PyTorch loop.

    All of them draw a graph for each sample and look at the validation samples, by ten graphs, after every epoch; in
    turn in one process, with one thread. There are five epochs, more of few samples.
    """
    tables, lines, raw = [], [], {}
    for each in shape or SHAPES:
        owners, samples = _shape(each)
        epochs, data = max(5, _SAMPLES_AT_LEAST // samples), random_data(owners, samples, size)
        with pinned_threads(1):
            found = in_turn(candidates(data, epochs), repeats)
        tables.append(timing_table(f"{samples:,} samples of {owners} owners, {epochs} epochs", found, [PLAIN]))
        if each == SHAPES[0]:
            share = ratio(found, OURS, PLAIN, "core")
            lines.append(target_line("core-seconds to the plain loop's, 4 owners", share, LARGEST_SHARE))
        raw[each] = found
    print_report(tables, lines, "one intra-op thread, one worker")
    write_raw(json_, "fusion-loop", {"shapes": list(raw), "size": size, "repeats": repeats}, raw)


def candidates(data: FusionData, epochs: int) -> dict[str, Callable[[], list[Timing]]]:
    """What is measured: so many epochs of training, each with a look at the validation samples."""
    settings = FusionSettings(device="cpu", workers=1, learning_rates=(0.01,), epochs=epochs, patience=epochs)
    without = settings.model_copy(update={"compile": False})
    return {
        OURS: warmed(lambda: training.fit(settings, data, 0)),
        WITHOUT: warmed(lambda: training.fit(without, data, 0)),
        PLAIN: warmed(lambda: plain_fit(settings, data)),
    }


class PlainFusion(nn.Module):
    """The network as one writes it down from the paper (eqs. 7 to 9), a batched graph for each sample."""

    def __init__(self, owners: int, size: int, hidden: int, classes: int, temperature: float) -> None:
        super().__init__()
        self.alignment = nn.Parameter(torch.randn(owners, size, size) / size**0.5)
        self.theta = nn.Parameter(torch.rand(owners * (owners - 1) // 2))
        self.first, self.second = nn.Linear(size, hidden), nn.Linear(hidden, classes)
        self.owners, self.temperature = owners, temperature
        self.rows, self.columns = torch.triu_indices(owners, owners, 1)

    def draw(self, count: int) -> Tensor:
        """Graphs without self loops, ``[count, owners, owners]``."""
        level = torch.distributions.Normal(0.0, 1.0).icdf(self.theta.clamp(1e-4, 1 - 1e-4))
        edges = torch.sigmoid((level - torch.randn(count, len(level))) / self.temperature)
        graphs = torch.zeros(count, self.owners, self.owners)
        graphs[:, self.rows, self.columns] = edges
        return graphs + graphs.mT

    def forward(self, embeddings: Tensor, graphs: Tensor) -> Tensor:
        """Logits ``[samples, classes]`` of embeddings ``[samples, owners, size]``."""
        looped = graphs + torch.eye(self.owners)
        scale = looped.sum(2).rsqrt()
        mixing = looped * scale[:, :, None] * scale[:, None] + torch.eye(self.owners)
        aligned = torch.einsum("oas,bos->boa", self.alignment, embeddings)
        hidden = (mixing @ (aligned @ self.first.weight.T) + self.first.bias).relu()
        return (mixing @ (hidden @ self.second.weight.T) + self.second.bias).mean(1)


def plain_fit(settings: FusionSettings, data: FusionData) -> list[float]:
    """Train a :class:`PlainFusion` on samples that all owners have; the validation losses of the epochs."""
    embeddings, _, labels = data.of_split("train")
    tested, _, wanted = data.of_split("validation")
    torch.manual_seed(0)
    module = PlainFusion(len(data.sizes), int(data.sizes.max()), settings.hidden, data.classes, settings.temperature)
    optimizer = torch.optim.Adam(module.parameters(), settings.learning_rates[0])
    loss_function, losses = nn.CrossEntropyLoss(), []
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(labels)).split(settings.batch_size):
            optimizer.zero_grad()
            loss = loss_function(module(embeddings[rows], module.draw(len(rows))), labels[rows])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            told = [module(tested, module.draw(1)).softmax(1) for _ in range(settings.draws)]
            losses.append(float(nn.functional.nll_loss(torch.stack(told).mean(0).log(), wanted)))
    return losses


def _shape(text: str) -> tuple[int, int]:
    owners, _, samples = text.partition("x")
    if not (owners.isdigit() and samples.isdigit() and int(owners) and int(samples) >= 20):
        raise ExperimentError(f"--shape is OWNERSxSAMPLES, such as {SHAPES[0]}, of 20 samples at least; got '{text}'")
    return int(owners), int(samples)
