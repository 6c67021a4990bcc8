"""Recurrent models: the last hidden state of a GRU, LSTM or plain tanh network, then a linear layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from fedgraph.data.base import TaskSpec
from fedgraph.errors import ExperimentError
from fedgraph.models import recurrence_kernel
from fedgraph.models.recurrence import Cell, GRUCell, LSTMCell, TanhCell, Weights, run_sequence
from fedgraph.models.stacked import ModelFromTwin, linear
from fedgraph.settings import Settings


class RecurrentSettings(Settings):
    """``[model]`` with ``name`` one of ``gru``, ``lstm`` and ``rnn``."""

    name: str
    hidden: int = Field(default=64, ge=1)
    layers: int = Field(default=1, ge=1)


class RecurrentTwin(nn.Module):
    """One client's model: inputs ``[batch, steps, features]``, outputs ``[batch, *output_shape]``."""

    def __init__(self, recurrent: nn.RNNBase, head: nn.Linear, output_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.head = head
        self.output_shape = output_shape

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of one client's batch."""
        hidden, _ = self.recurrent(inputs)
        return self.head(hidden[:, -1]).reshape(-1, *self.output_shape)


class RecurrentModel(ModelFromTwin):
    """A forecaster or classifier of sequences ``[steps, features]``.

    native : whether the recurrent layers are computed by C++ where they can be, see
        :mod:`fedgraph.models.recurrence_kernel`. ``torch.compile`` cannot improve on the gradient that is written out
        here, and would call it between two graphs of its own.
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

    def compiled(self) -> RecurrentModel:
        """The same model with ``native`` on; its first batch waits a second for the compiler, once per processor."""
        model = copy.copy(self)
        model.native = True
        return model

    def build_twin(self) -> nn.Module:
        """The same model around ``nn.GRU``, ``nn.LSTM`` or ``nn.RNN``."""
        hidden = self.settings.hidden
        recurrent = self.kind(
            input_size=self.task.input_shape[1],
            hidden_size=hidden,
            num_layers=self.settings.layers,
            batch_first=True,
        )
        return RecurrentTwin(recurrent, nn.Linear(hidden, self.num_outputs), self.task.output_shape)

    def forward(
        self, state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Inputs ``[clients, batch, steps, features]``; see :class:`fedgraph.models.base.StackedModel`."""
        run = recurrence_kernel.run_sequence if self.native else run_sequence
        hidden = inputs.permute(2, 0, 3, 1)
        for layer in range(self.settings.layers):
            hidden = run(
                self.cell,
                hidden,
                Weights(*(state[f"recurrent.{part}_l{layer}"] for part in Weights._fields)),
                last=layer == self.settings.layers - 1,
            )
        return self.shaped(linear(state, "head", hidden.transpose(1, 2))), {}
