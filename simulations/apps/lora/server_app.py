"""The ServerApp: federated averaging of the adapters alone."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from task import adapted, adapters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    return FedAvg().start(
        grid,
        initial_arrays=ArrayRecord(adapters(adapted(context.run_config["rank"]))),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
    )
