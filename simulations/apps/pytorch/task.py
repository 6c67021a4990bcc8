"""Model and data: handwritten digits, of which clients of the same group see the same ones."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

GROUPS = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9))
"""The digits that clients of each group see."""


class Net(nn.Module):
    """A small convolutional network for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``[images, 10]``."""
        return self.head(self.convolutions(images).flatten(1))


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return images ``[images, 1, 8, 8]`` and labels."""
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)


def group_of(partition: int) -> int:
    """Return the group of a client."""
    return partition % len(GROUPS)


def load_data(partition: int, num_partitions: int, batch_size: int, seed: int) -> tuple[DataLoader, DataLoader]:
    """Return batches for training, in an order that ``seed`` decides, and for testing, of a client."""
    images, labels = digits()
    in_group = torch.isin(labels, torch.tensor(GROUPS[group_of(partition)]))
    own = torch.nonzero(in_group).flatten()[partition // len(GROUPS) :: -(-num_partitions // len(GROUPS))]
    cut = len(own) * 4 // 5
    train, test = (TensorDataset(images[part], labels[part]) for part in (own[:cut], own[cut:]))
    order = torch.Generator().manual_seed(seed)
    return DataLoader(train, batch_size, shuffle=True, generator=order), DataLoader(test, batch_size)


def train(model: nn.Module, batches: DataLoader, epochs: int, learning_rate: float) -> float:
    """Train a model in place; return the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.9)
    for _ in range(epochs):
        losses = []
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def accuracy(model: nn.Module, batches: DataLoader) -> float:
    """Return the share of images that a model classifies correctly."""
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in batches)
    return right / len(batches.dataset)
