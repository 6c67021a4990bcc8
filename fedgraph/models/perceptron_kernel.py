"""Fully connected layers, their loss, and its gradient or steps down it, as one call into C++, for float32 on a CPU.

Clients are computed sequentially, so that a client's activations stay in a core's cache, and without Python's
global lock. Matrix products are PyTorch's own; they write the gradient directly into the matrix of
all parameters, or a step of descent into the models, so that a descent needs no gradient in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedgraph.models.base import Batch, BatchRows
from fedgraph.models.native import loader as native
from fedgraph.models.native.perceptron_source import SOURCE
from fedgraph.support.threads import side_by_side

_LOSSES = {"cross-entropy": 0, "mae": 1, "mse": 2, "huber": 3}

_WORTH_A_THREAD = 5 * 10**7
"""Products of a weight and an example, a millisecond and a half, for which another thread is worth its start."""


class _Perceptron(ctypes.Structure):
    """``Perceptron`` of the C++ source, which explains the fields."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("clients", "steps", "batch", "layers")),
        *((name, ctypes.c_void_p) for name in ("sizes", "models")),
        ("model_step", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "inputs")),
        *((name, ctypes.c_int64) for name in ("input_step", "bytes")),
        *((name, ctypes.c_void_p) for name in ("scale", "shift", "gathered")),
        ("loss", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("targets", "weights", "activations", "slopes", "sums")),
        *((name, ctypes.c_void_p) for name in ("gradient", "rates")),
        ("decay", ctypes.c_float),
        ("parameters", ctypes.c_int64),
    )


library = native.OnFirstUse("perceptron", SOURCE, "the training of fully connected layers")
"""``library()``: the compiled training; None if it cannot be compiled."""


def loss_gradient(sizes: Sequence[int], loss: str, models: Tensor, batch: Batch) -> tuple[Tensor, Tensor] | None:
    """Compute sums of weighted losses and of weights ``[2, clients]``, and the gradient of each client's mean loss.

    The gradient is 0 for a client without any weight. Returns None for tensors that the C++ code does not support.
    Raises IndexError when a target that counts is a class without an output.

    Parameters
    ----------
    sizes : of the inputs and of every layer's outputs; between layers there is ReLU.
    loss : a key of :data:`fedgraph.training.metrics.LOSSES`.
    models : ``[clients, parameters]``, layer by layer weight ``[size, inputs of the layer]`` and bias ``[size]``; the
        gradient has the same shape.
    batch : a minibatch of every client.
    """
    gradient = torch.empty(models.shape)
    sums = _computed(sizes, loss, _whole_rows(models), Batch(*(each.unsqueeze(1) for each in batch)), gradient=gradient)
    return None if sums is None else (sums.float(), gradient)


def descend(
    sizes: Sequence[int],
    loss: str,
    models: Tensor,
    steps: Batch | BatchRows,
    rates: Tensor,
    decay: float,
    workers: int = 1,
) -> Tensor | None:
    """Take steps of gradient descent in place: w <- (1 - rate decay) w - rate dL/dw, sequentially.

    Returns sums of weighted losses and of weights of all steps, float64 ``[2, clients]``; None, and nothing is changed,
    for tensors that the C++ code does not support. Other arguments and errors as of :func:`loss_gradient`.

    Parameters
    ----------
    steps : minibatches ``[clients, steps, batch, ...]``; of those by rows, one without examples is skipped.
    rates : learning rates, float32 ``[clients, steps]``.
    workers : threads that share the clients.
    """
    if not models[0].is_contiguous():
        return None
    return _computed(sizes, loss, models, steps, rates=rates.contiguous(), decay=decay, workers=workers)


