"""A recurrent layer of many clients over a whole sequence, with its own backward pass.

Per time step a recurrent cell is one matrix product ``M u`` with ``u = [hidden; input; 1]``, where ``M`` contains both
weight matrices and both biases, followed by element-wise work in place. A step keeps only its activations, and the
views of them are made once for all steps, so this trains faster than autograd over the single operations and than a
loop over ``torch.nn`` layers.
Tensors are laid out ``[steps, clients, rows, batch]``, so that the gates of a step are contiguous blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Weights(NamedTuple):
    """The parameters of a ``torch.nn`` layer with a leading client axis, or their gradients."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


class Step(NamedTuple):
    """The tensors that a cell reads and writes at one time step, ``[clients, hidden, batch]`` unless noted.

    joint    : ``u``, ``[clients, hidden + features + 1, batch]``.
    product  : ``M u``, ``[clients, gates, batch]``, and its parts:
    squashed : the gates with a sigmoid, as one tensor ``[clients, k * hidden, batch]``;
    gates    : all blocks, in the order of the cell's ``matrix``.
    entry    : the input's part of the candidate, for a cell that keeps it apart; else None.
    memory   : a second state in addition to the hidden one, for a cell that has one; else empty.
    """

    joint: Tensor
    product: Tensor
    squashed: Tensor
    gates: tuple[Tensor, ...]
    entry: Tensor | None
    hidden: Tensor
    memory: Tensor
    next_hidden: Tensor
    next_memory: Tensor


class StepGradient(NamedTuple):
    """Gradients of a step's ``product``, ``squashed``, ``gates`` and ``entry``; all steps share these tensors."""

    product: Tensor
    squashed: Tensor
    gates: tuple[Tensor, ...]
    entry: Tensor | None


class Cell(Protocol):
    """The element-wise part of a recurrent cell.

    squashed_gates : number of leading blocks of ``M u`` with a sigmoid.
    has_memory     : whether there is a second state in addition to the hidden one.
    """

    squashed_gates: int
    has_memory: bool

    def matrices(self, weights: Weights) -> tuple[Tensor, Tensor | None]:
        """Return ``M`` ``[clients, gates, hidden + features + 1]`` and the entry matrix.

        The entry matrix ``[clients, hidden, features + 1]`` is the part of the input that ``M`` does not contain; None
        if it contains all.
        """

    def weight_gradients(self, matrix: Tensor, entry: Tensor | None, size: int) -> Weights:
        """Return gradients of the parameters from those of the two ``matrices``; ``size`` is the hidden size."""

    def forward(self, step: Step) -> None:
        """Turn ``M u`` into activations in place and compute the next state."""

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad: StepGradient
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute ``grad``.

        Returns the gradients of the previous hidden state and memory, except those through ``M``.
        """


def _joined(weight_ih: Tensor, weight_hh: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([weight_hh, weight_ih, bias.unsqueeze(2)], dim=2)


def _split_parameters(joined: Tensor, size: int) -> Weights:
    """Return the gradients of the arguments of :func:`_joined`, where ``bias`` is the sum of both biases."""
    bias = joined[:, :, -1]
    return Weights(joined[:, :, size:-1], joined[:, :, :size], bias, bias)


class TanhCell:
    """Elman cell: ``h' = tanh(M u)``."""

    squashed_gates = 0
    has_memory = False

    def matrices(self, weights: Weights) -> tuple[Tensor, Tensor | None]:
        """See :class:`Cell`."""
        return _joined(weights.weight_ih, weights.weight_hh, weights.bias_ih + weights.bias_hh), None

    def weight_gradients(self, matrix: Tensor, entry: Tensor | None, size: int) -> Weights:
        """See :class:`Cell`."""
        return _split_parameters(matrix, size)

    def forward(self, step: Step) -> None:
        """See :class:`Cell`."""
        torch.tanh(step.product, out=step.next_hidden)

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad: StepGradient
    ) -> tuple[Tensor | None, Tensor | None]:
        """See :class:`Cell`."""
        _tanh_backward(grad_hidden, step.next_hidden, grad_input=grad.product)
        return None, None


