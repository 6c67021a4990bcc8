"""Model and data: every client has a graph of images, an edge between two that look alike; few of them have a label."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import from_scipy_sparse_matrix

GROUPS = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9))
"""The digits in the graphs of each group of clients."""
NEIGHBOURS = 4
LABELLED = 0.3


class GraphNet(nn.Module):
    """Two graph convolutions (Kipf and Welling, ICLR 2017)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = GCNConv(64, hidden)
        self.second = GCNConv(hidden, 10)

    def forward(self, data: Data) -> Tensor:
        """Return logits ``[nodes, 10]``."""
        return self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return images ``[images, 64]`` and labels."""
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def group_of(partition: int) -> int:
    """Return the group of a client."""
    return partition % len(GROUPS)


@cache
def load_graph(partition: int, num_partitions: int) -> Data:
    """Return the graph of a client, with ``train_mask`` and ``test_mask``."""
    images, labels = digits()
    in_group = torch.isin(labels, torch.tensor(GROUPS[group_of(partition)]))
    own = torch.nonzero(in_group).flatten()[partition // len(GROUPS) :: -(-num_partitions // len(GROUPS))]
    x = images[own]
    edges, _ = from_scipy_sparse_matrix(kneighbors_graph(x.numpy(), min(NEIGHBOURS, len(own) - 1)))
    chosen = torch.rand(len(own), generator=torch.Generator().manual_seed(partition)).argsort()
    train_mask = torch.zeros(len(own), dtype=torch.bool)
    train_mask[chosen[: max(1, round(LABELLED * len(own)))]] = True
    return Data(x=x, edge_index=edges, y=labels[own], train_mask=train_mask, test_mask=~train_mask)


def train(model: GraphNet, data: Data, epochs: int, learning_rate: float) -> float:
    """Train a model in place on the nodes with a label; return the last loss."""
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(model: GraphNet, data: Data) -> float:
    """Return the share of the other nodes that a model classifies correctly."""
    right = model(data).argmax(1) == data.y
    return right[data.test_mask].float().mean().item()
