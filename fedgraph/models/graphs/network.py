"""Graph convolutions of PyTorch Geometric followed by a linear layer."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional


class GraphNetwork(nn.Module):
    """``h <- dropout(relu(conv(h, edges)))`` for each layer, then ``head(h)``; of whole graphs ``head(mean h)``.

    Parameters
    ----------
    in_channels, out_channels : int
        Features of a node, and classes.
    kind : {"gcn", "graphsage", "gin"}
        ``GCNConv`` (Kipf and Welling 2017), ``SAGEConv`` with the mean (Hamilton et al. 2017), or ``GINConv`` with a
        perceptron of two layers (Xu et al. 2019). Only the first uses weights of edges.
    hidden, layers, dropout
        See :class:`fedgraph.models.graphs.model.GraphNetworkSettings`.
    level : {"node", "graph"}
        What is classified.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kind: str = "gcn",
        hidden: int = 32,
        layers: int = 2,
        dropout: float = 0.0,
        level: str = "node",
    ) -> None:
        super().__init__()
        sizes = [in_channels, *[hidden] * layers]
        self.convs = nn.ModuleList(_convolution(kind, *pair) for pair in pairwise(sizes))
        self.head = nn.Linear(hidden, out_channels)
        self.dropout, self.level, self.weighs = dropout, level, kind == "gcn"

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        """Return logits ``[nodes, classes]``, or ``[graphs, classes]``; without ``batch`` of one graph."""
        from torch_geometric.nn import global_mean_pool

        weights = {"edge_weight": edge_weight} if self.weighs else {}
        for layer in self.convs:
            x = functional.dropout(layer(x, edge_index, **weights).relu(), self.dropout, self.training)
        if self.level == "graph":
            x = global_mean_pool(x, batch)
        logits: Tensor = self.head(x)
        return logits


def _convolution(kind: str, width: int, hidden: int) -> nn.Module:
    from torch_geometric.nn import GCNConv, GINConv, SAGEConv

    if kind == "gin":
        return GINConv(nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
    layer: nn.Module = {"gcn": GCNConv, "graphsage": SAGEConv}[kind](width, hidden)
    return layer
