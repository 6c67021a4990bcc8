"""Local training of one block of clients: gather minibatches, differentiate, update, all in stacked operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fedgraph.data import Augment, Split
from fedgraph.models import Batch, Differentiated, Layout, StackedModel, TaskSpec
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import derive_seed
from fedgraph.training.batches import example_numbers, learning_rates, repeat_examples, training_batches
from fedgraph.training.compiling import Compiled
from fedgraph.training.metrics import loss_name, loss_sums, masked_mean
from fedgraph.training.optimisers import Optimiser, clip_rows
from fedgraph.training.settings import TrainSettings

_AHEAD = 1 << 18
"""Number of values of examples that are gathered at once."""

GradientTerm = Callable[[Tensor, slice | Tensor, Tensor], Tensor]
"""``(parameters [active, trainable], clients, batch_weight [active]) -> [active, trainable]``, added to the gradient.

``clients`` are the rows of the cohort that ``parameters`` belong to: a slice, or int64 ``[active]``. ``batch_weight``
is the number of examples in each client's minibatch. Several threads may call it at once.
"""


@dataclass(frozen=True)
class Block:
    """Clients that train together, those with more steps first, on one device.

    rows         : their rows in the cohort.
    names        : ``[clients]``.
    keys         : of the order of their examples, int64 ``[clients]``.
    num_examples : int64 ``[clients]``.
    """

    rows: slice | Tensor
    names: Sequence[str]
    keys: Tensor
    num_examples: Tensor
    split: Split

    def first(self, count: int) -> slice | Tensor:
        """Return the rows in the cohort of the first ``count`` clients."""
        if isinstance(self.rows, slice):
            return slice(self.rows.start, self.rows.start + count)
        return self.rows[:count]


@dataclass(frozen=True)
class LocalTraining:
    """How the clients of a cohort train: model, task, settings, and augmentation of minibatches, if any."""

    model: StackedModel
    task: TaskSpec
    settings: TrainSettings
    seed: int
    augment: Augment | None = None

    def run(
        self,
        block: Block,
        matrix: Tensor,
        moments: Mapping[str, Tensor],
        round: int,
        gradient_term: GradientTerm | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Train ``matrix`` ``[clients, parameters]`` and ``moments`` in place.

        Returns the mean loss of the round (NaN without training) and the number of minibatches, ``[clients]`` each.
        Raises ExperimentError for a model whose parameters are all frozen.
        """
        settings, width = self.settings, self._trained.num_parameters
        if not width:
            raise ExperimentError(
                "[model] has no parameters to train: all of them are frozen (requires_grad is False); unfreeze some"
            )
        batches = training_batches(block.keys, block.num_examples, settings, round)
        counts = (batches >= 0).sum(2)
        weights = counts.float()
        active, longest = (counts > 0).sum(1).tolist(), counts.amax(1).tolist()
        trained = matrix[:, :width].contiguous()
        running = self._buffers.unflatten(matrix[:, width:]) if self._buffers.names else {}
        optimiser = Optimiser(settings, settings.rate(round), dict(moments))
        rates = learning_rates(settings, block.num_examples, round)
        total = torch.zeros(2, len(matrix), dtype=torch.float64, device=matrix.device)
        compiles = settings.compile is True and (matrix.is_cuda or not self.model.native)
        with self._own_draws(block.names[0], round, matrix.device):
            gathered = self._minibatches(block.split, batches, active, longest)
            for step, (clients, examples, batch) in enumerate(zip(active, longest, gathered, strict=True)):
                if self.augment is not None:
                    numbers = example_numbers(block.keys[:clients], round, step, batch.inputs.shape[1])
                    batch = batch._replace(inputs=self.augment(batch.inputs, numbers))
                buffers = {name: value[:clients] for name, value in running.items()}
                # Rare shapes are not worth compiling: a block that has lost clients, a short last minibatch.
                usual = compiles and clients == len(matrix) and examples == max(longest)
                sums, gradient, changed = self._differentiate(trained[:clients], buffers, batch, usual)
                with torch.no_grad():
                    total[:, :clients] += sums
                    if gradient_term is not None:
                        gradient += gradient_term(trained[:clients], block.first(clients), weights[step, :clients])
                    if settings.clip_norm is not None:
                        clip_rows(gradient, settings.clip_norm)
                    optimiser.step(trained, gradient, None if rates is None else rates[step, :clients])
                    for name, value in changed.items():
                        buffers[name].copy_(value)
        if running:
            matrix[:, :width] = trained
        return total[0] / total[1], (counts > 0).sum(0)

    def _differentiate(
        self, models: Tensor, buffers: Mapping[str, Tensor], batch: Batch, compiles: bool
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Return sums as of :meth:`_loss`, the gradient of each client's mean loss, and the buffers that changed."""
        if self._written_out is not None:
            with autocast(self.settings, models.device):
                found = self._written_out.loss_gradient(self._loss_name, models, batch)
            if found is not None:
                return *found, {}
        parameters = models.detach().requires_grad_()
        sums, changed = (self._compiled_loss if compiles else self._loss)(parameters, buffers, batch)
        (gradient,) = torch.autograd.grad(masked_mean(*sums).sum(), parameters)
        return sums, gradient, changed

    @cached_property
    def _written_out(self) -> Differentiated | None:
        return self.model if isinstance(self.model, Differentiated) else None

    @cached_property
    def _loss_name(self) -> str:
        return loss_name(self.settings.loss, self.task)

    @cached_property
    def _compiled_loss(self) -> Compiled[[Tensor, Mapping[str, Tensor], Batch], tuple[Tensor, Mapping[str, Tensor]]]:
        return Compiled(self._loss)

    def _loss(
        self, parameters: Tensor, buffers: Mapping[str, Tensor], batch: Batch
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sums of weighted losses and of weights, ``[2, clients]``, and the buffers that changed."""
        with autocast(self.settings, parameters.device):
            state = {**self._trained.unflatten(parameters), **buffers}
            outputs, changed = self.model.forward(state, batch.inputs, training=True)
        sums = loss_sums(self.settings.loss, self.task, outputs.float(), batch.targets, batch.weights)
        return torch.stack(sums), changed

    def _minibatches(
        self, split: Split, batches: Tensor, active: Sequence[int], longest: Sequence[int]
    ) -> Iterator[Batch]:
        """Yield the minibatches ``batches`` ``[steps, clients, batch]``, of the ``active`` clients of each step.

        Where each step is one call, gathering its few examples would take as long: several steps' are gathered at once.
        """
        start = 0
        for (clients, examples), alike in groupby(zip(active, longest, strict=True)):
            stop = start + len(list(alike))
            numbers = clients * examples * math.prod(self.task.input_shape)
            ahead = max(1, _AHEAD // numbers) if self._written_out is not None else 1
            for steps in batches[start:stop, :clients].split(ahead):
                if len(steps) == 1:
                    yield self._batch(split, steps[0], examples)
                    continue
                found = self._batch(split, steps[:, :, :examples].transpose(0, 1).flatten(1), len(steps) * examples)
                parts = (part.unflatten(1, (len(steps), examples)).unbind(1) for part in found)
                yield from map(Batch, *parts)
            start = stop

    def _batch(self, split: Split, indices: Tensor, longest: int) -> Batch:
        """Gather the examples ``indices`` ``[clients, batch]``, of which each client has at most ``longest``."""
        if not self._buffers.names:
            return split.batch(indices[:, :longest])
        # Batch statistics must see real examples only, and the same ones whatever the block.
        inputs, targets, weights = split.batch(repeat_examples(indices))
        real = indices >= 0
        return Batch(inputs, targets, weights * real.view(*real.shape, *[1] * (weights.dim() - real.dim())))

    @contextmanager
    def _own_draws(self, name: str, round: int, device: torch.device) -> Iterator[None]:
        """Seed the draws within a model's forward pass by client and round, and restore the generators afterwards."""
        if not self.model.draws:
            yield
            return
        seed = derive_seed(self.seed, "forward", name, round)
        on_gpu = device.type == "cuda"
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []):
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            yield

    @cached_property
    def _trained(self) -> Layout:
        return _part(self.model.layout, buffers=False)

    @cached_property
    def _buffers(self) -> Layout:
        return _part(self.model.layout, buffers=True)


def autocast(settings: TrainSettings, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which a model computes at the precision of the settings."""
    return torch.autocast(device.type, torch.bfloat16) if settings.precision == "bf16" else nullcontext()


def _part(layout: Layout, buffers: bool) -> Layout:
    chosen = [
        (name, shape)
        for name, shape in zip(layout.names, layout.shapes, strict=True)
        if (name in layout.buffers) == buffers
    ]
    return Layout(tuple(name for name, _ in chosen), tuple(shape for _, shape in chosen))
