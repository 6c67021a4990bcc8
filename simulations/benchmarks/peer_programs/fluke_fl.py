"""FedAvg in fluke (Polato 2024), in one process, as its documentation writes it."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
import torchmetrics  # noqa: F401  before torchvision seems to be there
from task import Clock, Task, tell


class Unused(ModuleType):
    """In place of torchvision, which fluke imports for data sets and networks that are not used here."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


for name in ("torchvision", "torchvision.models", "torchvision.transforms", "torchvision.datasets"):
    sys.modules[name] = Unused(name)

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402

torch.set_num_threads(1)
task = Task.read(sys.argv[1])
FlukeENV().set_seed(0)
FlukeENV().set_device("cpu")
FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)


class Ticking:
    """Notes the end of each round."""

    def __init__(self) -> None:
        self.clock = Clock()

    def end_round(self, round: int) -> None:
        """Called by fluke."""
        self.clock.tick()

    def __getattr__(self, event: str):
        return lambda *args, **kwargs: None


clients = len(task.inputs)
loaders = [
    FastDataLoader(inputs, targets, num_labels=10, batch_size=task.batch_size)
    for inputs, targets in zip(task.inputs, task.targets, strict=True)
]
splitter = DataSplitter(
    DummyDataContainer(loaders, [None] * clients, loaders[0], 10), distribution="iid", client_split=0.0
)
algorithm = FedAVG(
    clients,
    splitter,
    DDict(
        client={
            "batch_size": task.batch_size,
            "local_epochs": 1,
            "loss": "CrossEntropyLoss",
            "optimizer": {"name": "SGD", "lr": task.learning_rate},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
        },
        server={"weighted": True},
        model=task.start(),
    ),
)
ticking = Ticking()
algorithm.attach(ticking)
algorithm.run(task.rounds, 1.0)
tell(ticking.clock.rounds, task.loss(algorithm.server.model))
