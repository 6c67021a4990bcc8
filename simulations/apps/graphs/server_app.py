"""The ServerApp: federated averaging."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from task import GraphNet

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    torch.manual_seed(0)
    start = ArrayRecord(GraphNet(context.run_config["hidden"]).state_dict())
    return FedAvg().start(grid, initial_arrays=start, num_rounds=context.run_config["num-server-rounds"])
