"""The ServerApp: federated averaging."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    torch.manual_seed(0)
    return FedAvg().start(
        grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
    )
