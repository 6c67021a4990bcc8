"""Embeddings and predictions of many owners' models of one architecture at once."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.fusion.owner_models.base import BATCH, Represented
from fedgraph.models import StackedModel, TaskSpec
from fedgraph.support.threads import available_cores, side_by_side
from fedgraph.training import working_set


def represent(
    model: StackedModel, parameters: Tensor, inputs: Tensor, batch_size: int = BATCH, workers: int | None = None
) -> Represented:
    """What classifiers ``parameters`` ``[clients, parameters]`` say of their ``inputs``.

    ``inputs`` is ``[clients, samples, *input_shape]``; the results have the same two leading axes and lie on the CPU.
    Computed on the device of ``parameters``, ``batch_size`` samples of as many clients at a time as there is room for,
    so that what is needed beside the results stays small. ``workers`` blocks of clients are computed side by side; None
    takes the cores that there are. What a client gets does not depend on the others.
    """
    device = parameters.device
    room = working_set(model, TaskSpec("classification", tuple(inputs.shape[2:]), ()))
    size = room.clients_per_block(batch_size, device)

    def compute(start: int) -> Represented:
        block = slice(start, start + size)
        state = model.layout.unflatten(parameters[block].detach().float())
        parts = []
        with torch.no_grad():
            for some in inputs[block].split(batch_size, dim=1):
                embeddings, outputs = model.represent(state, some.to(device))
                parts.append((embeddings.float().cpu(), torch.softmax(outputs.float(), dim=2).cpu()))
        return Represented(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    at_once = (workers or available_cores()) if device.type == "cpu" else 1
    blocks = side_by_side(compute, range(0, len(parameters), size), at_once, threads=1)
    return Represented(*(torch.cat(part) for part in zip(*blocks, strict=True)))
