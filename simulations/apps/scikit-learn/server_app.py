"""The ServerApp: federated averaging."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from task import FEATURES

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    start = ArrayRecord({"coef": Array(np.zeros((1, FEATURES))), "intercept": Array(np.zeros(1))})
    return FedAvg().start(grid, initial_arrays=start, num_rounds=context.run_config["num-server-rounds"])
