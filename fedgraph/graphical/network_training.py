"""Training of graphical networks of many clients at once, and the best of each by its fit to held-out rows.

A loop of its own beside that of :class:`fedgraph.cohort.Cohort`: each kind of feature has another loss, what holds a
network to a graph belongs to every step, every group of hidden units has a best epoch of its own, and as inputs are the
targets no examples need to be gathered twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.batches import shuffling_keys, training_batches
from fedgraph.errors import DataError, RunError
from fedgraph.graphical.network import Network, Weights
from fedgraph.graphical.ngm_settings import NGMSettings
from fedgraph.optimisers import Optimiser, fresh_state
from fedgraph.parameters import Layout
from fedgraph.threads import pinned_threads
from fedgraph.train_settings import TrainSettings

log = logging.getLogger("fedgraph")

ROWS = 256
"""Rows that are computed together: what they leave behind for the gradient stays in the processor's cache."""

MARGIN = 1e-4
"""Share by which a loss has to be smaller to count as better, so that training does not creep on for ever."""


class Penalty(Protocol):
    """What holds a network to a graph, or makes it find one, beside its architecture."""

    @property
    def chooses(self) -> bool:
        """Whether the best models are those of the smallest loss with the penalty, not of the best fit alone."""

    def __call__(self, network: Network, state: dict[str, Tensor]) -> Tensor:
        """What is added to the loss of each group of hidden units, ``[clients, groups]``."""

    def excess(self, network: Network, state: dict[str, Tensor]) -> Tensor:
        """How far models are beyond what is tolerated, ``[clients]``; 0 for those that are within it."""


@dataclass(frozen=True)
class Trained:
    """Models with the parameters of their best epochs.

    parameters : ``[clients, parameters]``.
    epochs     : that they are from, int64 ``[clients, choices]`` (:class:`fedgraph.graphical.network.Network`); 0:
                 before training.
    run        : epochs that each client has trained, int64 ``[clients]``.
    losses     : mean losses of held-out rows, ``[clients, features]``; 0 for features that are not learned.
    excess     : how far they are beyond what the penalty tolerates, ``[clients]``.
    """

    parameters: Tensor
    epochs: Tensor
    run: Tensor
    losses: Tensor
    excess: Tensor


def stack_rows(tables: Sequence[Tensor]) -> Tensor:
    """Tables ``[rows, units]`` of several clients -> ``[clients, most rows, units]``, filled up with missing values."""
    stacked = tables[0].new_full((len(tables), max(map(len, tables)), tables[0].shape[1]), torch.nan)
    for place, table in enumerate(tables):
        stacked[place, : len(table)] = table
    return stacked


def train(
    network: Network,
    start: Tensor,
    training: Sequence[Tensor],
    held_out: Sequence[Tensor],
    names: Sequence[str],
    settings: NGMSettings,
    seed: int,
    penalty: Penalty | None = None,
    frozen: Tensor | None = None,
) -> Trained:
    """Train models from ``start`` ``[clients, parameters]``, each on its own rows ``[rows, units]``, NaN for missing.

    The loss of a client is the sum of its features' mean losses, divided by the number of units: the mean squared error
    where all is squared. Missing targets do not count. A client trains until no group of its hidden units has come to a
    smaller loss of ``held_out`` rows for ``patience`` epochs; of every group (of all at once, if they have projections
    in common) the best parameters are kept, and 0 for all that the graph leaves without an effect. What becomes of a
    client does not depend, to float tolerance, on which others are trained with it.

    training, held_out : rows may be twice as long: then the second half is what is to be learned of each unit in place
             of its value, such as another model's prediction, NaN where nothing is.
    frozen : bool ``[parameters]``: what stays as it was in ``start``, bit for bit, means and deviations included.

    Raises
    ------
    DataError
        When a client has no training or no held-out rows, or rows of another length than the schema has units.
    RunError
        When a loss is not finite.
    """
    units = len(network.schema.unit_feature)
    for name, rows, others in zip(names, training, held_out, strict=True):
        if not len(rows) or not len(others):
            raise DataError(f"client '{name}' has {len(rows)} training and {len(others)} held-out rows; it needs both")
        if rows.shape[1:] not in ((units,), (2 * units,)) or others.shape[1:] != rows.shape[1:]:
            raise DataError(
                f"rows of client '{name}' have the shapes {list(rows.shape[1:])} and {list(others.shape[1:])}, but the "
                f"schema has {units} units"
            )
    stacked = stack_rows(training)
    parameters = network.with_moments(network.pruned(start.detach()), stacked[..., :units])
    if frozen is not None:
        parameters = torch.where(frozen, start.detach(), parameters)
    learner = _Learner(network, parameters, penalty, frozen)
    counts = torch.tensor([len(rows) for rows in training])
    with pinned_threads(1):
        steps = _Steps(learner, stacked, counts, shuffling_keys(seed, names), settings)
        return _best(learner, steps, learner.batch(stack_rows(held_out)), names, settings)


