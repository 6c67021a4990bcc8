"""Forecasters that see a context beside each window: chosen windows of a cohort, hidden states, and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedgraph.data import Split, SplitName
from fedgraph.models import Batch, TaskSpec, linear
from fedgraph.models.recurrent import RecurrentModel, RecurrentSettings, RecurrentTwin
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings
from fedgraph.training import Cohort
from fedgraph.training.metrics import loss_sums, masked_mean

_AT_ONCE = 1024


class ContextTwin(RecurrentTwin):
    """One client's :class:`ContextForecaster`: inputs are flat windows, contexts behind them, ``[batch, numbers]``."""

    def __init__(
        self,
        recurrent: nn.RNNBase,
        combine: nn.Linear | None,
        head: nn.Linear,
        output_shape: tuple[int, ...],
        window: tuple[int, ...],
    ) -> None:
        super().__init__(recurrent, combine, head, output_shape)
        self.window = window
        self.decoder = nn.Linear(2 * recurrent.hidden_size, head.in_features)

    def read_out(self, inputs: Tensor) -> Tensor:
        """Return what the last linear layer sees."""
        windows, context = inputs.tensor_split([math.prod(self.window)], dim=1)
        hidden = super().read_out(windows.unflatten(1, self.window))
        return self.decoder(torch.cat([hidden, context], 1)).relu()


