"""Fully connected layers, their loss and its gradient as one call into C++, for float32 on a CPU.

Clients are computed one after the other, so that a client's activations stay in a core's cache, and without Python's
global lock. Matrix products are PyTorch's own; they write the gradient directly into the matrix of all parameters.
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
        *((name, ctypes.c_int64) for name in ("clients", "batch", "layers")),
        *((name, ctypes.c_void_p) for name in ("sizes", "models")),
        ("model_step", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("input_step", "loss")),
        *((name, ctypes.c_void_p) for name in ("targets", "weights", "activations", "gradients", "sums", "gradient")),
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
    classes = loss == "cross-entropy"
    kinds = (models, batch.inputs, batch.weights) if classes else (models, *batch)
    suits = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in kinds)
    compiled = library() if suits and batch.inputs.numel() else None
    if compiled is None:
        return None
    clients, examples = batch.inputs.shape[:2]
    inputs = batch.inputs.flatten(2)
    parameters = sum((before + 1) * size for before, size in pairwise(sizes))
    wanted = (clients, examples) if classes else (clients, examples, sizes[-1])
    targets, weights = batch.targets.reshape(wanted).contiguous(), batch.weights.reshape(wanted).contiguous()
    # C++ sees addresses only.
    if (
        models.shape != (clients, parameters)
        or inputs.shape[2] != sizes[0]
        or (classes and targets.dtype != torch.int64)
    ):
        raise ValueError(f"inputs {tuple(inputs.shape)} and models {tuple(models.shape)} do not fit layers of {sizes}")
    models, inputs = _whole_rows(models), _whole_rows(inputs)
    sums, gradient = torch.empty(2, clients), torch.empty(clients, parameters)
    activations, gradients = torch.empty(examples * sum(sizes[1:])), torch.empty(2 * examples * max(sizes[1:]))
    layers = (ctypes.c_int64 * len(sizes))(*sizes)
    structure = _Perceptron(
        clients=clients,
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
        gradients=gradients.data_ptr(),
        sums=sums.data_ptr(),
        gradient=gradient.data_ptr(),
        parameters=parameters,
    )
    if compiled.perceptron_gradient(ctypes.byref(structure)):
        raise IndexError(f"a target is not one of the classes 0 to {sizes[-1] - 1}")
    return sums, gradient


def _whole_rows(tensor: Tensor) -> Tensor:
    """Make each client's part of ``tensor`` ``[clients, ...]`` contiguous."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()