class GRUCell:
    """GRU cell: ``h' = (1 - z) n + z h`` with ``n = tanh(x_n + r h_n)``.

    The reset gate separates the two halves of ``n``, so ``M`` yields ``r, z, h_n`` and the entry matrix ``x_n``.
    """

    squashed_gates = 2
    has_memory = False

    def matrices(self, weights: Weights) -> tuple[Tensor, Tensor | None]:
        """See :class:`Cell`."""
        weight_ih, weight_hh, bias_ih, bias_hh = weights
        size = weight_hh.shape[2]
        matrix = _joined(weight_ih, weight_hh, bias_hh)
        # The rows of r and z contain both biases; those of h_n do not depend on the input.
        matrix[:, : 2 * size, -1] += bias_ih[:, : 2 * size]
        matrix[:, 2 * size :, size:-1] = 0
        return matrix, torch.cat([weight_ih[:, 2 * size :], bias_ih[:, 2 * size :].unsqueeze(2)], dim=2)

    def weight_gradients(self, matrix: Tensor, entry: Tensor | None, size: int) -> Weights:
        """See :class:`Cell`."""
        assert entry is not None
        into = torch.cat([matrix[:, : 2 * size, size:], entry], dim=1)
        return Weights(into[:, :, :-1], matrix[:, :, :size], into[:, :, -1], matrix[:, :, -1])

    def forward(self, step: Step) -> None:
        """See :class:`Cell`."""
        assert step.entry is not None
        step.squashed.sigmoid_()
        reset, update, hidden_part = step.gates
        new = step.entry.addcmul_(reset, hidden_part).tanh_()
        torch.lerp(new, step.hidden, update, out=step.next_hidden)

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad: StepGradient
    ) -> tuple[Tensor | None, Tensor | None]:
        """See :class:`Cell`."""
        new, grad_new = step.entry, grad.entry
        assert new is not None
        assert grad_new is not None
        reset, update, hidden_part = step.gates
        grad_reset, grad_update, grad_hidden_part = grad.gates
        kept = grad_hidden * update
        torch.sub(grad_hidden, kept, out=grad_new)
        # z (h - n) = h' - n, so the slope z (1 - z) of the sigmoid needs no further factor.
        torch.sub(step.next_hidden, new, out=grad_update).mul_(grad_new)
        _tanh_backward(grad_new, new, grad_input=grad_new)
        torch.mul(grad_new, hidden_part, out=grad_reset)
        _sigmoid_backward(grad_reset, reset, grad_input=grad_reset)
        torch.mul(grad_new, reset, out=grad_hidden_part)
        return kept, None


class LSTMCell:
    """LSTM cell: ``c' = f c + i g`` and ``h' = o tanh(c')``; ``M`` yields ``i, f, o, g``."""

    squashed_gates = 3
    has_memory = True

    def matrices(self, weights: Weights) -> tuple[Tensor, Tensor | None]:
        """See :class:`Cell`."""
        joined = _joined(weights.weight_ih, weights.weight_hh, weights.bias_ih + weights.bias_hh)
        return self._last_two_swapped(joined), None

    def weight_gradients(self, matrix: Tensor, entry: Tensor | None, size: int) -> Weights:
        """See :class:`Cell`."""
        return _split_parameters(self._last_two_swapped(matrix), size)

    @staticmethod
    def _last_two_swapped(matrix: Tensor) -> Tensor:
        """Reorder rows from the order ``i, f, g, o`` of ``torch.nn`` to ``i, f, o, g`` and back."""
        first, second, third, fourth = matrix.chunk(4, dim=1)
        return torch.cat([first, second, fourth, third], dim=1)

    def forward(self, step: Step) -> None:
        """See :class:`Cell`."""
        step.squashed.sigmoid_()
        entry, forget, output, new = step.gates
        new.tanh_()
        torch.mul(forget, step.memory, out=step.next_memory).addcmul_(entry, new)
        torch.mul(output, step.next_memory.tanh(), out=step.next_hidden)

    def backward(
        self, step: Step, grad_hidden: Tensor, grad_memory: Tensor | None, grad: StepGradient
    ) -> tuple[Tensor | None, Tensor | None]:
        """See :class:`Cell`."""
        entry, forget, output, new = step.gates
        grad_entry, grad_forget, grad_output, grad_new = grad.gates
        squashed_memory = step.next_memory.tanh()
        torch.mul(grad_hidden, squashed_memory, out=grad_output)
        grad_next = grad_hidden * output
        _tanh_backward(grad_next, squashed_memory, grad_input=grad_next)
        if grad_memory is not None:
            grad_next += grad_memory
        torch.mul(grad_next, new, out=grad_entry)
        torch.mul(grad_next, step.memory, out=grad_forget)
        _sigmoid_backward(grad.squashed, step.squashed, grad_input=grad.squashed)
        torch.mul(grad_next, entry, out=grad_new)
        _tanh_backward(grad_new, new, grad_input=grad_new)
        return None, grad_next.mul_(forget)


