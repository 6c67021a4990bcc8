"""The ServerApp: structured federated learning (SFL)."""

from itertools import combinations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from task import Net, group_of

from fedgraph import ClientGraph
from fedgraph.strategies import SFL

app = ServerApp()


def client_graph(clients: int) -> ClientGraph:
    """Join the clients that see the same digits."""
    pairs = combinations(range(clients), 2)
    return ClientGraph.from_edges([(a, b) for a, b in pairs if group_of(a) == group_of(b)], range(clients))


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    torch.manual_seed(0)
    return SFL(client_graph(context.run_config["num-clients"]), hops=1).start(
        grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
    )
