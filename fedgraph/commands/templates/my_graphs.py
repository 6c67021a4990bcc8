"""MyGraphs: people of four towns and whom they meet, made up here; put your own graphs in their place.

    fedgraph run my_graphs.toml
    fedgraph check my_graphs:MyGraphs     # whether it does what every run relies on

What is below runs as it is. Each node makes the class and asks it for the graphs of the clients that the node hosts.
Whatever the class reads lies in ``self.data_dir``, the data folder of the node.
"""

from typing import Any

import torch
from pydantic import Field

from fedgraph.data.graphs import GraphDataSet, GraphOptions
from fedgraph.support.randomness import generator


# The keys of [data] beside ``set``, and beside level, classes, masks, shares and split-seed, which all such sets have.
class MyGraphsSettings(GraphOptions):
    """The table ``[data]``.

    Attributes
    ----------
    people : number of people of each town.
    seed   : of what is made up.
    """

    people: int = Field(default=80, ge=10)
    seed: int = 0


class MyGraphs(GraphDataSet[MyGraphsSettings]):
    """Which of three habits people have, by four traits and by whom they meet."""

    def client_names(self) -> list[str]:
        """Return all clients, in a stable order."""
        return ["east", "north", "south", "west"]

    # The same for every call: a run repeats bit for bit, and a node may ask for some of its clients alone.
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

    # The client graph that comes with the data, if there is one: [graph] source = "data".
    # def given_graph(self): return ClientGraph.from_edges([("east", "north"), ("south", "west")])
