"""The ServerApp: FedAvg over all nodes, with the time at which each round begins and ends."""

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import Task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg and write times and loss where the run config says."""
    task = Task.read(str(context.run_config["task"]))
    times: list[float] = []

    def noted(server_round: int, arrays: ArrayRecord) -> None:
        times.append(time.time())

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=len(task.inputs))
    initial = ArrayRecord(task.start().state_dict())
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=task.rounds, evaluate_fn=noted)
    model = task.start()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    Path(str(context.run_config["times"])).write_text(json.dumps({"times": times, "loss": task.loss(model)}))