def _best(learner: _Learner, steps: _Steps, held_out: _Batch, names: Sequence[str], settings: NGMSettings) -> Trained:
    losses, objective, excess = learner.measure(held_out)
    parameters = learner.parameters.clone()
    judged = (held_out.counts.float() @ learner.membership) > 0
    epochs, run = torch.zeros_like(objective, dtype=torch.int64), torch.zeros(len(names), dtype=torch.int64)
    optimiser = Optimiser(steps.settings, settings.learning_rate, fresh_state(steps.settings, *learner.trained.shape))
    for epoch in range(1, settings.epochs + 1):
        active = epochs.amax(1) + settings.patience >= epoch
        if not bool(active.any()):
            break
        for batch in steps.of_epoch(epoch):
            _step(optimiser, learner, batch)
        run[active] = epoch
        new_losses, new_objective, new_excess = learner.measure(held_out)
        diverged = active & ~new_objective.isfinite().all(1)
        if bool(diverged.any()):
            raise RunError(
                f"training of client '{names[int(diverged.nonzero()[0])]}' diverged in epoch {epoch} at the learning "
                f"rate {settings.learning_rate}: give a smaller learning-rate"
            )
        # The fit decides, but between a model within the tolerance and one beyond it.
        within, new_within = (excess == 0)[:, None], (new_excess == 0)[:, None]
        smaller = (new_within == within) & (new_objective < objective * (1 - MARGIN))
        better = active[:, None] & judged & (smaller | (new_within & ~within))
        # Of what no held-out row tells of, the last epoch is taken in which anything else became better.
        better |= ~judged & better.any(1, keepdim=True)
        epochs = epochs.where(~better, epoch)
        objective = new_objective.where(better, objective)
        losses = new_losses.where(better[:, learner.feature_choice], losses)
        excess = new_excess.where(better.any(1), excess)
        trained = parameters[:, : learner.trained.shape[1]]
        trained.copy_(learner.trained.where(better[:, learner.parameter_group], trained))
    for client in excess.nonzero().flatten().tolist():
        log.warning(
            "the forbidden paths of client '%s' were within the tolerance in no epoch; the best fit is kept, in which "
            "they are stronger by %.3g",
            names[client],
            excess[client],
        )
    return Trained(parameters, epochs, run, losses, excess)


def _step(optimiser: Optimiser, learner: _Learner, batch: _Batch) -> None:
    gradient = learner.gradient(batch)
    idle = (batch.counts == 0).all(1)
    if not bool(idle.any()):
        optimiser.step(learner.trained, gradient)
        return
    # Adam would move clients without any rows in this batch too, by what it remembers.
    moving = [learner.trained, *optimiser.state.values()]
    before = [value.clone() for value in moving]
    optimiser.step(learner.trained, gradient)
    for value, old in zip(moving, before, strict=True):
        value[idle] = old[idle]


@dataclass(frozen=True)
class _Part:
    """Rows that are computed together; ``[clients, units, rows]``.

    observed : 1 for targets that count and 0 for others; None when all do.
    base     : see :meth:`fedgraph.graphical.network.Network.base`.
    """

    inputs: Tensor
    targets: Tensor
    observed: Tensor | None
    base: Tensor | None

    def offset(self, weights: Weights) -> Tensor:
        """What is added to what comes out of the layers, ``[clients, units, rows or 1]``."""
        return weights.offset if self.base is None else weights.offset + self.base


@dataclass(frozen=True)
class _Batch:
    """Rows of a step.

    counts : observed values of each feature in them, ``[clients, features]``.
    """

    parts: list[_Part]
    counts: Tensor