class _Kept(NamedTuple):
    """Tensors that the forward pass saves for the backward pass.

    products : ``[steps, clients, gates, batch]``, activations. entry : ``[steps, clients, hidden or 0, batch]``.
    joint : ``[steps + 1, clients, hidden + features + 1, batch]``, the ``u`` of every step.
    memory : ``[steps + 1, clients, hidden or 0, batch]``.
    """

    products: Tensor
    entry: Tensor
    joint: Tensor
    memory: Tensor

    def steps(self, cell: Cell, size: int) -> list[Step]:
        """Return views of every time step, made in a few calls."""
        squashed = self.products[:, :, : cell.squashed_gates * size].unbind(0)
        blocks = zip(*(block.unbind(0) for block in self.products.split(size, dim=2)), strict=True)
        entry = self.entry.unbind(0) if self.entry.shape[2] else [None] * len(squashed)
        hidden, memory = self.joint[:, :, :size].unbind(0), self.memory.unbind(0)
        views = (self.joint.unbind(0), self.products.unbind(0), squashed, blocks, entry)
        return [Step(*step) for step in zip(*views, hidden, memory, hidden[1:], memory[1:], strict=False)]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute ``total += left right^T`` per client; ``total`` may have a higher precision than the factors."""
    # For a total that is not contiguous, or of another type, the product has to be computed first and added then.
    if total.is_contiguous() and total.dtype == left.dtype:
        total.baddbmm_(left, right.transpose(1, 2))
    else:
        total += torch.bmm(left, right.transpose(1, 2))


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, cell: Cell, last: bool, *weights: Tensor) -> Tensor:
        steps, clients, features, batch = inputs.shape
        matrix, entry_matrix = cell.matrices(Weights(*weights))
        size = matrix.shape[2] - features - 1
        joint = inputs.new_empty(steps + 1, clients, matrix.shape[2], batch)
        joint[0, :, :size] = 0
        joint[:-1, :, size:-1] = inputs
        joint[:-1, :, -1] = 1
        entering = joint[:-1, :, size:]
        # Without a backward pass the steps share one place, which stays in the cache.
        places = steps if any(ctx.needs_input_grad) else 1
        kept = _Kept(
            products=inputs.new_empty(places, clients, matrix.shape[1], batch).expand(steps, -1, -1, -1),
            entry=inputs.new_empty(steps, clients, 0, batch) if entry_matrix is None else entry_matrix @ entering,
            joint=joint,
            memory=inputs.new_zeros(steps + 1, clients, size if cell.has_memory else 0, batch),
        )
        views = kept.steps(cell, size)
        # The first hidden state is zero.
        torch.bmm(matrix[:, :, size:], entering[0], out=views[0].product)
        cell.forward(views[0])
        for step in views[1:]:
            torch.bmm(matrix, step.joint, out=step.product)
            cell.forward(step)
        ctx.save_for_backward(matrix, entry_matrix, *kept)
        ctx.size, ctx.cell, ctx.last, ctx.views = size, cell, last, views
        return views[-1].next_hidden if last else joint[1:, :, :size]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        matrix, entry_matrix, *tensors = ctx.saved_tensors
        cell, size, kept = ctx.cell, ctx.size, _Kept(*tensors)
        # The views are freed like the saved tensors; only a retained graph makes them again for another backward pass.
        views, ctx.views = ctx.views or kept.steps(cell, size), None
        precision = torch.promote_types(matrix.dtype, torch.float32)
        grad_matrix = torch.zeros_like(matrix, dtype=precision)
        grad_entry_matrix = None if entry_matrix is None else torch.zeros_like(entry_matrix, dtype=precision)
        product = torch.empty_like(views[0].product)
        grad = StepGradient(
            product,
            product[:, : cell.squashed_gates * size],
            product.split(size, dim=1),
            None if entry_matrix is None else torch.empty_like(kept.entry[0]),
        )
        grad_inputs = torch.empty_like(kept.joint[:-1, :, size:-1]) if ctx.needs_input_grad[0] else None
        back = matrix[:, :, :size].transpose(1, 2)
        # A transposed layout would propagate to every step and make all of them slower.
        grad_hidden, grad_memory = (grad_outputs if ctx.last else grad_outputs[-1]).contiguous(), None
        for t, step in reversed(list(enumerate(views))):
            through, grad_memory = cell.backward(step, grad_hidden, grad_memory, grad)
            if grad.entry is not None and grad_entry_matrix is not None:
                _add_product(grad_entry_matrix, grad.entry, step.joint[:, size:])
            if grad_inputs is not None:
                torch.bmm(matrix[:, :, size:-1].transpose(1, 2), product, out=grad_inputs[t])
                if grad.entry is not None:
                    grad_inputs[t].baddbmm_(entry_matrix[:, :, :-1].transpose(1, 2), grad.entry)
            if t == 0:
                _add_product(grad_matrix[:, :, size:], product, step.joint[:, size:])
                break
            _add_product(grad_matrix, product, step.joint)
            grad_hidden = torch.bmm(back, product) if through is None else through.baddbmm_(back, product)
            if not ctx.last:
                grad_hidden += grad_outputs[t - 1]
        return grad_inputs, None, None, *cell.weight_gradients(grad_matrix, grad_entry_matrix, size)


def run_sequence(cell: Cell, inputs: Tensor, weights: Weights, last: bool = False) -> Tensor:
    """Compute the hidden states of one recurrent layer that starts from zeros.

    The gradients of the weights are summed over the steps in float32. Differentiable once. Returns ``[steps, clients,
    hidden, batch]``, or with ``last`` ``[clients, hidden, batch]``.

    Parameters
    ----------
    cell : GRU, LSTM or Elman cell.
    inputs : ``[steps, clients, features, batch]``, of the same type as the weights: float32 or bfloat16;
        ``torch.autocast`` casts both to it.
    weights : with a leading client axis.
    last : whether to return only the hidden state after the last step.
    """
    device = inputs.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        # Single operations of a step must not be cast: they write into existing tensors.
        with torch.autocast(device, enabled=False):
            return run_sequence(cell, inputs.to(dtype), Weights(*(weight.to(dtype) for weight in weights)), last)
    outputs: Tensor = _Sequence.apply(inputs, cell, last, *weights)
    return outputs
