"""A Flower app as people write them: linear regression in NumPy, averaged by FedAvg."""

import pytest

CONFIG = """
num-server-rounds = 3
lr = 0.1
name = "plain"
noisy = false
wait-for = 2
out = ""

[tool.flwr.app.config.model]
width = 4
"""

TASK = """
import numpy as np

DONE = []


def data(partition):
    random = np.random.default_rng(partition)
    x = random.normal(size=(20 + partition, 4))
    return x, x @ np.arange(4.0) + random.normal(size=len(x))


def step(w, partition, lr):
    x, y = data(partition)
    DONE.append(partition)
    return w - lr * x.T @ (x @ w - y) / len(x), len(x)
"""

CLIENT = """
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from task import step

app = ClientApp()


@app.train()
def train(message, context):
    partition = context.node_config["partition-id"]
    w, count = step(message.content["arrays"]["w"].numpy(), partition, message.content["config"]["lr"])
    metrics = MetricRecord({"num-examples": count, "partition": partition})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics}), reply_to=message)
"""

SERVER = """
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class InOrder(FedAvg):
    # On Ray replies come as they are ready.
    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, sorted(replies, key=lambda m: m.content["metrics"]["partition"]))


@app.main()
def main(grid, context):
    config = context.run_config
    result = InOrder(fraction_evaluate=0.0, min_train_nodes=config["wait-for"]).start(
        grid,
        ArrayRecord({"w": Array(np.zeros(config["model.width"]))}),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["lr"]}),
    )
    w = result.arrays["w"].numpy()
    if config["out"]:
        Path(config["out"]).write_text(w.tobytes().hex())
    return w
"""


@pytest.fixture
def write_app(tmp_path, write_flower_app):
    """``write_app("name", client_app="...")``: the folder of an app, with other text in place of its own."""

    def write(name="app", pyproject=None, **texts):
        texts = {"task": TASK, "client_app": CLIENT, "server_app": SERVER, **texts}
        files = {f"{file}.py": text for file, text in texts.items() if text is not None}
        return write_flower_app(
            tmp_path / name, {**files, **({"pyproject.toml": pyproject} if pyproject else {})}, CONFIG
        )

    return write
