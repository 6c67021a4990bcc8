"""MyGraphs: simulated people of four towns and whom they meet; replace them by your own graphs.

    fedgraph run my_graphs.toml
    fedgraph check my_graphs:MyGraphs     # test it against the contract of data sets

The code below runs as it is. Each node creates the class and loads the graphs of its own clients. Read files from
``self.data_dir``, the data folder of the node.
"""

from typing import Any

import torch
from pydantic import Field

from fedgraph.data.graphs import GraphDataSet, GraphOptions
from fedgraph.support.randomness import generator


# The keys of [data], in addition to those of all graph data sets: set, level, classes, masks, shares and split-seed.
class MyGraphsSettings(GraphOptions):
    """The table ``[data]``.

    Attributes
    ----------
    people : number of people of each town.
    seed   : seed of the simulation.
    """

    people: int = Field(default=80, ge=10)
    seed: int = 0


class MyGraphs(GraphDataSet[MyGraphsSettings]):
    """Which of three habits people have, by four traits and by whom they meet."""

    def client_names(self) -> list[str]:
        """Return all clients, in a stable order."""
        return ["east", "north", "south", "west"]

    # Must be the same on every call: runs are reproducible bit for bit, and a node may load some of its clients.
    def graphs(self, client: str) -> Any:
        """Return a graph, or a list of graphs: a ``torch_geometric.data.Data``, or a dict as here."""
        draws = generator(self.settings.seed, "people", client)
        count = self.settings.people
        habit = torch.randint(3, (count,), generator=draws)
        traits = torch.nn.functional.one_hot(habit, 4) + torch.randn(count, 4, generator=draws)
        alike = habit[:, None] == habit[None]
        meets = (torch.rand(count, count, generator=draws) < torch.where(alike, 0.08, 0.02)).triu(1)
        return {
            "x": traits,  # [nodes, features]
            "edge_index": (meets | meets.T).nonzero().T,  # [2, edges], both directions of each
            "y": habit,  # [nodes], whole numbers from 0; -1 where unknown
            # "edge_weight": [edges]; "train_mask", "val_mask", "test_mask": [nodes], instead of a draw by [data] shares
        }

    # The client graph of the data, if any, for [graph] source = "data".
    # def given_graph(self): return ClientGraph.from_edges([("east", "north"), ("south", "west")])
