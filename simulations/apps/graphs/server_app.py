"""The ServerApp: structured federated learning (SFL)."""

from itertools import combinations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from task import GraphNet, group_of

from fedgraph import ClientGraph
from fedgraph.strategies import SFL

app = ServerApp()


def client_graph(clients: int) -> ClientGraph:
    """Join the clients whose graphs have the same digits."""
    pairs = combinations(range(clients), 2)
    return ClientGraph.from_edges([(a, b) for a, b in pairs if group_of(a) == group_of(b)], range(clients))


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    torch.manual_seed(0)
    start = ArrayRecord(GraphNet(context.run_config["hidden"]).state_dict())
    return SFL(client_graph(context.run_config["num-clients"]), hops=1).start(
        grid, initial_arrays=start, num_rounds=context.run_config["num-server-rounds"]
    )
