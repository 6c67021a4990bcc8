"""A recurrent layer of many clients over a whole sequence, with its gradient written out.

Per time step a recurrent cell is one matrix product ``gates = M u`` with ``u = [hidden; input; 1]``, where ``M`` holds
both weight matrices and both biases, followed by element-wise work in place. A step keeps its activations only, so
this trains faster than autograd over the single operations and than a loop over ``torch.nn`` layers.
Tensors are laid out ``[steps, clients, rows, batch]``, so that the gates of a step are contiguous blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Step(NamedTuple):
    """What a cell reads and writes at one time step; each ``[clients, rows, batch]``."""

    gates: Tensor
    hidden: Tensor
    memory: Tensor
    next_hidden: Tensor
    next_memory: Tensor


class Cell(Protocol):
    """The element-wise part of a recurrent cell."""

    has_memory: bool

    def matrix(self, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
        """``M`` ``[clients, gates, hidden + features + 1]`` from the parameters of a ``torch.nn`` layer."""

    def forward(self, step: Step) -> None:
        """Turn ``step.gates`` into activations in place and fill in the next state."""

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad_gates: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Fill ``grad_gates``; return what reaches the previous hidden state and memory other than through ``M``."""


def _joined(weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight_hh, weight_ih, bias.unsqueeze(2)], dim=2)


