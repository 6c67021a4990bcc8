"""The ServerApp: structured federated learning (SFL)."""

from itertools import combinations

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from task import FEATURES, region_of

from fedgraph import ClientGraph
from fedgraph.strategies import SFL

app = ServerApp()


def client_graph(clinics: int) -> ClientGraph:
    """Join the clinics of a region."""
    pairs = combinations(range(clinics), 2)
    return ClientGraph.from_edges([(a, b) for a, b in pairs if region_of(a) == region_of(b)], range(clinics))


@app.main()
def main(grid: Grid, context: Context) -> Result:
    """Train with the settings of the run config."""
    start = ArrayRecord({"coef": Array(np.zeros((1, FEATURES))), "intercept": Array(np.zeros(1))})
    return SFL(client_graph(context.run_config["num-clients"]), hops=1).start(
        grid, initial_arrays=start, num_rounds=context.run_config["num-server-rounds"]
    )
