"""The ServerApp: structured federated learning (SFL)."""

from itertools import pairwise

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from task import COLUMNS

from fedgraph import ClientGraph
from fedgraph.strategies import SFL

app = ServerApp()


def client_graph(bands: int) -> ClientGraph:
    """Join each age band and the next older one."""
    return ClientGraph.from_edges(pairwise(range(bands)), range(bands))


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    start = ArrayRecord({"weights": Array(np.zeros(len(COLUMNS) + 1))})
    return SFL(client_graph(context.run_config["num-clients"]), hops=1).start(
        grid, initial_arrays=start, num_rounds=context.run_config["num-server-rounds"]
    )
