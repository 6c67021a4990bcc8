"""How many clients are computed together: a rule of a model's kind and sizes alone, the same on every grid and machine.

On a CPU a model is computed in one of three ways (core-seconds of a round of FedAvg over 100 clients with 90 images of
28 x 28 pixels, in units of a plain loop over the clients; ``python -m fedgraph.simulations.benchmarks models`` measures
them all):

- **native code**, client after client without Python (``[train] compile``): perceptrons and recurrent models. Plain
  descents of a perceptron are one call for all clients, which gathers minibatches itself and shares them among
  threads: blocks on two threads of Python's, which take turns with its global lock, took twice as long for logistic
  regression. Elsewhere a block has as many clients as have their minibatches gathered at once, since a call costs what
  ten small clients cost.
- **one client after the other** where there are convolutions: a grouped convolution of many clients is the slowest way
  (1.6 of the time of the other with 8 and 16 channels), and channels come last in memory
  (:mod:`fedgraph.models.stacked`). What surrounds them, such as gathering minibatches, is done for a few clients
  at once.
- **stacked** otherwise: all clients of a block in each operation, as many as fit into a usual core's cache.

On a GPU all are stacked, as many as its memory has room for. The exception are modules that draw random numbers by
other means than :mod:`fedgraph.models.hashed_draws` knows: these are computed for one client after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.models import StackedModel, TaskSpec
from fedgraph.support import devices

GATHERED = 1 << 19
"""Number of values of examples that are gathered at once for native code: 2 MiB."""

GATHERED_ON_GPU = 1 << 24
"""The same on a GPU, for all models: 64 MiB."""

_FEW = 8
"""Most clients of a block that are computed sequentially, so that every core has a block."""

_FLOAT = 4
_COPIES = 4
"""Copies of each parameter in training: parameters, gradient, optimiser moments."""

_ROOM = 8 * 2**21
"""Stacked blocks of about eight times a core's own cache (2 MiB) train fastest, by measurement on recurrent and fully
connected models: smaller ones spend their time on starting operations, larger ones on fetching from memory."""

_PORTION = 1 << 24
"""Bytes of the models of which a mean is taken at a time: few enough for their memory to be used again and again."""

_PORTION_OF_GPU = 1 << 30
"""The same on a GPU, which is fast where it has many clients at once."""

_SHARE_OF_GPU = 0.4
"""The rest is for the backward pass, the data and what the allocator cannot use."""


@dataclass(frozen=True)
class WorkingSet:
    """What computing one client touches.

    per_client  : bytes for any minibatch.
    per_example : bytes kept by the forward pass for the backward pass, for each example.
    inputs      : numbers of an example.
    alone       : whether clients are computed sequentially on a CPU.
    """

    per_client: float
    per_example: float
    inputs: int = 1
    sequential: bool = False

    def clients_per_block(self, batch_size: int, device: torch.device, native: bool = False) -> int:
        """Return the number of clients that a block of minibatches of ``batch_size`` has, at least 1.

        ``native`` says that native code goes from client to client.
        """
        if device.type == "cuda":
            room = devices.room(device) * _SHARE_OF_GPU
        elif native:
            return max(1, GATHERED // (batch_size * self.inputs))
        elif self.sequential:
            return max(1, min(_FEW, math.floor(_ROOM / (self.per_client + batch_size * _FLOAT * self.inputs))))
        else:
            room = _ROOM
        return max(1, math.floor(room / (self.per_client + batch_size * self.per_example)))


def working_set(model: StackedModel, task: TaskSpec) -> WorkingSet:
    """Measure the memory of a model on a few examples of zeros."""
    per_client = _COPIES * _FLOAT * model.layout.num_parameters
    if task.level:
        # A minibatch of one client is one graph, independent of the number of examples: never several clients.
        return WorkingSet(per_client, math.inf, 1, model.sequential)
    # A module is tried out when it is first called, which keeps other tensors as well.
    _, few, more = (_saved_bytes(model, task, examples) for examples in (2, 2, 4))
    per_example = (more - few) / 2 + _FLOAT * math.prod(task.input_shape)
    return WorkingSet(per_client, per_example, math.prod(task.input_shape), model.sequential)


def _saved_bytes(model: StackedModel, task: TaskSpec, examples: int) -> int:
    """Return the bytes that one client's forward pass keeps for the backward pass."""
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    state = model.layout.unflatten(torch.zeros(1, model.layout.num_parameters, requires_grad=True))
    inputs = torch.zeros(1, examples, *task.input_shape)
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs, _ = model.forward(state, inputs, training=True)
        return sum(saved.values()) + outputs.numel() * _FLOAT


def portion(parameters: int, device: torch.device) -> int:
    """Return how many models of so many parameters are in memory at a time where only their mean is wanted."""
    return max(1, (_PORTION if device.type == "cpu" else _PORTION_OF_GPU) // (_FLOAT * max(1, parameters)))