def _computed(
    sizes: Sequence[int],
    loss: str,
    models: Tensor,
    steps: Batch | BatchRows,
    gradient: Tensor | None = None,
    rates: Tensor | None = None,
    decay: float = 0.0,
    workers: int = 1,
) -> Tensor | None:
    """Compute the gradient of one step, or go down it step after step; return the sums, float64 ``[2, clients]``."""
    classes = loss == "cross-entropy"
    compiled = library() if _suits(models, steps, classes) else None
    if compiled is None:
        return None
    # C++ sees addresses only.
    clients, count, examples = (steps.inputs if isinstance(steps, Batch) else steps.rows).shape[:3]
    parameters = sum((before + 1) * size for before, size in pairwise(sizes))
    if models.shape != (clients, parameters) or (rates is not None and rates.shape != (clients, count)):
        raise ValueError(f"{clients} minibatches and models {tuple(models.shape)} do not fit layers of {sizes}")
    own, shared = _in_order(steps, sizes, classes) if isinstance(steps, Batch) else _by_rows(steps, sizes, classes)
    sums = torch.zeros(clients, 2, dtype=torch.float64)
    inputs = own["inputs"] if "inputs" in own else shared["inputs"]
    own |= {"models": models, "sums": sums}
    own |= {name: each for name, each in (("gradient", gradient), ("rates", rates)) if each is not None}
    layers = (ctypes.c_int64 * len(sizes))(*sizes)
    numbers = {"steps": count, "batch": examples, "layers": len(sizes) - 1, "sizes": ctypes.addressof(layers)}
    numbers |= {"loss": _LOSSES[loss], "parameters": parameters, "model_step": models.stride(0)}
    numbers |= {"input_step": inputs.stride(0), "bytes": inputs.dtype == torch.uint8}

    def compute(chosen: slice) -> int:
        room = {
            "activations": torch.empty(examples * sum(sizes[1:])),
            "slopes": torch.empty(2 * examples * max(sizes[1:])),
            "gathered": torch.empty(0 if isinstance(steps, Batch) else examples * sizes[0]),
        }
        tensors = {name: each[chosen] for name, each in own.items()} | shared | room
        places = {name: each.data_ptr() for name, each in tensors.items()}
        structure = _Perceptron(clients=chosen.stop - chosen.start, decay=decay, **numbers, **places)
        failed: int = compiled.perceptron(ctypes.byref(structure))
        return failed

    if any(side_by_side(compute, _shares(clients, clients * count * examples * parameters, workers), workers, 1)):
        raise IndexError(f"a target is not one of the classes 0 to {sizes[-1] - 1}")
    return sums.t()


def _shares(clients: int, products: int, workers: int) -> list[slice]:
    """Return the clients of each thread, all of one where the work of several would not be worth their start."""
    count = min(workers, clients, max(1, products // _WORTH_A_THREAD))
    return [slice(*pair) for pair in pairwise(clients * share // count for share in range(count + 1))]


def _suits(models: Tensor, steps: Batch | BatchRows, classes: bool) -> bool:
    """Whether the C++ code supports these tensors."""
    numbers = [models] if classes else [models, steps.targets]
    if isinstance(steps, Batch):
        numbers += [steps.inputs, steps.weights]
        present = steps.inputs.numel()
    else:
        numbers += [each for each in (steps.scale, steps.shift) if each is not None]
        if steps.inputs.dtype not in (torch.uint8, torch.float32):
            return False
        present = steps.rows.numel() and steps.inputs.numel()
    on_cpu = all(each.device.type == "cpu" for each in (models, steps.inputs, steps.targets))
    return bool(present) and on_cpu and all(each.dtype == torch.float32 for each in numbers)


def _in_order(steps: Batch, sizes: Sequence[int], classes: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return tensors of clients, and of all, for consecutive minibatches."""
    shape, inputs = steps.inputs.shape[:3], steps.inputs.flatten(3)
    wanted = shape if classes else (*shape, sizes[-1])
    _check(inputs, steps.targets, sizes, classes)
    own = {
        "inputs": _whole_rows(inputs),
        "targets": steps.targets.reshape(wanted).contiguous(),
        "weights": steps.weights.reshape(wanted).contiguous(),
    }
    return own, {}


def _by_rows(steps: BatchRows, sizes: Sequence[int], classes: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return tensors of clients, and of all, for minibatches by rows."""
    inputs, examples = steps.inputs.flatten(1), len(steps.inputs)
    _check(inputs, steps.targets, sizes, classes)
    low, high = (int(each) for each in steps.rows.aminmax())
    if low < -1 or high >= examples or len(steps.targets) != examples:
        raise IndexError(f"rows {low} to {high} of {examples} inputs and {len(steps.targets)} targets")
    shared = {
        "inputs": inputs.contiguous(),
        "targets": steps.targets.contiguous() if classes else steps.targets.reshape(examples, sizes[-1]).contiguous(),
    }
    for name, value in (("scale", steps.scale), ("shift", steps.shift)):
        if value is not None:
            shared[name] = value.expand(steps.inputs.shape[1:]).reshape(-1).contiguous()
    return {"rows": steps.rows.contiguous()}, shared


def _check(inputs: Tensor, targets: Tensor, sizes: Sequence[int], classes: bool) -> None:
    if inputs.shape[-1] != sizes[0] or (classes and targets.dtype != torch.int64):
        raise ValueError(f"inputs {tuple(inputs.shape)} and {targets.dtype} targets do not fit layers of {sizes}")


def _whole_rows(tensor: Tensor) -> Tensor:
    """Make each client's part of ``tensor`` ``[clients, ...]`` contiguous."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()
