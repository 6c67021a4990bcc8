"""The model, the data of one sensor, and the training loop."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

INPUT_STEPS = 12
OUTPUT_STEPS = 12
TRAIN_SHARE = 0.7


class Net(nn.Module):
    """A GRU over twelve readings, and a linear layer that forecasts the next twelve from its last state."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, OUTPUT_STEPS)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, 12, 1]`` -> ``[batch, 12]``."""
        states, _ = self.recurrent(x)
        return self.head(states[:, -1])


@cache
def load_speeds(data_dir: str) -> Tensor:
    """The week of METR-LA, ``[time, sensors]`` in mph; read once per process."""
    folder = Path(data_dir or os.environ["FEDGRAPH_DATA"])
    return torch.from_numpy(np.load(folder / "metr-la" / "metr_la_week1_207.npz")["speed"])


@cache
def load_data(partition_id: int, data_dir: str) -> tuple[Tensor, Tensor]:
    """Training windows of one sensor as z-scores: inputs ``[windows, 12, 1]``, targets ``[windows, 12]``."""
    series = load_speeds(data_dir)[:, partition_id]
    series = series[: int(len(series) * TRAIN_SHARE)]
    series = (series - series.mean()) / series.std(correction=0)
    windows = series.unfold(0, INPUT_STEPS + OUTPUT_STEPS, 1)
    return windows[:, :INPUT_STEPS, None].contiguous(), windows[:, INPUT_STEPS:].contiguous()


def batches(num_examples: int, batch_size: int, num_steps: int) -> list[Tensor]:
    """Indices of ``num_steps`` minibatches, shuffled anew whenever the examples are used up."""
    chosen: list[Tensor] = []
    while len(chosen) < num_steps:
        chosen.extend(torch.randperm(num_examples).split(batch_size))
    return chosen[:num_steps]


def train(
    net: nn.Module,
    data: tuple[Tensor, Tensor],
    steps: list[Tensor],
    learning_rate: float,
    momentum: float,
    clip_norm: float,
) -> float:
    """Train on one minibatch per step; returns the mean of their losses."""
    inputs, targets = data
    criterion = nn.L1Loss()
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=momentum)
    net.train()
    running_loss = 0.0
    for indices in steps:
        optimizer.zero_grad()
        loss = criterion(net(inputs[indices]), targets[indices])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()
        running_loss += loss.item()
    return running_loss / max(len(steps), 1)
