"""The ServerApp: structured federated learning (SFL) of the adapters alone."""

from itertools import combinations

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from task import adapted, adapters, group_of

from fedgraph import ClientGraph
from fedgraph.strategies import SFL

app = ServerApp()


def client_graph(clients: int) -> ClientGraph:
    """Join the clients whose images are turned alike."""
    pairs = combinations(range(clients), 2)
    return ClientGraph.from_edges([(a, b) for a, b in pairs if group_of(a) == group_of(b)], range(clients))


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    return SFL(client_graph(context.run_config["num-clients"]), hops=1).start(
        grid,
        initial_arrays=ArrayRecord(adapters(adapted(context.run_config["rank"]))),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
    )
