"""The number of clients that are computed together: as many as fit into a core's cache, or the memory of a GPU."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.models import StackedModel, TaskSpec

_FLOAT = 4
_COPIES = 4
"""Copies of each parameter in training: parameters, gradient, optimiser moments."""

_CACHES = 8
"""Blocks of about this many times a core's own cache train fastest, by measurement on recurrent, convolutional and
fully connected models: smaller ones spend their time on starting operations, larger ones on fetching from memory."""

_USUAL_CACHE = 2**21
_SHARE_OF_GPU = 0.4
"""The rest is for the backward pass, the data and what the allocator cannot use."""


@dataclass(frozen=True)
class WorkingSet:
    """Bytes that training one client touches.

    per_client  : for any minibatch.
    per_example : kept by the forward pass for the backward pass, for each example.
    """

    per_client: float
    per_example: float

    def clients_per_block(self, batch_size: int, device: torch.device) -> int:
        """Return the number of clients whose minibatches of ``batch_size`` fit together, at least 1."""
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            room = free * _SHARE_OF_GPU
        else:
            room = _CACHES * core_cache()
        return max(1, math.floor(room / (self.per_client + batch_size * self.per_example)))


def working_set(model: StackedModel, task: TaskSpec) -> WorkingSet:
    """Measure the memory of a model on a few examples of zeros.

    Returns
    -------
    WorkingSet
        Bytes that training one client touches.
    """
    few, more = (_saved_bytes(model, task, examples) for examples in (2, 4))
    per_example = (more - few) / 2 + _FLOAT * math.prod(task.input_shape)
    return WorkingSet(_COPIES * _FLOAT * model.layout.num_parameters, per_example)


def core_cache() -> int:
    """Return the bytes of a core's own cache (its second level)."""
    try:
        # 0 or -1 where the system does not know.
        return max(0, os.sysconf("SC_LEVEL2_CACHE_SIZE")) or _USUAL_CACHE
    except (ValueError, OSError):
        return _USUAL_CACHE


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
