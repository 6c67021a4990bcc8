"""Local training of one block of clients in stacked operations: gather minibatches, differentiate, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fedgraph.data import Augment, ExampleSplit, Split
from fedgraph.models import Batch, Differentiated, Layout, StackedModel, TaskSpec, drawing_from
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import derive_seed
from fedgraph.support.threads import available_cores
from fedgraph.training.batches import Ahead, Schedule, example_numbers, keys_of_steps, learning_rates
from fedgraph.training.compiling import Compiled
from fedgraph.training.metrics import loss_name, loss_sums, masked_mean
from fedgraph.training.recording import BlockState, FixedBlock
from fedgraph.training.settings import TrainSettings
from fedgraph.training.working_set import GATHERED, GATHERED_ON_GPU

_RECORDED = 1 << 26
"""Most parameters of a block whose steps are recorded by default: more keep a GPU busy without it."""

_BLOCKS = 4
"""Number of sizes of blocks for which recorded steps are kept."""

GradientTerm = Callable[[Tensor, slice | Tensor, Tensor], Tensor]
"""``(parameters [active, trainable], clients, batch_weight [active]) -> [active, trainable]``, added to the gradient.

``clients`` are the rows of ``parameters`` in the cohort: a slice, or int64 ``[active]``. ``batch_weight`` is the number
of examples in each client's minibatch. Must be thread-safe.
"""


Draws = Sequence[torch.Generator] | Tensor | None
"""What clients draw from in a forward pass: generators, or keys int64 ``[clients]``; None if not each has its own."""

DrawnFrom = torch.Generator | Tensor | None
"""The same of one call of the model, see :func:`fedgraph.models.drawing_from`."""


@dataclass(frozen=True, eq=False)
class Block:
    """Clients that train together on one device, by decreasing number of steps.

    rows     : their rows in the cohort.
    names    : ``[clients]``.
    keys     : of the order of their examples, int64 ``[clients]``.
    schedule : of their minibatches.
    """

    rows: slice | Tensor
    names: Sequence[str]
    keys: Tensor
    schedule: Schedule
    split: Split

    def first(self, count: int) -> slice | Tensor:
        """Return the rows in the cohort of the first ``count`` clients."""
        if isinstance(self.rows, slice):
            return slice(self.rows.start, self.rows.start + count)
        return self.rows[:count]


class Part(NamedTuple):
    """Minibatches of some clients of a block, and their rows: all, or int64 ``[clients]``."""

    rows: slice | Tensor
    batch: Batch


@dataclass(frozen=True)
class LocalTraining:
    """Training of the clients of a cohort: model, task, settings, and optional augmentation."""

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

        Returns the mean loss of the round (NaN without training) and the number of minibatches, ``[clients]`` each; the
        latter on the CPU.
        Raises ExperimentError for a model whose parameters are all frozen.
        """
        settings, width = self.settings, self._trained.num_parameters
        if not width:
            raise ExperimentError(
                "[model] has no parameters to train: all of them are frozen (requires_grad is False); unfreeze some"
            )
        schedule = block.schedule
        batches, minibatches = self._ahead.taken(block, round) or self._prepared(block, round)
        running = self._buffers.unflatten(matrix[:, width:]) if self._buffers.names else {}
        total = torch.zeros(2, len(matrix), dtype=torch.float64, device=matrix.device)
        state = BlockState(matrix[:, :width].contiguous(), dict(moments), running, total)
        rates = learning_rates(settings, schedule.num_examples, round, self.least)
        rates = None if rates is None else rates.to(matrix.device)
        if self.descends(gradient_term):
            each = matrix.new_full(schedule.known.shape, settings.rate(round)) if rates is None else rates
            sums = self._descend(block, batches, state.parameters, each)
            if sums is not None:
                return sums[0] / sums[1], schedule.steps
        draws: Draws = self._generators(block, round, matrix.device)
        keys = keys_of_steps(block.keys, round, len(batches)) if self.draws_hashed(matrix.device) else None
        seeded = self.model.draws and draws is None and keys is None
        with self._seeded(block, round, matrix.device) if seeded else nullcontext():
            after = self._take_steps(block, minibatches, state, round, rates, gradient_term, draws, keys)
        if matrix.device.type != "cpu":
            self._ahead.make(lambda: self._prepared(block, round + 1, begin=True))
        if running or after is not state:
            matrix[:, :width] = after.parameters
        if isinstance(after, FixedBlock):
            after.copy_to(moments, running)
        return after.total[0] / after.total[1], schedule.steps

    def _prepared(self, block: Block, round: int, begin: bool = False) -> tuple[Tensor, Iterator[list[Part]]]:
        """Return the minibatches of a round, int64 ``[steps, clients, batch]``, and an iterator that gathers them.

        begin : whether the first ones are gathered at once.
        """
        batches = block.schedule.batches(block.keys, round)
        minibatches = self._minibatches(block, batches)
        return batches, chain(list(islice(minibatches, 1)), minibatches) if begin else minibatches

    @cached_property
    def _ahead(self) -> Ahead[tuple[Tensor, Iterator[list[Part]]]]:
        return Ahead()

    def _take_steps(
        self,
        block: Block,
        minibatches: Iterator[list[Part]],
        state: BlockState,
        round: int,
        rates: Tensor | None,
        gradient_term: GradientTerm | None,
        draws: Draws,
        keys: Tensor | None,
    ) -> BlockState:
        """Take all steps of a round, and return the state after them: the given one, or one at fixed places.

        Parameters
        ----------
        rates : learning rates ``[steps, clients]``, or None for that of the round.
        draws, keys : what the forward passes draw from, the latter by step.
        """
        settings, schedule = self.settings, block.schedule
        compiles = settings.compile is True and not (state.parameters.is_cuda or self.model.native)
        gathered = zip(schedule.active, schedule.longest, minibatches, strict=True)
        for step, (clients, examples, parts) in enumerate(gathered):
            if self.augment is not None:
                numbers = example_numbers(block.keys[:clients], round, step, examples)
                parts = [self._augmented(part, numbers) for part in parts]
            whole = clients == len(state.parameters) and len(parts) == 1
            if step == 0 and whole and self._records(state):
                state = self._fixed_block(state)
            rate = settings.rate(round) if rates is None else rates[step, :clients]
            own = None if keys is None else keys[step, :clients]
            term = None
            if gradient_term is not None:
                weights = schedule.counts[step, :clients].float()
                term = partial(gradient_term, state.parameters[:clients], block.first(clients), weights)
            if whole and isinstance(state, FixedBlock):
                state.step(partial(self._differentiate, compiles=False), parts[0].batch, rate, term, own)
                continue
            # Rare shapes are not compiled: a block with fewer active clients, a short last minibatch.
            usual = compiles and whole and examples == max(schedule.longest)
            buffers = {name: value[:clients] for name, value in state.buffers.items()}
            sums, gradient, changed = self._differentiated(
                state.parameters[:clients], buffers, parts, usual, draws if own is None else own
            )
            state.add(sums, changed)
            if term is not None:
                with torch.no_grad():
                    gradient += term()
            state.update(settings, gradient, rate)
        return state

    def sequential(self, device: torch.device) -> bool:
        """Return whether clients are computed sequentially."""
        return self.model.sequential and device.type == "cpu" and self.settings.compile is not True

    def _records(self, state: BlockState) -> bool:
        """Return whether steps of a block are recorded as CUDA graphs."""
        models = state.parameters
        asked = self.settings.compile is True or (self.settings.compile is not False and models.numel() <= _RECORDED)
        drawing = self.model.draws and not self.draws_hashed(models.device)
        return models.is_cuda and asked and not drawing and not self.task.level

    def _fixed_block(self, state: BlockState) -> FixedBlock:
        """Return the tensors in which blocks of as many clients are computed, with this state."""
        clients = len(state.parameters)
        if clients not in self._fixed_blocks:
            if len(self._fixed_blocks) >= _BLOCKS:
                self._fixed_blocks.pop(next(iter(self._fixed_blocks)))
            self._fixed_blocks[clients] = FixedBlock(self.settings, state)
        self._fixed_blocks[clients].load(state)
        return self._fixed_blocks[clients]

    def forget(self) -> None:
        """Free the memory of recorded steps."""
        self._fixed_blocks.clear()
        self._ahead.forget()

    @cached_property
    def _fixed_blocks(self) -> dict[int, FixedBlock]:
        return {}

    def descends(self, gradient_term: GradientTerm | None) -> bool:
        """Return whether the model has native code for steps of plain gradient descent."""
        settings = self.settings
        plain = settings.optimizer == "sgd" and not settings.momentum and settings.clip_norm is None
        return plain and gradient_term is None and self.augment is None and self._written_out is not None

    def _descend(self, block: Block, batches: Tensor, models: Tensor, rates: Tensor) -> Tensor | None:
        """Take all steps, at ``rates`` ``[steps, clients]``, and return sums of weighted losses and of weights.

        They are float64 ``[2, clients]``; None, without any change, if the model has no code for the steps.
        """
        model, total = cast(Differentiated, self.model), torch.zeros(2, len(models), dtype=torch.float64)
        for steps, clients, batch in self._steps(block, batches):
            own = rates[steps, :clients].t()
            with autocast(self.settings, models.device):
                sums = model.descend(
                    self._loss_name, models[:clients], batch, own, self.settings.weight_decay, self._workers
                )
            if sums is None:
                return None
            total[:, :clients] += sums
        return total

    def _steps(self, block: Block, batches: Tensor) -> Iterator[tuple[slice, int, Batch | ExampleSplit]]:
        """Yield minibatches as :meth:`_gathered`, or all at once if native code gathers them."""
        split, schedule = block.split, block.schedule
        if isinstance(split, ExampleSplit) and not split.masks:
            clients, examples = max(schedule.active, default=0), max(schedule.longest, default=0)
            if clients:
                chosen = batches[:, :clients, :examples].transpose(0, 1)
                yield slice(0, len(batches)), clients, split.select(slice(0, clients)).minibatches(chosen)
        else:
            yield from self._gathered(block, batches)

    @property
    def _workers(self) -> int:
        return self.settings.workers or available_cores()

    def _differentiated(
        self,
        models: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Sequence[Part],
        compiles: bool,
        draws: Draws = None,
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Return the result of :meth:`_differentiate` for minibatches in parts.

        draws : what each client draws from in the forward pass.
        """
        if len(parts) == 1:
            return self._differentiate(models, buffers, parts[0].batch, compiles, _of_part(draws, 0, parts[0]))
        sums, gradient = models.new_empty(2, len(models)), torch.empty_like(models)
        changed: dict[str, Tensor] = {}
        for place, part in enumerate(parts):
            rows, batch = part
            own = {name: value[rows] for name, value in buffers.items()}
            found = self._differentiate(models[rows], own, batch, False, _of_part(draws, place, part))
            sums[:, rows], gradient[rows], after = found
            for name, value in after.items():
                changed.setdefault(name, buffers[name].clone())[rows] = value
        return sums, gradient, changed

    def _differentiate(
        self,
        models: Tensor,
        buffers: Mapping[str, Tensor],
        batch: Batch,
        compiles: bool,
        draws: DrawnFrom,
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Return sums as :meth:`_loss`, the gradient of each client's mean loss, and changed buffers."""
        if self._written_out is not None:
            with autocast(self.settings, models.device):
                found = self._written_out.loss_gradient(self._loss_name, models, batch)
            if found is not None:
                return *found, {}
        parameters = models.detach().requires_grad_()
        if compiles:
            sums, changed = self._compiled_loss(parameters, buffers, batch)
        else:
            sums, changed = self._loss(parameters, buffers, batch, draws)
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
        self,
        parameters: Tensor,
        buffers: Mapping[str, Tensor],
        batch: Batch,
        draws: DrawnFrom = None,
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return sums of weighted losses and of weights, ``[2, clients]``, and changed buffers."""
        state = {**self._trained.unflatten(parameters), **buffers}
        # Only the forward pass, as the context slows down every call of PyTorch.
        with autocast(self.settings, parameters.device), drawing_from(draws):
            outputs, changed = self.model.forward(state, batch.inputs, training=True)
        sums = loss_sums(self.settings.loss, self.task, outputs.float(), batch.targets, batch.weights)
        return torch.stack(sums), changed

    @cached_property
    def least(self) -> int:
        """Minimum number of examples of a minibatch; see :class:`fedgraph.models.base.StackedModel`."""
        return self.model.least_examples if self._unpadded else 1

    @cached_property
    def _unpadded(self) -> bool:
        """Whether padding would affect a client's results, as with batch statistics."""
        return self.model.mixes_examples(training=True)

    def _minibatches(self, block: Block, batches: Tensor) -> Iterator[list[Part]]:
        """Yield the minibatches of each step for its active clients.

        They are padded to one length, or separated into parts if examples influence each other, or by client if clients
        are computed sequentially. Several steps are gathered at once if each step is one call.
        """
        schedule = block.schedule
        if self.sequential(batches.device):
            counts = schedule.known.tolist()
            for steps, clients, batch in self._gathered(block, batches):
                for number, step in enumerate(range(steps.start, steps.stop)):
                    yield [
                        Part(slice(row, row + 1), Batch(*(each[row : row + 1, number, :count] for each in batch)))
                        for row, count in enumerate(counts[step][:clients])
                    ]
            return
        if self._unpadded and not (self.draws_hashed(batches.device) and self.model.draws_padded):
            each = zip(batches, schedule.known, schedule.active, strict=True)
            yield from (self._parts(block.split, step[:clients], counts[:clients]) for step, counts, clients in each)
            return
        for _, _, batch in self._gathered(block, batches):
            yield from (
                [Part(slice(None), Batch(*step))] for step in zip(*(part.unbind(1) for part in batch), strict=True)
            )

    def _gathered(self, block: Block, batches: Tensor) -> Iterator[tuple[slice, int, Batch]]:
        """Yield steps with equal numbers of clients and examples, their number of clients, and their minibatches.

        Those are ``[clients, steps, batch, ...]``, padded to one length.
        """
        on_gpu = batches.is_cuda
        several = on_gpu or self._written_out is not None or self.sequential(batches.device)
        for alike, clients, examples in block.schedule.alike():
            numbers = clients * examples * math.prod(self.task.example_shape)
            ahead = max(1, (GATHERED_ON_GPU if on_gpu else GATHERED) // numbers) if several else 1
            for start in range(alike.start, alike.stop, ahead):
                steps = slice(start, min(start + ahead, alike.stop))
                chosen = batches[steps, :clients, :examples].transpose(0, 1)
                found = block.split.batch(chosen.flatten(1))
                yield steps, clients, Batch(*(part.unflatten(1, chosen.shape[1:]) for part in found))

    def _parts(self, split: Split, indices: Tensor, counts: Tensor) -> list[Part]:
        """Gather the minibatches ``indices`` ``[clients, batch]``, grouped by number of examples.

        counts : of examples, on the CPU, ``[clients]``.
        """
        lengths = counts.unique(sorted=False).tolist()
        if len(lengths) == 1:
            return [Part(slice(None), split.batch(indices[:, : lengths[0]]))]
        parts = []
        for length in sorted(lengths, reverse=True):
            rows = (counts == length).nonzero().flatten().to(indices.device, non_blocking=True)
            parts.append(Part(rows, split.select(rows).batch(indices[rows, :length])))
        return parts

    def _augmented(self, part: Part, numbers: Tensor) -> Part:
        """Augment examples by random ``numbers`` ``[clients, examples]``."""
        assert self.augment is not None
        inputs = part.batch.inputs
        return Part(part.rows, part.batch._replace(inputs=self.augment(inputs, numbers[part.rows, : inputs.shape[1]])))

    def draws_apart(self, device: torch.device) -> bool:
        """Return whether each client has its own random generator."""
        return self.model.draws and self.model.draws_apart and self.sequential(device)

    def draws_hashed(self, device: torch.device) -> bool:
        """Return whether draws are hashes of each client's key, so that clients are computed together."""
        return self.model.draws and self.model.draws_hashed and device.type != "cpu"

    def _generators(self, block: Block, round: int, device: torch.device) -> list[torch.Generator] | None:
        """Return the generator of each client for the forward pass, seeded by client and round, if it has its own."""
        if not self.draws_apart(device):
            return None
        seeds = (derive_seed(self.seed, "forward", name, round) for name in block.names)
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    @contextmanager
    def _seeded(self, block: Block, round: int, device: torch.device) -> Iterator[None]:
        """Seed torch's generators by the first client of a block and the round, and restore them afterwards."""
        seed = derive_seed(self.seed, "forward", block.names[0], round)
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


def _of_part(draws: Draws, place: int, part: Part) -> DrawnFrom:
    """Return what the clients of a part draw from."""
    if draws is None:
        return None
    return draws[part.rows] if isinstance(draws, Tensor) else draws[place]


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
