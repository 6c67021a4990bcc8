"""The task that every program is given: examples of each client, the first model, and how it is trained."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def _convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU())
    )


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_convolution(channels, channels), _convolution(channels, channels))

    def forward(self, values: Tensor) -> Tensor:
        branch: Tensor = self.layers(values)
        return values + branch


class _Scaled(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 0.2 * values


def build(name: str) -> nn.Module:
    """Build a model.

    ``mlp`` is a perceptron 784-200-10 and ``cnn`` two 3x3 convolutions of 8 and 16 channels with pooling, on images
    ``[1, 28, 28]``; ``resnet9`` has 64 channels at first, on images ``[3, 32, 32]``.
    """
    if name == "resnet9":
        return nn.Sequential(
            _convolution(3, 64),
            *(_convolution(64, 128), nn.MaxPool2d(2), _Residual(128)),
            *(_convolution(128, 256), nn.MaxPool2d(2), _Residual(256)),
            *(_convolution(256, 256), nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
            *(nn.Linear(256, 10, bias=False), _Scaled()),
        )
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 49, 10)),
    )


@dataclass(frozen=True)
class Task:
    """Inputs ``[clients, examples, channels, height, width]``, in the order in which an epoch takes them; classes."""

    model: str
    inputs: Tensor
    targets: Tensor
    state: dict[str, Tensor]
    batch_size: int
    learning_rate: float
    rounds: int

    @classmethod
    def read(cls, path: str) -> Task:
        """Read what :meth:`write` wrote."""
        stored = np.load(path)
        settings = json.loads(str(stored["settings"]))
        names = settings.pop("names")
        state = {name: torch.from_numpy(stored[f"state/{name}"]) for name in names}
        return cls(
            inputs=torch.from_numpy(stored["inputs"]),
            targets=torch.from_numpy(stored["targets"]),
            state=state,
            **settings,
        )

    def write(self, path: Path) -> None:
        """Write the task as one file of NumPy arrays."""
        settings = {
            "model": self.model,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "rounds": self.rounds,
            "names": list(self.state),
        }
        arrays = {f"state/{name}": value.numpy() for name, value in self.state.items()}
        arrays |= {"inputs": self.inputs.numpy(), "targets": self.targets.numpy()}
        np.savez(path, allow_pickle=False, settings=np.array(json.dumps(settings)), **arrays)

    def start(self) -> nn.Module:
        """Return the first model."""
        model = build(self.model)
        model.load_state_dict(self.state)
        return model

    def loss(self, model: nn.Module) -> float:
        """Return the mean cross-entropy over all examples of all clients."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.eval().to(device)
        with torch.no_grad():
            outputs = torch.cat([model(some.to(device)).cpu() for some in self.inputs])
            return float(nn.functional.cross_entropy(outputs, self.targets.flatten()))


class Clock:
    """Seconds and core-seconds of every round of this process."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float]] = []
        self._began = time.perf_counter(), time.process_time()

    def tick(self) -> None:
        """A round is over."""
        now = time.perf_counter(), time.process_time()
        self.rounds.append((now[0] - self._began[0], now[1] - self._began[1]))
        self._began = now


def tell(rounds: list[tuple[float, float]], loss: float) -> None:
    """Print what was measured as the last line of output."""
    print(json.dumps({"rounds": rounds, "loss": loss}), flush=True)
