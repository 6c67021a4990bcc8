"""Model and data: a network trained on upright digits, and clients whose scanners turn them, those of a group alike."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

TURNS = (0, 1, 2)
"""Quarter turns of the images of each group of clients."""
PUBLIC = 800
"""So many images are public: the network was trained on them."""


class LowRank(nn.Module):
    """A frozen linear layer and an adapter of low rank (Hu et al., ICLR 2022): ``W x + B A x``; B begins at 0."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs ``[examples, out_features]``."""
        return self.frozen(inputs) + inputs @ self.down.T @ self.up.T


def adapted(rank: int) -> nn.Sequential:
    """Return the network with adapters of a rank on all of its layers."""
    torch.manual_seed(rank)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    network.load_state_dict(pretrained())
    return nn.Sequential(*(LowRank(layer, rank) if isinstance(layer, nn.Linear) else layer for layer in network))


@cache
def pretrained() -> dict[str, Tensor]:
    """Return the parameters of the network, trained on the public images; everybody has the same."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    images, labels = digits()
    train(network, DataLoader(TensorDataset(images[:PUBLIC].flatten(1), labels[:PUBLIC]), 50), 10, 0.01)
    return network.state_dict()


def adapters(model: nn.Module) -> dict[str, Tensor]:
    """Return the part of a model that is trained and exchanged."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return images ``[images, 8, 8]`` and labels."""
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32) / 16, torch.tensor(data.target)


def group_of(partition: int) -> int:
    """Return the group of a client."""
    return partition % len(TURNS)


def load_data(partition: int, num_partitions: int, batch_size: int, seed: int) -> tuple[DataLoader, DataLoader]:
    """Return batches for training, in an order that ``seed`` decides, and for testing, of a client."""
    images, labels = (part[PUBLIC + partition :: num_partitions] for part in digits())
    images = images.rot90(TURNS[group_of(partition)], (1, 2)).flatten(1)
    cut = len(labels) * 2 // 3
    train, test = TensorDataset(images[:cut], labels[:cut]), TensorDataset(images[cut:], labels[cut:])
    order = torch.Generator().manual_seed(seed)
    return DataLoader(train, batch_size, shuffle=True, generator=order), DataLoader(test, batch_size)


def train(model: nn.Module, batches: DataLoader, epochs: int, learning_rate: float) -> float:
    """Train what is not frozen of a model; return the mean loss of the last epoch."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, learning_rate)
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
