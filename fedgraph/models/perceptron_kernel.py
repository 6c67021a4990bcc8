"""Fully connected layers, their loss, and its gradient or steps down it, as one call into C++, for float32 on a CPU.

Clients are computed one after the other, so that a client's activations stay in a core's cache, and without Python's
global lock. Matrix products are PyTorch's own; they write the gradient directly into the matrix of
all parameters, or a step of descent into the models, so that a descent needs no gradient in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedgraph.models.base import Batch
from fedgraph.models.native import loader as native
from fedgraph.models.native.perceptron_source import SOURCE

_LOSSES = {"cross-entropy": 0, "mae": 1, "mse": 2, "huber": 3}


class _Perceptron(ctypes.Structure):
    """``Perceptron`` of the C++ source, which explains the fields."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("clients", "steps", "batch", "layers")),
        *((name, ctypes.c_void_p) for name in ("sizes", "models")),
        ("model_step", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("input_step", "loss")),
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

    Parameters
    ----------
    sizes : sequence of int
        Of the inputs and of every layer's outputs; between layers there is ReLU.
    loss : str
        A key of :data:`fedgraph.training.metrics.LOSSES`.
    models : Tensor
        ``[clients, parameters]``, layer by layer weight ``[size, inputs of the layer]`` and bias ``[size]``; the
        gradient has the same shape.
    batch : Batch
        A minibatch of every client.

    Raises
    ------
    IndexError
        When a target that counts is a class without an output.
    """
    gradient = torch.empty(models.shape)
    sums = _computed(sizes, loss, _whole_rows(models), Batch(*(each.unsqueeze(1) for each in batch)), gradient=gradient)
    return None if sums is None else (sums.float(), gradient)


def descend(
    sizes: Sequence[int], loss: str, models: Tensor, steps: Batch, rates: Tensor, decay: float
) -> Tensor | None:
    """Take steps of gradient descent in place: w <- (1 - rate decay) w - rate dL/dw, one after the other.

    Returns sums of weighted losses and of weights of all steps, float64 ``[2, clients]``; None, and nothing is changed,
    for tensors that the C++ code does not support. Other arguments and errors as of :func:`loss_gradient`.

    Parameters
    ----------
    models : Tensor
        Whose rows are contiguous.
    steps : Batch
        Minibatches ``[clients, steps, batch, ...]``.
    rates : Tensor
        Learning rates, float32 ``[clients, steps]``.
    decay : float
        Weight decay.
    """
    if not models[0].is_contiguous():
        return None
    return _computed(sizes, loss, models, steps, rates=rates.contiguous(), decay=decay)


def _computed(
    sizes: Sequence[int],
    loss: str,
    models: Tensor,
    steps: Batch,
    gradient: Tensor | None = None,
    rates: Tensor | None = None,
    decay: float = 0.0,
) -> Tensor | None:
    """Compute the gradient of one step, or go down it step after step; return the sums, float64 ``[2, clients]``."""
    classes = loss == "cross-entropy"
    kinds = (models, steps.inputs, steps.weights) if classes else (models, *steps)
    suits = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in kinds)
    compiled = library() if suits and steps.inputs.numel() else None
    if compiled is None:
        return None
    clients, count, examples = steps.inputs.shape[:3]
    inputs = steps.inputs.flatten(3)
    parameters = sum((before + 1) * size for before, size in pairwise(sizes))
    wanted = (clients, count, examples) if classes else (clients, count, examples, sizes[-1])
    targets, weights = steps.targets.reshape(wanted).contiguous(), steps.weights.reshape(wanted).contiguous()
    # C++ sees addresses only.
    if (
        models.shape != (clients, parameters)
        or inputs.shape[3] != sizes[0]
        or (classes and targets.dtype != torch.int64)
        or (rates is not None and rates.shape != (clients, count))
    ):
        raise ValueError(f"inputs {tuple(inputs.shape)} and models {tuple(models.shape)} do not fit layers of {sizes}")
    inputs, sums = _whole_rows(inputs), torch.zeros(2, clients, dtype=torch.float64)
    activations, slopes = torch.empty(examples * sum(sizes[1:])), torch.empty(2 * examples * max(sizes[1:]))
    layers = (ctypes.c_int64 * len(sizes))(*sizes)
    structure = _Perceptron(
        clients=clients,
        steps=count,
        batch=examples,
        layers=len(sizes) - 1,
        sizes=ctypes.addressof(layers),
        models=models.data_ptr(),
        model_step=models.stride(0),
        inputs=inputs.data_ptr(),
        input_step=inputs.stride(0),
        loss=_LOSSES[loss],
        targets=targets.data_ptr(),
        weights=weights.data_ptr(),
        activations=activations.data_ptr(),
        slopes=slopes.data_ptr(),
        sums=sums.data_ptr(),
        gradient=None if gradient is None else gradient.data_ptr(),
        rates=None if rates is None else rates.data_ptr(),
        decay=decay,
        parameters=parameters,
    )
    if compiled.perceptron(ctypes.byref(structure)):
        raise IndexError(f"a target is not one of the classes 0 to {sizes[-1] - 1}")
    return sums


def _whole_rows(tensor: Tensor) -> Tensor:
    """Make each client's part of ``tensor`` ``[clients, ...]`` contiguous."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()
