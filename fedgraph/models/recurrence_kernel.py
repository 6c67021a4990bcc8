"""The recurrent layer of :mod:`fedgraph.models.recurrence` as one call into C++, for float32 on a CPU.

A whole sequence and its gradient are computed client by client, so that a client's activations stay in a core's cache,
and without Python's global lock, so that threads do not wait for each other. Matrix products are PyTorch's own.
Inside, tensors are laid out ``[clients, steps, batch, rows]``.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedgraph.models import recurrence
from fedgraph.models.native import loader as native
from fedgraph.models.native.recurrence_source import SOURCE
from fedgraph.models.recurrence import Cell, GRUCell, LSTMCell, TanhCell, Weights

_CELLS: dict[type, tuple[int, int]] = {TanhCell: (0, 1), GRUCell: (1, 3), LSTMCell: (2, 4)}
"""Code of a cell in the C++ source, and the number of blocks of hidden size in its product."""

_Strides = ctypes.c_int64 * 2


class _Layer(ctypes.Structure):
    """``Layer`` of the C++ source, which explains the fields."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("cell", "clients", "steps", "batch", "features", "hidden")),
        *((name, ctypes.c_int64) for name in ("gates", "width")),
        *((name, ctypes.c_void_p) for name in ("matrix", "entry_matrix", "inputs")),
        ("input_strides", ctypes.c_int64 * 4),
        ("joint", ctypes.c_void_p),
        ("product", ctypes.c_void_p),
        ("product_strides", _Strides),
        ("entry", ctypes.c_void_p),
        ("entry_strides", _Strides),
        ("memory", ctypes.c_void_p),
        ("memory_strides", _Strides),
    )


class _Gradients(ctypes.Structure):
    """``Gradients`` of the C++ source."""

    _fields_ = (
        ("outputs", ctypes.c_void_p),
        ("every_step", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("matrix", "entry_matrix", "inputs")),
    )


library = native.OnFirstUse("recurrence", SOURCE, "the recurrent layer")
"""``library()``: the compiled layer; None if it cannot be compiled."""


def _call(function: Any, *arguments: ctypes.Structure) -> None:
    if function(*(ctypes.byref(argument) for argument in arguments)):
        raise MemoryError("there is no memory left for the recurrent layer; set [train] batch-size or workers lower")


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _strides(tensor: Tensor | None) -> ctypes.Array[ctypes.c_int64]:
    """Return the strides between clients and between steps."""
    return _Strides(*tensor.stride()[:2]) if tensor is not None else _Strides()


class _Kept(NamedTuple):
    """Tensors that the forward pass saves for the backward pass; None for those that a cell does not have.

    matrix : ``[clients, gates, width]``. entry_matrix : ``[clients, hidden, features + 1]``.
    joint  : ``[clients, steps + 1, batch, width]``, where ``width`` is ``hidden + features + 1``.
    product, entry, memory : ``[clients, places, batch, gates or hidden]``.
    """

    matrix: Tensor
    entry_matrix: Tensor | None
    joint: Tensor
    product: Tensor
    entry: Tensor | None
    memory: Tensor | None

    def layer(self, cell: Cell, inputs: Tensor | None = None) -> _Layer:
        """Build the C++ structure; only the forward pass reads ``inputs`` ``[clients, steps, batch, features]``."""
        clients, places, batch, width = self.joint.shape
        code, blocks = _CELLS[type(cell)]
        gates = self.matrix.shape[1]
        hidden = gates // blocks
        return _Layer(
            cell=code,
            clients=clients,
            steps=places - 1,
            batch=batch,
            features=width - hidden - 1,
            hidden=hidden,
            gates=gates,
            width=width,
            matrix=_address(self.matrix),
            entry_matrix=_address(self.entry_matrix),
            inputs=_address(inputs),
            input_strides=(ctypes.c_int64 * 4)(*([] if inputs is None else inputs.stride())),
            joint=_address(self.joint),
            product=_address(self.product),
            product_strides=_strides(self.product),
            entry=_address(self.entry),
            entry_strides=_strides(self.entry),
            memory=_address(self.memory),
            memory_strides=_strides(self.memory),
        )


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, compiled: ctypes.CDLL, cell: Cell, last: bool, *weights: Tensor) -> Tensor:
        clients, steps, batch, features = inputs.shape
        matrix, entry_matrix = cell.matrices(Weights(*weights))
        gates, width = matrix.shape[1:]
        size = width - features - 1

        def room(places: int, rows: int) -> Tensor:
            """Allocate activations ``[clients, places, batch, rows]``; without a backward pass all share one place."""
            if any(ctx.needs_input_grad):
                return inputs.new_empty(clients, places, batch, rows)
            return inputs.new_empty(1, 1, batch, rows).expand(clients, places, -1, -1)

        # C++ sees addresses only.
        if matrix.shape[:2] != (clients, _CELLS[type(cell)][1] * size):
            raise ValueError(
                f"inputs of {clients} clients with {features} features do not fit weights of the shapes "
                f"{', '.join(str(tuple(weight.shape)) for weight in weights)}"
            )
        kept = _Kept(
            matrix=matrix.contiguous(),
            entry_matrix=None if entry_matrix is None else entry_matrix.contiguous(),
            joint=inputs.new_empty(clients, steps + 1, batch, width),
            product=room(steps, gates),
            entry=None if entry_matrix is None else room(steps, size),
            memory=room(steps + 1, size) if cell.has_memory else None,
        )
        _call(compiled.recurrent_forward, kept.layer(cell, inputs))
        ctx.save_for_backward(*kept)
        ctx.compiled, ctx.cell, ctx.last = compiled, cell, last
        return kept.joint[:, -1, :, :size] if last else kept.joint[:, 1:, :, :size]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        kept = _Kept(*ctx.saved_tensors)
        layer = kept.layer(ctx.cell)
        grad_outputs = grad_outputs.contiguous()
        grad_matrix = torch.empty_like(kept.matrix)
        grad_entry_matrix = None if kept.entry_matrix is None else torch.empty_like(kept.entry_matrix)
        shape = (layer.clients, layer.steps, layer.batch, layer.features)
        grad_inputs = grad_matrix.new_empty(shape) if ctx.needs_input_grad[0] else None
        gradients = _Gradients(
            outputs=_address(grad_outputs),
            every_step=not ctx.last,
            matrix=_address(grad_matrix),
            entry_matrix=_address(grad_entry_matrix),
            inputs=_address(grad_inputs),
        )
        _call(ctx.compiled.recurrent_backward, layer, gradients)
        return grad_inputs, None, None, None, *ctx.cell.weight_gradients(grad_matrix, grad_entry_matrix, layer.hidden)


def run_sequence(cell: Cell, inputs: Tensor, weights: Weights, last: bool = False) -> Tensor:
    """Compute :func:`fedgraph.models.recurrence.run_sequence` in C++ for float32 on a CPU, else call it."""
    tensors = (inputs, *weights)
    suits = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    if not suits or type(cell) not in _CELLS or not inputs.numel() or torch.is_autocast_enabled("cpu"):
        return recurrence.run_sequence(cell, inputs, weights, last)
    compiled = library()
    if compiled is None:
        return recurrence.run_sequence(cell, inputs, weights, last)
    outputs: Tensor = _Sequence.apply(inputs.permute(1, 0, 3, 2), compiled, cell, last, *weights)
    return outputs.transpose(1, 2) if last else outputs.permute(1, 0, 3, 2)