class _Learner:
    """Models, their losses and gradients.

    trained : parameters proper, ``[clients, trainable]``, which an optimiser changes in place.
    """

    def __init__(
        self, network: Network, parameters: Tensor, penalty: Penalty | None, frozen: Tensor | None = None
    ) -> None:
        self.network, self.penalty = network, penalty
        layout = network.layout
        self._layout = layout.part(name for name in layout.names if name not in layout.buffers)
        self.trained = parameters[:, : layout.num_trainable].clone()
        self._fixed = parameters[:, layout.num_trainable :]
        self._frozen = None if frozen is None else frozen[: layout.num_trainable]
        self._buffers = layout.part(layout.buffers).unflatten(self._fixed)
        self.feature_choice = network.feature_choice
        self.membership = functional.one_hot(network.feature_choice, network.choices).float()
        self.parameter_group = _parameter_group(network, self._layout)
        self._units = len(network.schema.unit_feature)

    @property
    def parameters(self) -> Tensor:
        """Models as they are now, with their buffers."""
        return torch.cat([self.trained, self._fixed], 1)

    def batch(self, rows: Tensor) -> _Batch:
        """Rows ``[clients, rows, units]`` as they are learned from."""
        parts = []
        counts = torch.zeros(len(rows), len(self.network.first_units), dtype=torch.int64)
        for some in rows.split(ROWS, 1):
            both = some.transpose(1, 2).contiguous()
            # The same where there is only one half.
            units, wanted = both[:, : self._units], both[:, -self._units :]
            counted = self.network.learned_from(units) & ~wanted.isnan()
            counts += counted.index_select(1, self.network.first_units).sum(2)
            observed = None if bool(counted.all()) else counted.float()
            targets = wanted if observed is None else wanted.nan_to_num(0.0)
            base = self.network.base(self._buffers, units)
            parts.append(_Part(self.network.inputs(self._buffers, units), targets, observed, base))
        return _Batch(parts, counts)

    def gradient(self, batch: _Batch) -> Tensor:
        """Of the loss and the penalty, ``[clients, trainable]``."""
        parameters = self.trained.detach().requires_grad_()
        state = self._state(parameters)
        weights = self.network.learned_weights(state)
        made = weights.tensors
        sums = [torch.zeros_like(value) for value in made]
        counts = batch.counts.clamp(min=1)[:, self.network.schema.unit_feature]
        slopes = self.network.heads.slopes / self._units / counts
        with torch.no_grad():
            for part in batch.parts:
                found, inputs = weights.layers.forward(part.inputs)
                gradient = self._errors(found, weights, part).mul_(slopes[:, :, None])
                of_weights, _ = weights.layers.backward(inputs, self.network.of_found(gradient))
                torch._foreach_add_(sums, [*of_weights, gradient.sum(2, keepdim=True)])
        total = sum(((value * gradient).sum() for value, gradient in zip(made, sums, strict=True)), torch.zeros(()))
        if self.penalty is not None:
            total = total + self.penalty(self.network, state).sum()
        gradient = torch.autograd.grad(total, parameters)[0]
        # Adam does not move what never had a gradient, not by a bit.
        return gradient if self._frozen is None else gradient.masked_fill_(self._frozen, 0.0)

    @torch.no_grad()
    def measure(self, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Mean losses ``[clients, features]``, what models are chosen by ``[clients, choices]``, and the excess."""
        state = self._state(self.trained)
        weights = self.network.learned_weights(state)
        losses = torch.stack([self._losses(weights, part) for part in batch.parts]).sum(0)
        losses /= batch.counts.clamp(min=1)
        objective = losses @ self.membership / self._units
        if self.penalty is None:
            return losses, objective, losses.new_zeros(len(losses))
        if self.penalty.chooses:
            penalty = self.penalty(self.network, state)
            objective += penalty if penalty.shape == objective.shape else penalty.sum(1, keepdim=True)
        return losses, objective, self.penalty.excess(self.network, state)

    def _state(self, trained: Tensor) -> dict[str, Tensor]:
        return {**self._layout.unflatten(trained), **self._buffers}

    def _errors(self, found: Tensor, weights: Weights, part: _Part) -> Tensor:
        """How far predictions are too large, 0 for targets that do not count, ``[clients, units, rows]``."""
        predictions = self.network.heads.predictions(self.network.outputs(found, part.offset(weights)))
        errors = predictions - part.targets
        return errors if part.observed is None else errors.mul_(part.observed)

    def _losses(self, weights: Weights, part: _Part) -> Tensor:
        """Sums over a part's rows of the losses, ``[clients, features]``."""
        outputs = self.network.outputs(weights.layers(part.inputs), part.offset(weights))
        return self.network.heads.losses(outputs, part.targets, part.observed)


class _Steps:
    """The minibatches of every epoch; ``settings`` as an optimiser takes them."""

    def __init__(self, learner: _Learner, rows: Tensor, counts: Tensor, keys: Tensor, settings: NGMSettings) -> None:
        size = settings.batch_size or rows.shape[1]
        self.settings = TrainSettings(
            optimizer="adam", learning_rate=settings.learning_rate, batch_size=size, local_epochs=1
        )
        self._learner, self._counts, self._keys = learner, counts, keys
        self._whole = learner.batch(rows) if size >= rows.shape[1] else None
        # The last row is one that nobody has: places of a minibatch that nobody fills point at it.
        self._rows = functional.pad(rows, (0, 0, 0, 1), value=torch.nan)

    def of_epoch(self, epoch: int) -> Iterator[_Batch]:
        """Every row of every client once; clients with fewer rows than others have none in the last minibatches."""
        if self._whole is not None:
            yield self._whole
            return
        clients = torch.arange(len(self._rows))[:, None]
        for places in training_batches(self._keys, self._counts, self.settings, epoch):
            yield self._learner.batch(self._rows[clients, places])


def _parameter_group(network: Network, layout: Layout) -> Tensor:
    """The group of hidden units that every parameter belongs to, or 0 where all are chosen at once, int64
    ``[parameters]``."""
    if network.choices == 1:
        return torch.zeros(layout.num_parameters, dtype=torch.int64)
    of_group = torch.arange(network.groups)
    parts = []
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
        owner = network.unit_group if name.startswith("head.") else of_group
        parts.append(owner.repeat_interleave(size // shape[0]))
    return torch.cat(parts)
