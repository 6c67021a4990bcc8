"""Recurrent layers of many clients on a GPU, by PyTorch's fused GRU and LSTM cells.

A time step is a matrix product and one kernel for all element-wise work; backward, the gradients of the weights are
one product over all time steps. Tensors are laid out ``[steps, clients, batch, ...]``, as fused cells take rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedgraph.models import recurrence
from fedgraph.models.recurrence import Cell, GRUCell, LSTMCell, Weights


class _State(NamedTuple):
    """``[clients, batch, hidden]`` each; ``memory`` is empty for a cell without a second state."""

    hidden: Tensor
    memory: Tensor


class _StepGradient(NamedTuple):
    """Gradients of a time step.

    product : of the product of weights and the previous hidden state, ``[clients, batch, gates]``.
    entry   : of the part of the gates from the inputs, where it differs: that of the last block, ``[clients, batch,
              hidden]``; else None.
    hidden  : of the previous hidden state, except through the product; None if there is none.
    memory  : of the previous second state.
    """

    product: Tensor
    entry: Tensor | None
    hidden: Tensor | None
    memory: Tensor | None


class _FusedCell(Protocol):
    """A cell whose gates are those of ``torch.nn``, in the same order."""

    def bias(self, weights: Weights) -> tuple[Tensor, Tensor | None]:
        """Return the bias of the part from the inputs, and that of the last block of the product, if there is one."""

    def forward(self, entering: Tensor, product: Tensor, state: _State) -> tuple[_State, Tensor]:
        """Return the next state, and what the backward pass needs in addition."""

    def backward(
        self, grad_hidden: Tensor, grad_memory: Tensor | None, before: _State, after: _State, kept: Tensor
    ) -> _StepGradient:
        """Return the gradients of a time step."""


class _FusedGRU:
    def bias(self, weights: Weights) -> tuple[Tensor, Tensor | None]:
        size = weights.weight_hh.shape[2]
        both = weights.bias_ih.clone()
        both[:, : 2 * size] += weights.bias_hh[:, : 2 * size]
        return both, weights.bias_hh[:, 2 * size :]

    def forward(self, entering: Tensor, product: Tensor, state: _State) -> tuple[_State, Tensor]:
        rows = (each.flatten(0, 1) for each in (entering, product, state.hidden))
        hidden, kept = torch.ops.aten._thnn_fused_gru_cell(*rows)
        return _State(hidden.view_as(state.hidden), state.memory), kept

    def backward(
        self, grad_hidden: Tensor, grad_memory: Tensor | None, before: _State, after: _State, kept: Tensor
    ) -> _StepGradient:
        found = torch.ops.aten._thnn_fused_gru_cell_backward(grad_hidden.flatten(0, 1), kept, False)
        entering, product, hidden = (each.unflatten(0, grad_hidden.shape[:2]) for each in found[:3])
        return _StepGradient(product, entering[..., 2 * hidden.shape[2] :], hidden, None)


class _FusedLSTM:
    def bias(self, weights: Weights) -> tuple[Tensor, Tensor | None]:
        return weights.bias_ih + weights.bias_hh, None

    def forward(self, entering: Tensor, product: Tensor, state: _State) -> tuple[_State, Tensor]:
        rows = (each.flatten(0, 1) for each in (entering, product, state.memory))
        hidden, memory, kept = torch.ops.aten._thnn_fused_lstm_cell(*rows)
        return _State(*(each.view_as(state.hidden) for each in (hidden, memory))), kept

    def backward(
        self, grad_hidden: Tensor, grad_memory: Tensor | None, before: _State, after: _State, kept: Tensor
    ) -> _StepGradient:
        given = (None if grad_memory is None else grad_memory.flatten(0, 1), before.memory, after.memory)
        first, *rest = (each if each is None or each.dim() == 2 else each.flatten(0, 1) for each in given)
        found = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(grad_hidden.flatten(0, 1), first, *rest, kept, False)
        product, memory = (each.unflatten(0, grad_hidden.shape[:2]) for each in found[:2])
        return _StepGradient(product, None, None, memory)


_FUSED: dict[type, _FusedCell] = {GRUCell: _FusedGRU(), LSTMCell: _FusedLSTM()}


class _FusedSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, cell: _FusedCell, last: bool, *tensors: Tensor) -> Tensor:
        weights = Weights(*tensors)
        steps, clients, _, batch = inputs.shape
        bias, bias_of_last = cell.bias(weights)
        rows = inputs.transpose(2, 3)
        rows = torch.cat([rows, torch.ones_like(rows[..., :1])], dim=3)
        into = torch.cat([weights.weight_ih, bias.unsqueeze(2)], dim=2)
        entering = rows @ into.transpose(1, 2)
        size = weights.weight_hh.shape[2]
        zeros = inputs.new_zeros(clients, batch, size)
        states, kept = [_State(zeros, zeros)], []
        for t in range(steps):
            before = states[-1]
            if t:
                product = torch.bmm(before.hidden, weights.weight_hh.transpose(1, 2))
            else:  # the first hidden state is zero
                product = torch.zeros_like(entering[0])
            if bias_of_last is not None:
                product[..., -size:] += bias_of_last.unsqueeze(1)
            after, more = cell.forward(entering[t], product, before)
            states.append(after)
            kept.append(more)
        ctx.save_for_backward(
            weights.weight_ih, weights.weight_hh, rows, *kept, *(each for state in states for each in state)
        )
        ctx.cell, ctx.last = cell, last
        hidden = states[-1].hidden if last else torch.stack([state.hidden for state in states[1:]])
        return hidden.transpose(-2, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        weight_ih, weight_hh, rows, *saved = ctx.saved_tensors
        steps, size = len(rows), weight_hh.shape[2]
        kept, flat = saved[:steps], saved[steps:]
        states = [_State(*flat[place : place + 2]) for place in range(0, len(flat), 2)]
        given = grad_outputs.transpose(-2, -1).contiguous()
        grad_hidden, grad_memory = (given if ctx.last else given[-1]), None
        gradients: list[_StepGradient] = []
        for t in reversed(range(steps)):
            found = ctx.cell.backward(grad_hidden, grad_memory, states[t], states[t + 1], kept[t])
            gradients.append(found)
            if t == 0:
                break
            grad_memory = found.memory
            if found.hidden is None:
                grad_hidden = torch.bmm(found.product, weight_hh)
            else:
                grad_hidden = found.hidden.baddbmm_(found.product, weight_hh)
            if not ctx.last:
                grad_hidden += given[t - 1]
        gradients.reverse()
        hidden = [state.hidden for state in states[1:-1]]
        grad_inputs = _of_inputs(gradients, weight_ih, size) if ctx.needs_input_grad[0] else None
        return grad_inputs, None, None, *_of_weights(gradients, rows, hidden, size)


def _of_weights(gradients: Sequence[_StepGradient], rows: Tensor, hidden: Sequence[Tensor], size: int) -> Weights:
    """Return the gradients of the weights, each by one product over all steps and examples.

    Parameters
    ----------
    rows : inputs and ones, ``[steps, clients, batch, features + 1]``.
    hidden : of all steps but the last, ``[clients, batch, hidden]`` each.
    """
    transposed = _side_by_side([each.product for each in gradients]).transpose(1, 2)
    entered = rows.transpose(0, 1).flatten(1, 2)
    from_inputs = torch.bmm(transposed, entered)
    bias_hh = from_inputs[..., -1]
    entries = [each.entry for each in gradients if each.entry is not None]
    if entries:
        last = torch.bmm(_side_by_side(entries).transpose(1, 2), entered)
        from_inputs = torch.cat([from_inputs[:, :-size], last], dim=1)
    if hidden:
        batch = rows.shape[2]
        weight_hh = torch.bmm(transposed[..., batch:], _side_by_side(hidden))
    else:
        weight_hh = from_inputs.new_zeros(*from_inputs.shape[:2], size)
    return Weights(from_inputs[..., :-1], weight_hh, from_inputs[..., -1], bias_hh)


def _of_inputs(gradients: Sequence[_StepGradient], weight_ih: Tensor, size: int) -> Tensor:
    """Return the gradient of the inputs, ``[steps, clients, features, batch]``."""
    found = []
    for each in gradients:
        entering = each.product
        if each.entry is not None:
            entering = torch.cat([entering[..., :-size], each.entry], dim=2)
        found.append(torch.bmm(entering, weight_ih))
    return torch.stack(found).transpose(2, 3)


def _side_by_side(steps: Sequence[Tensor]) -> Tensor:
    """Return ``[clients, steps * batch, ...]`` from ``[clients, batch, ...]`` of every step."""
    return torch.stack(list(steps), dim=1).flatten(1, 2)


def run_sequence(cell: Cell, inputs: Tensor, weights: Weights, last: bool = False) -> Tensor:
    """Compute the hidden states of one recurrent layer, as :func:`fedgraph.models.recurrence.run_sequence`.

    A cell for which PyTorch has no fused one, and other types than float32, are computed by that.
    """
    fused = _FUSED.get(type(cell))
    lowered = torch.is_autocast_enabled(inputs.device.type)
    if fused is None or lowered or inputs.dtype != torch.float32:
        return recurrence.run_sequence(cell, inputs, weights, last)
    outputs: Tensor = _FusedSequence.apply(inputs, fused, last, *weights)
    return outputs
