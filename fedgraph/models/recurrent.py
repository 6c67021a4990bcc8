"""Recurrent models: a GRU, LSTM or plain tanh network, a read-out of its hidden states, and a linear layer.

Read-out of all steps by a learned linear combination: Ma, Hoang and Chen (UAI 2023), as in their program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from fedgraph.models import recurrence_fused, recurrence_kernel
from fedgraph.models.base import TaskSpec
from fedgraph.models.recurrence import Cell, GRUCell, LSTMCell, TanhCell, Weights, run_sequence
from fedgraph.models.stacked import ModelFromTwin
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings


class RecurrentSettings(Settings):
    """``[model]`` with ``name`` one of ``gru``, ``lstm`` and ``rnn``.

    Attributes
    ----------
    hidden   : number of hidden units of each layer.
    layers   : number of recurrent layers.
    read_out : the hidden states of the last layer that the linear layer sees: the ``last`` one, or a learned linear
               combination of those of all ``steps``, one weight per step and a bias, shared by the hidden units.
    """

    name: str
    hidden: int = Field(default=64, ge=1)
    layers: int = Field(default=1, ge=1)
    read_out: Literal["last", "steps"] = "last"


class RecurrentTwin(nn.Module):
    """One client's model: inputs ``[batch, steps, features]``, outputs ``[batch, *output_shape]``.

    combine : combines all steps, ``[steps]`` -> ``[1]``; None: the last hidden state is used.
    """

    def __init__(
        self, recurrent: nn.RNNBase, combine: nn.Linear | None, head: nn.Linear, output_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.combine = combine
        self.head = head
        self.output_shape = output_shape

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs of one client's batch."""
        return self.head(self.read_out(inputs)).reshape(-1, *self.output_shape)

    def read_out(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the linear layer for one client's batch, ``[batch, hidden]``."""
        hidden, _ = self.recurrent(inputs)
        return hidden[:, -1] if self.combine is None else self.combine(hidden.transpose(1, 2)).squeeze(2)


class RecurrentModel(ModelFromTwin):
    """A forecaster or classifier of sequences ``[steps, features]``.

    Attributes
    ----------
    native : whether the recurrent layers are computed by C++ where possible, see
        :mod:`fedgraph.models.recurrence_kernel`. ``torch.compile`` cannot improve on the hand-written backward pass,
        and would call it between two of its graphs.
    """

    native = False
    kinds: ClassVar[dict[str, tuple[Callable[..., nn.RNNBase], Cell]]] = {
        "gru": (nn.GRU, GRUCell()),
        "lstm": (nn.LSTM, LSTMCell()),
        "rnn": (nn.RNN, TanhCell()),
    }

    def __init__(self, settings: RecurrentSettings, task: TaskSpec) -> None:
        super().__init__(task)
        if len(task.input_shape) != 2:
            raise ExperimentError(
                f"[model] name: '{settings.name}' reads sequences of shape (steps, features), but one input of this "
                f"data set has the shape {task.input_shape}; choose another model, e.g. mlp"
            )
        self.settings = settings
        self.kind, self.cell = self.kinds[settings.name]

    @property
    def library(self) -> object | None:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return recurrence_kernel.library() if self.native else None

    def compiled(self) -> Self:
        """Return the same model with ``native`` on.

        Its first batch on a processor waits a second for the compiler.
        """
        model = copy.copy(self)
        model.native = True
        return model

    def build_twin(self) -> nn.Module:
        """Return the same model around ``nn.GRU``, ``nn.LSTM`` or ``nn.RNN``."""
        hidden = self.settings.hidden
        recurrent = self.kind(
            input_size=self.task.input_shape[1],
            hidden_size=hidden,
            num_layers=self.settings.layers,
            batch_first=True,
        )
        combine = nn.Linear(self.task.input_shape[0], 1) if self.settings.read_out == "steps" else None
        return RecurrentTwin(recurrent, combine, nn.Linear(hidden, self.num_outputs), self.task.output_shape)

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the embeddings of sequences ``[clients, batch, steps, features]``."""
        run = recurrence_kernel.run_sequence if self.native else run_sequence
        if inputs.is_cuda:
            run = recurrence_fused.run_sequence
        reads_last = self.settings.read_out == "last"
        hidden = inputs.permute(2, 0, 3, 1)
        for layer in range(self.settings.layers):
            hidden = run(
                self.cell,
                hidden,
                Weights(*(state[f"recurrent.{part}_l{layer}"] for part in Weights._fields)),
                last=reads_last and layer == self.settings.layers - 1,
            )
        return hidden.transpose(1, 2) if reads_last else self._combined(state, hidden), {}

    def _combined(self, state: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
        """Combine the steps of ``[steps, clients, hidden, batch]`` to ``[clients, batch, hidden]``."""
        # One product over contiguous memory: native code returns [batch, hidden] in memory, other code the reverse.
        is_transposed = hidden.stride(3) == 1
        steps = hidden.transpose(0, 1) if is_transposed else hidden.permute(1, 0, 3, 2)
        bias = state["combine.bias"].unsqueeze(2)
        combined = torch.baddbmm(bias, state["combine.weight"], steps.flatten(2)).unflatten(2, steps.shape[2:])
        return combined[:, 0].transpose(1, 2) if is_transposed else combined[:, 0]
