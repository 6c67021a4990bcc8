"""The ServerApp: FedAvg over all nodes, with the time of every round."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import Net

app = ServerApp()


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round begins and ends, in seconds since the epoch."""

    times: dict[int, dict[str, float]]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A round begins before its messages are made."""
        if server_round == 1:
            self.times = {}
        self.times[server_round] = {"began": time.time()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """A round ends when its replies are averaged."""
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        answered = sum(not reply.has_error() for reply in replies)
        self.times[server_round] |= {"ended": time.time(), "replies": answered}
        return result


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg and write the times of the rounds where the run config says."""
    config = context.run_config
    initial = ArrayRecord(Net(int(config["hidden"])).state_dict())
    strategy = TimedFedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=int(config["num-server-rounds"]))
    if config["times"]:
        losses = {number: metrics["train_loss"] for number, metrics in result.train_metrics_clientapp.items()}
        report = {"rounds": strategy.times, "train_loss": losses}
        Path(str(config["times"])).write_text(json.dumps(report))