class TanhCell:
    """Elman cell: ``h' = tanh(M u)``."""

    has_memory = False

    def matrix(self, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
        """See :class:`Cell`."""
        return _joined(weight_ih, weight_hh, bias_ih + bias_hh)

    def forward(self, step: Step) -> None:
        """See :class:`Cell`."""
        step.next_hidden.copy_(step.gates.tanh_())

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad_gates: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """See :class:`Cell`."""
        _tanh_backward(grad_hidden, step.gates, grad_input=grad_gates)
        return None, None


class GRUCell:
    """``h' = (1 - z) n + z h`` with ``n = tanh(x_n + r h_n)``.

    The reset gate stands between the two halves of ``n``, so ``M`` yields four blocks: ``r, z, h_n, x_n``.
    """

    has_memory = False

    def matrix(self, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
        """See :class:`Cell`."""
        size = weight_hh.shape[2]
        gates, new = slice(0, 2 * size), slice(2 * size, 3 * size)
        return torch.cat(
            [
                _joined(weight_ih[:, gates], weight_hh[:, gates], (bias_ih + bias_hh)[:, gates]),
                _joined(torch.zeros_like(weight_ih[:, new]), weight_hh[:, new], bias_hh[:, new]),
                _joined(weight_ih[:, new], torch.zeros_like(weight_hh[:, new]), bias_ih[:, new]),
            ],
            dim=1,
        )

    def forward(self, step: Step) -> None:
        """See :class:`Cell`."""
        size = step.hidden.shape[1]
        step.gates[:, : 2 * size].sigmoid_()
        reset, update, hidden_part, new = step.gates.split(size, dim=1)
        new.addcmul_(reset, hidden_part).tanh_()
        torch.lerp(new, step.hidden, update, out=step.next_hidden)

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad_gates: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """See :class:`Cell`."""
        size = step.hidden.shape[1]
        reset, update, hidden_part, new = step.gates.split(size, dim=1)
        grad_reset, grad_update, grad_hidden_part, grad_new = grad_gates.split(size, dim=1)
        kept = grad_hidden * update
        torch.sub(grad_hidden, kept, out=grad_new)
        _tanh_backward(grad_new, new, grad_input=grad_new)
        torch.sub(step.hidden, new, out=grad_update).mul_(grad_hidden)
        _sigmoid_backward(grad_update, update, grad_input=grad_update)
        torch.mul(grad_new, hidden_part, out=grad_reset)
        _sigmoid_backward(grad_reset, reset, grad_input=grad_reset)
        torch.mul(grad_new, reset, out=grad_hidden_part)
        return kept, None


class LSTMCell:
    """``c' = f c + i g`` and ``h' = o tanh(c')``; ``M`` yields ``i, f, g, o``."""

    has_memory = True

    def matrix(self, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
        """See :class:`Cell`."""
        return _joined(weight_ih, weight_hh, bias_ih + bias_hh)

    def forward(self, step: Step) -> None:
        """See :class:`Cell`."""
        size = step.hidden.shape[1]
        step.gates[:, : 2 * size].sigmoid_()
        entry, forget, new, output = step.gates.split(size, dim=1)
        new.tanh_()
        output.sigmoid_()
        torch.mul(forget, step.memory, out=step.next_memory).addcmul_(entry, new)
        torch.mul(output, step.next_memory.tanh(), out=step.next_hidden)

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad_gates: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """See :class:`Cell`."""
        size = step.hidden.shape[1]
        entry, forget, new, output = step.gates.split(size, dim=1)
        grad_entry, grad_forget, grad_new, grad_output = grad_gates.split(size, dim=1)
        squashed = step.next_memory.tanh()
        torch.mul(grad_hidden, squashed, out=grad_output)
        _sigmoid_backward(grad_output, output, grad_input=grad_output)
        grad_next = grad_hidden * output
        _tanh_backward(grad_next, squashed, grad_input=grad_next)
        if grad_memory is not None:
            grad_next += grad_memory
        torch.mul(grad_next, new, out=grad_entry)
        _sigmoid_backward(grad_entry, entry, grad_input=grad_entry)
        torch.mul(grad_next, step.memory, out=grad_forget)
        _sigmoid_backward(grad_forget, forget, grad_input=grad_forget)
        torch.mul(grad_next, entry, out=grad_new)
        _tanh_backward(grad_new, new, grad_input=grad_new)
        return None, grad_next.mul_(forget)


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, matrix: Tensor, size: int, cell: Cell) -> Tensor:
        steps, clients, _, batch = inputs.shape
        gates = inputs.new_empty(steps, clients, matrix.shape[1], batch)
        joint = inputs.new_empty(steps + 1, clients, matrix.shape[2], batch)
        joint[0, :, :size] = 0
        joint[:-1, :, size:-1] = inputs
        joint[:-1, :, -1] = 1
        hidden = joint[:, :, :size]
        memory = inputs.new_zeros(steps + 1, clients, size if cell.has_memory else 0, batch)
        for t in range(steps):
            torch.bmm(matrix, joint[t], out=gates[t])
            cell.forward(Step(gates[t], hidden[t], memory[t], hidden[t + 1], memory[t + 1]))
        ctx.save_for_backward(matrix, gates, joint, memory)
        ctx.size, ctx.cell = size, cell
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        matrix, gates, joint, memory = ctx.saved_tensors
        size, hidden = ctx.size, joint[:, :, : ctx.size]
        grad_matrix = torch.zeros_like(matrix)
        grad_gates = torch.empty_like(gates[0])
        grad_inputs = torch.empty_like(joint[:-1, :, size:-1]) if ctx.needs_input_grad[0] else None
        # Without a gradient of the inputs, only the columns that lead to the hidden state matter.
        back = matrix[:, :, : size if grad_inputs is None else -1].transpose(1, 2)
        grad_hidden, grad_memory = grad_outputs[-1], None
        for t in reversed(range(len(gates))):
            step = Step(gates[t], hidden[t], memory[t], hidden[t + 1], memory[t + 1])
            kept, grad_memory = ctx.cell.backward(step, grad_hidden, grad_memory, grad_gates)
            grad_matrix.baddbmm_(grad_gates, joint[t].transpose(1, 2))
            if t == 0 and grad_inputs is None:
                break
            grad_joint = torch.bmm(back, grad_gates)
            if grad_inputs is not None:
                grad_inputs[t] = grad_joint[:, size:]
            if t > 0:
                grad_hidden = grad_joint[:, :size].add_(grad_outputs[t - 1])
                if kept is not None:
                    grad_hidden += kept
        return grad_inputs, grad_matrix, None, None


def run_sequence(
    cell: Cell, inputs: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor
) -> Tensor:
    """Hidden states ``[steps, clients, hidden, batch]`` of one recurrent layer that starts from zeros.

    ``inputs`` is ``[steps, clients, features, batch]``; the parameters are those of the ``torch.nn`` layer with a
    leading client axis. Differentiable once.
    """
    matrix = cell.matrix(weight_ih, weight_hh, bias_ih, bias_hh)
    outputs: Tensor = _Sequence.apply(inputs, matrix, weight_hh.shape[2], cell)
    return outputs
