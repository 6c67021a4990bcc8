"""Graphs at clients: classes of nodes, or of whole graphs (``[data] set = "graphs"``, and classes of your own).

>>> import torch
>>> from pathlib import Path
>>> from fedgraph.data.graphs import GraphDataSet, GraphOptions
>>> class Rings(GraphDataSet[GraphOptions]):
...     def client_names(self):
...         return ["mercy", "county"]
...     def graphs(self, client):
...         node = torch.arange(10)
...         return {"x": torch.ones(10, 3), "edge_index": torch.stack([node, node.roll(1)]), "y": node % 2}
>>> data = Rings(GraphOptions(), Path(".")).load(["mercy", "county"])
>>> data.splits["train"].num_examples.tolist(), data.task.input_shape
([7, 7], (3,))
"""

from fedgraph.data.graphs.data_set import GraphDataSet, GraphOptions
from fedgraph.data.graphs.files import are_graphs, save_graphs

__all__ = ["GraphDataSet", "GraphOptions", "are_graphs", "save_graphs"]
