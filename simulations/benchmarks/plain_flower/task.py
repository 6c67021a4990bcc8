"""The model, the data of one sensor, and the training loop."""

import os
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, islice, repeat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

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


def load_data(partition_id: int, batch_size: int, data_dir: str) -> DataLoader[tuple[Tensor, ...]]:
    """Shuffled minibatches of one sensor's training windows as z-scores: inputs ``[batch, 12, 1]``, targets
    ``[batch, 12]``.
    """
    series = load_speeds(data_dir)[:, partition_id]
    series = series[: int(len(series) * TRAIN_SHARE)]
    series = (series - series.mean()) / series.std(correction=0)
    windows = series.unfold(0, INPUT_STEPS + OUTPUT_STEPS, 1)
    dataset = TensorDataset(windows[:, :INPUT_STEPS, None].contiguous(), windows[:, INPUT_STEPS:].contiguous())
    return DataLoader(dataset, batch_size=batch_size, shuffle=True)


def train(
    net: nn.Module,
    trainloader: Iterable[Sequence[Tensor]],
    local_steps: int,
    learning_rate: float,
    momentum: float,
    clip_norm: float,
    device: torch.device,
    optimizer_name: str = "sgd",
) -> float:
    """Train on so many minibatches, as many epochs as that takes; returns the mean of their losses."""
    net.to(device)
    criterion = nn.L1Loss().to(device)
    optimizer: torch.optim.Optimizer
    if optimizer_name == "adam":
        optimizer = torch.optim.Adam(net.parameters(), lr=learning_rate)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=momentum)
    net.train()
    running_loss = 0.0
    epochs = chain.from_iterable(repeat(trainloader))
    for inputs, targets in islice(epochs, local_steps):
        optimizer.zero_grad()
        loss = criterion(net(inputs.to(device)), targets.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()
        running_loss += loss.item()
    return running_loss / max(local_steps, 1)
