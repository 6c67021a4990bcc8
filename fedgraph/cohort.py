"""Train and evaluate the models of many clients at once: their parameters are one matrix ``[clients, parameters]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fedgraph.batches import repeat_examples, training_batches
from fedgraph.data.base import CohortData, Split, SplitName
from fedgraph.errors import DataError, RunError
from fedgraph.losses import loss_sums, masked_mean
from fedgraph.metrics import tally
from fedgraph.models.base import StackedModel
from fedgraph.optimisers import Optimiser, check_state, clip_rows, fresh_state
from fedgraph.parameters import Layout
from fedgraph.seeding import derive_seed
from fedgraph.train_settings import TrainSettings

__all__ = ["Cohort", "GradientTerm", "TrainResult", "TrainSettings"]

GradientTerm = Callable[[Tensor, slice, Tensor], Tensor]
"""``(parameters [block, trainable], clients, batch_weight [block]) -> [block, trainable]``, added to the gradient.

``clients`` is the slice of the cohort that the block covers, ``batch_weight`` the examples in each client's minibatch.
"""

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class TrainResult:
    """What a round of training left behind, on the CPU.

    parameters      : float32 ``[clients, parameters]``.
    loss            : ``[clients]`` mean training loss over all weighted targets of the round; NaN without training.
    steps           : int64 ``[clients]`` minibatches trained on.
    num_examples    : int64 ``[clients]`` training examples that each client has.
    optimizer_state : moments to hand in again next round, ``{name: [clients, ...]}``; empty unless they are kept.
    """

    parameters: Tensor
    loss: Tensor
    steps: Tensor
    num_examples: Tensor
    optimizer_state: dict[str, Tensor]


class Cohort:
    """The clients of one node: a model architecture, their data, and how they train.

    Clients do not influence each other: a client's result does not depend on which others train with it, in which
    order or in blocks of which size, to float tolerance. A model that draws random numbers in its forward pass (as
    dropout does) is computed client by client unless ``block-size`` says otherwise, so that each client draws for
    itself. Torch's global generators are left as they were.
    """

    def __init__(self, model: StackedModel, data: CohortData, settings: TrainSettings, seed: int) -> None:
        self.model = model
        self.data = data
        self.settings = settings
        self.seed = seed
        self.device = settings.torch_device()
        layout = model.layout
        trained = [name not in layout.buffers for name in layout.names]
        self._trained = _part(layout, trained)
        self._buffers = _part(layout, [not each for each in trained])

    def train(
        self,
        parameters: Tensor,
        round: int,
        gradient_term: GradientTerm | None = None,
        optimizer_state: dict[str, Tensor] | None = None,
    ) -> TrainResult:
        """Train every client from its row of ``parameters`` ``[clients, parameters]``, which stays as it is.

        ``optimizer_state`` is what the last round returned, None for fresh moments; ``round`` selects the order of the
        examples and the learning rate. Raises RunError when ``parameters`` or the state do not fit.
        """
        clients = len(self.data.names)
        self._check(parameters)
        state = fresh_state(self.settings, clients, self._trained.num_parameters)
        if optimizer_state is not None and self.settings.keep_optimizer:
            check_state(optimizer_state, state)
            state = {name: value.to("cpu", copy=True) for name, value in optimizer_state.items()}
        result = parameters.detach().to("cpu", torch.float32, copy=True)
        loss = torch.full((clients,), torch.nan)
        steps = torch.zeros(clients, dtype=torch.int64)
        nothing_to_do = not (self.settings.local_steps or self.settings.local_epochs)
        for block in () if nothing_to_do else self._blocks(self.settings.batch_size):
            moments = {name: value[block].to(self.device) for name, value in state.items()}
            result[block], loss[block], steps[block] = self._train_block(
                block, result[block].to(self.device), round, gradient_term, moments
            )
            for name, value in moments.items():
                state[name][block] = value
        kept = state if self.settings.keep_optimizer else {}
        return TrainResult(result, loss, steps, self._split("train").num_examples.clone(), kept)

    def evaluate(
        self,
        parameters: Tensor,
        split: SplitName,
        horizons: Sequence[int] = (),
        batch_size: int = EVALUATION_BATCH,
    ) -> dict[str, Tensor]:
        """Metrics of every client's model on its own examples, ``{name: [clients]}``, NaN without valid targets.

        Classification: ``accuracy`` and ``loss``. Regression: ``mae`` and ``rmse``. Forecast: masked ``mae``, ``rmse``
        and ``mape`` (percent), over all steps and at each step of ``horizons`` (counted from 1), in the task's unit.
        """
        results = []
        for block in self._blocks(batch_size):
            mean, std = self.data.mean[block].to(self.device), self.data.std[block].to(self.device)
            sums = tally(self.data.task, mean, std, horizons)
            for outputs, targets, weights, _ in self._outputs(parameters, split, block, batch_size):
                sums.add(outputs, targets, weights)
            results.append(sums.result())
        return {name: torch.cat([result[name] for result in results]).cpu() for name in results[0]}

    def predict(self, parameters: Tensor, split: SplitName, batch_size: int = EVALUATION_BATCH) -> Tensor:
        """Outputs ``[clients, examples, *output_shape]`` in the task's unit (logits for classification).

        Clients with fewer examples than others are filled up with NaN.
        """
        counts = self._split(split).num_examples
        shape = (len(counts), int(counts.max()), *self.data.task.output_shape)
        predictions = torch.full(shape, torch.nan)
        for block in self._blocks(batch_size):
            start = 0
            for outputs, _, _, present in self._outputs(parameters, split, block, batch_size):
                stop = start + outputs.shape[1]
                std, mean = (_widened(value[block], outputs) for value in (self.data.std, self.data.mean))
                values = outputs.cpu() * std + mean
                predictions[block, start:stop] = values.masked_fill(~_widened(present, outputs), torch.nan)
                start = stop
        return predictions

    def _train_block(
        self,
        block: slice,
        matrix: Tensor,
        round: int,
        gradient_term: GradientTerm | None,
        moments: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        settings, names = self.settings, self.data.names[block]
        split = self._split("train").block(block.start, block.stop)
        batches = training_batches(names, split.num_examples.tolist(), settings, self.seed, round)
        counts = (batches >= 0).sum(2)
        if not self._buffers.names:
            batches = batches[..., : int(split.num_examples.max())]
        trained, buffers = matrix.split([self._trained.num_parameters, self._buffers.num_parameters], dim=1)
        trained = trained.clone().requires_grad_()
        running = self._buffers.unflatten(buffers) if self._buffers.names else {}
        optimiser = Optimiser(settings, settings.rate(round), moments)
        loss = torch.zeros(2, len(names), dtype=torch.float64, device=self.device)
        with self._forked_random_state(names[0], round):
            for indices, count in zip(batches, counts, strict=True):
                active = None if bool(count.all()) else (count > 0).to(self.device)
                inputs, targets, weights = self._batch(split, indices)
                outputs, changed = self.model.forward(self._trained.unflatten(trained) | running, inputs, training=True)
                sums = torch.stack(loss_sums(settings.loss, self.data.task, outputs, targets, weights))
                (gradient,) = torch.autograd.grad(masked_mean(*sums).sum(), trained)
                with torch.no_grad():
                    loss += sums
                    if gradient_term is not None:
                        gradient += gradient_term(trained.detach(), block, count.to(self.device, torch.float32))
                    if settings.clip_norm is not None:
                        clip_rows(gradient, settings.clip_norm)
                    optimiser.step(trained, gradient, active)
                    running |= {name: _masked(value, running[name], active) for name, value in changed.items()}
        flat = [trained.detach()] + ([self._buffers.flatten(running)] if running else [])
        return torch.cat(flat, dim=1), loss[0] / loss[1], (counts > 0).sum(0)

    def _batch(self, split: Split, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not self._buffers.names:
            return self._on_device(*split.batch(indices))
        # Batch statistics must see real examples only, and the same ones whatever the block.
        inputs, targets, weights = split.batch(repeat_examples(indices))
        return self._on_device(inputs, targets, weights * _widened(indices >= 0, weights))

    def _outputs(
        self, parameters: Tensor, split: SplitName, block: slice, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Outputs, targets and weights of all examples of a block in order, and which of them exist (on the CPU)."""
        self._check(parameters)
        data = self._split(split).block(block.start, block.stop)
        layout = self.model.layout
        state = layout.unflatten(parameters[block].detach().to(self.device, torch.float32))
        # One batch at least: clients without any examples get their NaN from its empty sums.
        longest = max(int(data.num_examples.max()), 1)
        for start in range(0, longest, batch_size):
            indices = torch.arange(start, min(start + batch_size, longest)).expand(len(data.num_examples), -1)
            present = indices < data.num_examples[:, None]
            inputs, targets, weights = self._on_device(*data.batch(indices.masked_fill(~present, -1)))
            with torch.no_grad():
                outputs, _ = self.model.forward(state, inputs, training=False)
            yield outputs, targets, weights, present

    def _blocks(self, batch_size: int) -> Iterator[slice]:
        clients = len(self.data.names)
        size = self.settings.clients_per_block(
            clients, batch_size, prod(self.data.task.input_shape), self._trained.num_parameters
        )
        if self.model.draws and self.settings.block_size is None:
            size = 1  # each client draws for itself, whoever shares its node
        for start in range(0, clients, size):
            yield slice(start, min(start + size, clients))

    def _split(self, name: SplitName) -> Split:
        if name not in self.data.splits:
            raise DataError(f"this data set has no split '{name}'; it has: {', '.join(self.data.splits)}")
        return self.data.splits[name]

    def _check(self, parameters: Tensor) -> None:
        wanted = (len(self.data.names), self.model.layout.num_parameters)
        if tuple(parameters.shape) != wanted:
            raise RunError(
                f"the parameters have the shape {tuple(parameters.shape)}, but {wanted[0]} clients with "
                f"{wanted[1]} parameters each need {wanted}"
            )

    def _on_device(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return inputs.to(self.device), targets.to(self.device), weights.to(self.device)

    @contextmanager
    def _forked_random_state(self, name: str, round: int) -> Iterator[None]:
        """Draws within a model's forward pass start from a key of our own and leave no trace."""
        seed = derive_seed(self.seed, "forward", name, round)
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []):
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            yield


def _part(layout: Layout, chosen: Sequence[bool]) -> Layout:
    names = tuple(name for name, keep in zip(layout.names, chosen, strict=True) if keep)
    shapes = tuple(shape for shape, keep in zip(layout.shapes, chosen, strict=True) if keep)
    return Layout(names, shapes)


def _masked(new: Tensor, old: Tensor, active: Tensor | None) -> Tensor:
    """``new`` for active clients, ``old`` for the others."""
    new = new.detach()
    return new if active is None else torch.where(_widened(active, new), new, old)


def _widened(values: Tensor, like: Tensor) -> Tensor:
    """``values`` with trailing dimensions of size 1, so that it broadcasts against the leading ones of ``like``."""
    return values.reshape(*values.shape, *[1] * (like.dim() - values.dim()))
