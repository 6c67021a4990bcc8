"""A graph network over the hidden states of all owners.

Battaglia et al.: Relational inductive biases, deep learning, and graph networks (2018), algorithm 1, as in Meng,
Rambhatla, Liu: Cross-Node Federated Graph Neural Network for Spatio-Temporal Data Modeling (KDD 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedgraph.graph import ClientGraph


class GraphNetwork(nn.Module):
    """Layers that update edges, then owners, then the features that all owners share; a linear layer reads owners out.

    Every update is a perceptron with one hidden layer. Each layer sees the outputs of all earlier ones. Edges that end
    at an owner, and owners, are averaged over those whose owner has the window. The read-out starts at 0. Without a
    graph nothing is passed on: an owner's embedding depends on its own state alone.

    Parameters
    ----------
    size : int
        Length of a hidden state, and of the embedding that is made of it.
    hidden, layers : int
        Width of hidden layers and of updates, and how many layers there are.
    graph : ClientGraph or None
        Who listens to whom; its weights are the first features of edges.
    """

    listeners: Tensor
    senders: Tensor
    weights: Tensor

    def __init__(self, size: int, hidden: int, layers: int, graph: ClientGraph | None) -> None:
        super().__init__()
        edges, weights = torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0)
        if graph is not None:
            others = graph.without_self_loops()
            edges, weights = others.edge_index, others.weights
        for name, value in (("listeners", edges[0]), ("senders", edges[1]), ("weights", weights)):
            self.register_buffer(name, value, persistent=False)
        self.of_edges, self.of_owners, self.of_all = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        owner, edge, common = size, 1, 0
        for layer in range(layers):
            self.of_edges.append(_Update(hidden, edge, owner, owner, common))
            self.of_owners.append(_Update(hidden, hidden, owner, common))
            if graph is not None and layer < layers - 1:
                self.of_all.append(_Update(hidden, hidden, hidden, common))
                common += hidden
            edge, owner = edge + hidden, owner + hidden
        self.read_out = nn.Linear(owner, size)
        nn.init.zeros_(self.read_out.weight)
        nn.init.zeros_(self.read_out.bias)

    def forward(self, states: Tensor, present: Tensor) -> Tensor:
        """Compute embeddings.

        Parameters
        ----------
        states : Tensor
            Float32 ``[owners, windows, size]``.
        present : Tensor
            Bool ``[owners, windows]``: who has the window.

        Returns
        -------
        Tensor
            ``[owners, windows, size]``.
        """
        there = present[..., None].to(states.dtype)
        owners, windows = states * there, states.shape[1]
        edges, common = self.weights[:, None, None].expand(-1, windows, -1), states.new_zeros(windows, 0)
        sent = there[self.senders]
        heard = _summed(sent, self.listeners, len(states)).clamp(min=1)
        count = there.sum(0).clamp(min=1)
        for layer, (of_edges, of_owners) in enumerate(zip(self.of_edges, self.of_owners, strict=True)):
            made = of_edges((edges, None), (owners, self.listeners), (owners, self.senders), (common, None)) * sent
            received = _summed(made, self.listeners, len(states)) / heard
            updated = of_owners((received, None), (owners, None), (common, None)) * there
            if layer < len(self.of_all):
                means = ((received * there).sum(0) / count, None), (updated.sum(0) / count, None)
                common = torch.cat([self.of_all[layer](*means, (common, None)), common], 1)
            edges, owners = torch.cat([made, edges], 2), torch.cat([updated, owners], 2)
        return self.read_out(owners)


class _Update(nn.Module):
    """A perceptron with one hidden layer of several parts of one input, of the given sizes.

    A part comes with the rows of the first axis at which it is needed, or None: as the first layer is linear, it is
    computed once for every row.
    """

    def __init__(self, hidden: int, *sizes: int) -> None:
        super().__init__()
        first = nn.Linear(sum(sizes), hidden)
        self.sizes = sizes
        self.weight, self.bias = first.weight, first.bias
        self.second = nn.Linear(hidden, hidden)

    def forward(self, *parts: tuple[Tensor, Tensor | None]) -> Tensor:
        total: Tensor = self.bias
        for weight, (values, rows) in zip(self.weight.split(self.sizes, 1), parts, strict=True):
            product = nn.functional.linear(values, weight)
            total = total + (product if rows is None else product[rows])
        found: Tensor = self.second(total.relu())
        return found


def _summed(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Add up ``[edges, ...]`` by the row that they belong to, ``[count, ...]``."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, rows, values)