class ContextForecaster(RecurrentModel):
    """Forecasts from a window and from a context that comes from elsewhere, of the length of a hidden state.

    A recurrent encoder makes a hidden state of the window; a perceptron with one hidden layer, twice as wide as the
    hidden state, forecasts from this and the context. Inputs are flat windows and contexts behind them,
    ``[clients, batch, steps * features + hidden]``.

    Parameters
    ----------
    settings : Settings
        Of the ``[model]``, which is the encoder.
    task : TaskSpec
        Whose inputs are windows.

    Raises
    ------
    ExperimentError
        If the ``[model]`` is not recurrent.
    """

    def __init__(self, settings: Settings, task: TaskSpec) -> None:
        if not isinstance(settings, RecurrentSettings):
            raise ExperimentError(
                f"[model] name: a hidden state to be sent is that of a recurrent model: {', '.join(self.kinds)}"
            )
        super().__init__(settings, task)

    @property
    def context_size(self) -> int:
        """Length of a context, and of a hidden state."""
        return self.settings.hidden

    def build_twin(self) -> nn.Module:
        """Return the same model around ``nn.GRU``, ``nn.LSTM`` or ``nn.RNN``."""
        twin = super().build_twin()
        assert isinstance(twin, RecurrentTwin)
        head = nn.Linear(2 * self.context_size, self.num_outputs)
        return ContextTwin(twin.recurrent, twin.combine, head, twin.output_shape, self.task.input_shape)

    def encode(self, state: Mapping[str, Tensor], windows: Tensor) -> Tensor:
        """Compute hidden states ``[clients, batch, hidden]`` of windows ``[clients, batch, steps, features]``."""
        return super().embed(state, windows, False)[0]

    def decode(self, state: Mapping[str, Tensor], hidden: Tensor, context: Tensor) -> Tensor:
        """Forecast from hidden states and contexts, ``[clients, batch, hidden]`` each; scaled, ``[..., steps]``."""
        return self.shaped(self.head(state, self._decoded(state, hidden, context)))

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the inputs of the last layer."""
        windows, context = inputs.tensor_split([math.prod(self.task.input_shape)], dim=2)
        return self._decoded(state, self.encode(state, windows.unflatten(2, self.task.input_shape)), context), {}

    def _decoded(self, state: Mapping[str, Tensor], hidden: Tensor, context: Tensor) -> Tensor:
        return linear(state, "decoder", torch.cat([hidden, context], 2)).relu()


@dataclass(frozen=True)
class _WithContext:
    """Some examples of a split, with a context each: int64 and float32 ``[clients, chosen(, size)]``.

    ``places`` are a client's examples; behind those of a client that has fewer they are -1.
    """

    split: Split
    places: Tensor
    context: Tensor

    @property
    def num_examples(self) -> Tensor:
        return (self.places >= 0).sum(1)

    def batch(self, indices: Tensor) -> Batch:
        places, chosen = self.places[: len(indices)], indices.clamp(min=0)
        batch = self.split.batch(places.gather(1, chosen).masked_fill(indices < 0, -1))
        clients = torch.arange(len(indices), device=indices.device)[:, None]
        return batch._replace(inputs=torch.cat([batch.inputs.flatten(2), self.context[clients, chosen]], 2))

    def select(self, clients: slice | Tensor) -> _WithContext:
        return _WithContext(self.split.select(clients), self.places[clients], self.context[clients])

    def to(self, device: torch.device) -> _WithContext:
        return _WithContext(self.split.to(device), self.places.to(device), self.context.to(device))


def cohort_with_context(
    cohort: Cohort, model: ContextForecaster, windows: Mapping[SplitName, Tensor], contexts: Mapping[SplitName, Tensor]
) -> Cohort:
    """Return the same clients with forecasters that see a context beside each window.

    Parameters
    ----------
    cohort : Cohort
        The clients, and how they train.
    model : ContextForecaster
        Their forecaster.
    windows : mapping of str to Tensor
        Which examples of a split are used, int64 ``[clients, chosen]``, -1 where a client lacks one.
    contexts : mapping of str to Tensor
        Of these examples, float32 ``[clients, chosen, size]``.
    """
    splits: dict[SplitName, Split] = {}
    for split, places in windows.items():
        order = (places < 0).int().argsort(dim=1, stable=True)
        context = contexts[split].gather(1, order[..., None].expand_as(contexts[split]))
        splits[split] = _WithContext(cohort.data.splits[split], places.gather(1, order), context)
    size = cohort.data.task.input_shape[0] * cohort.data.task.input_shape[1] + model.context_size
    task = replace(cohort.data.task, input_shape=(size,), features=())
    return Cohort(model, replace(cohort.data, task=task, splits=splits), cohort.settings, cohort.seed)


@torch.no_grad()
def hidden_states(
    cohort: Cohort, model: ContextForecaster, parameters: Tensor, split: SplitName, places: Tensor
) -> Tensor:
    """Encode windows.

    Parameters
    ----------
    cohort : Cohort
        The clients.
    model : ContextForecaster
        Their forecaster.
    parameters : Tensor
        ``[clients, parameters]``.
    split : str
        Whose examples are encoded.
    places : Tensor
        Which ones, int64 ``[clients, chosen]``, -1 where a client lacks one.

    Returns
    -------
    Tensor
        Float32 ``[clients, chosen, size]``, 0 where a client lacks the window.
    """
    state = model.layout.unflatten(parameters.to(cohort.device))
    data = cohort.split(split)
    parts = [model.encode(state, data.batch(part.to(cohort.device)).inputs) for part in places.split(_AT_ONCE, 1)]
    return torch.cat(parts, 1).float().cpu().masked_fill((places < 0)[..., None], 0.0)


def context_gradients(
    cohort: Cohort, model: ContextForecaster, parameters: Tensor, places: Tensor, contexts: Tensor
) -> Tensor:
    """Differentiate each client's mean training loss over windows with respect to their contexts.

    Parameters
    ----------
    cohort : Cohort
        The clients, and the loss that they minimise.
    model : ContextForecaster
        Their forecaster.
    parameters : Tensor
        ``[clients, parameters]``.
    places : Tensor
        Training examples, int64 ``[clients, chosen]``, -1 where a client lacks one.
    contexts : Tensor
        Float32 ``[clients, chosen, size]``.

    Returns
    -------
    Tensor
        Float32 ``[clients, chosen, size]``; 0 where a client lacks the window.
    """
    state = model.layout.unflatten(parameters.to(cohort.device))
    batch = cohort.split("train").batch(places.to(cohort.device))
    with torch.no_grad():
        hidden = model.encode(state, batch.inputs)
    leaf = contexts.detach().to(cohort.device).requires_grad_()
    outputs = model.decode(state, hidden, leaf)
    sums = loss_sums(cohort.settings.loss, cohort.data.task, outputs, batch.targets, batch.weights)
    (gradients,) = torch.autograd.grad(masked_mean(*sums).sum(), leaf)
    return gradients.cpu()
