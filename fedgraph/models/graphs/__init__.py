"""Models of graphs: predictions for their nodes, or for whole graphs.

A minibatch refers to its examples by number, and a :class:`GraphTable` has their graphs: a module receives whole graphs
in the format of PyTorch Geometric, ``x``, ``edge_index`` and optionally ``edge_weight`` and ``batch``.

    >>> import torch
    >>> from fedgraph.models.graphs import GraphTable
    >>> triangle = torch.tensor([[0, 1, 2], [1, 2, 0]])
    >>> table = GraphTable.of([(torch.ones(3, 4), triangle, None), (torch.zeros(3, 4), triangle, None)], "graph")
    >>> found = table.around(torch.tensor([[2]]))
    >>> found.x.shape, found.edge_index.tolist()
    (torch.Size([3, 4]), [[0, 1, 2], [1, 2, 0]])
"""

from fedgraph.models.graphs.table import Graph, GraphTable, Level, Surroundings

__all__ = ["Graph", "GraphTable", "Level", "Surroundings"]
