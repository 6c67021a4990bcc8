"""FedAvg in pfl-research (Granqvist et al. 2024), in one process, as its tutorials write it."""

from __future__ import annotations

import sys

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import Clock, Task, tell
from torch import nn

torch.set_num_threads(1)
np.random.seed(0)
task = Task.read(sys.argv[1])


class Module(nn.Module):
    """The model, with the loss and the metrics that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.model = task.start()

    def loss(self, inputs, targets, eval=False):
        """Return the mean cross-entropy of a minibatch."""
        self.eval() if eval else self.train()
        return nn.functional.cross_entropy(self.model(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs, targets, eval=False):
        """Return the loss of a user."""
        return {"loss": Weighted(float(self.loss(inputs, targets, eval)) * len(targets), len(targets))}


class Ticking(TrainingProcessCallback):
    """Notes the end of each round."""

    def __init__(self) -> None:
        self.clock = Clock()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Called by pfl."""
        self.clock.tick()
        return False, Metrics()


clients = len(task.inputs)
users = FederatedDataset(
    lambda client: Dataset(raw_data=[task.inputs[client], task.targets[client]], user_id=str(client)),
    get_user_sampler("minimize_reuse", list(range(clients))),
)
module, ticking = Module(), Ticking()
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=task.rounds, evaluation_frequency=10**6, train_cohort_size=clients, val_cohort_size=0
    ),
    SimulatedBackend(training_data=users, val_data=None),
    model,
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=task.learning_rate, local_batch_size=task.batch_size),
    NNEvalHyperParams(local_batch_size=task.batch_size),
    [ticking],
)
tell(ticking.clock.rounds, task.loss(module.model))
