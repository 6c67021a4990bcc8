"""The ClientApp: every node is one client of the task."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Task, build
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()


@cache
def task_of(path: str) -> Task:
    """Read the task, once per process."""
    return Task.read(path)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received model for an epoch and send it back."""
    task = task_of(str(context.run_config["task"]))
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    model = build(task.model)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    model.to(device)
    client = int(context.node_config["partition-id"])
    loader = DataLoader(TensorDataset(task.inputs[client], task.targets[client]), batch_size=task.batch_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.learning_rate)
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device)).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(task.targets[client])})
    return Message(content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)
