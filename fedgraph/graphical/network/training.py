"""Training of graphical networks of many clients at once, with early stopping by the fit to held-out rows.

Separate from :class:`fedgraph.training.cohort.Cohort`, because losses differ by kind of feature, a penalty that
enforces the graph is part of every step, every group of hidden units has its own best epoch, and inputs are the
targets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.graphical.network.kernel import CompiledRows, suits
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.rows import NetworkRows, Rows, stack_rows
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.models import Layout
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.threads import pinned_threads
from fedgraph.training import Optimiser, TrainSettings, fresh_state, shuffling_keys, training_batches

log = logging.getLogger("fedgraph")

MARGIN = 1e-4
"""Relative decrease for a loss to count as better."""


class Penalty(Protocol):
    """A penalty that enforces a graph, or makes a network learn one, in addition to its architecture."""

    @property
    def chooses(self) -> bool:
        """Whether the best models minimise the loss including the penalty, not the fit alone."""

    def __call__(self, network: Network, state: dict[str, Tensor]) -> Tensor:
        """Return the penalty of each group of hidden units, ``[clients, groups]``."""

    def excess(self, network: Network, state: dict[str, Tensor]) -> Tensor:
        """Return by how much models exceed the tolerance, ``[clients]``, at least 0."""


@dataclass(frozen=True)
class Trained:
    """Models with the parameters of their best epochs.

    parameters : ``[clients, parameters]``.
    epochs     : best epochs, int64 ``[clients, groups]``; 0: before training.
    run        : number of epochs that each client has trained, int64 ``[clients]``.
    losses     : mean losses of held-out rows, ``[clients, features]``; 0 for features that are not learned.
    excess     : how far they exceed the tolerance of the penalty, ``[clients]``.
    """

    parameters: Tensor
    epochs: Tensor
    run: Tensor
    losses: Tensor
    excess: Tensor


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
    where all losses are squared. Missing targets do not count. A client trains until no group of its hidden units has
    reached a smaller loss of ``held_out`` rows for ``patience`` epochs; of every group the best parameters are kept,
    and 0 for all that the graph leaves without an effect. The result of a client does not depend, to float tolerance,
    on the other clients. Raises DataError when a client has no
    training or no held-out rows, or rows of another length than the schema has units. Raises RunError when a loss is
    not finite.

    Parameters
    ----------
    training, held_out : sequence of Tensor
        Rows may be twice as long: then the second half contains the targets of the units in place of their values, such
        as another model's predictions, NaN where there are none.
    frozen : Tensor, optional
        Bool ``[parameters]``: the part that stays bitwise as in ``start``, means and deviations included.
    """
    units = len(network.schema.unit_feature)
    for name, rows, others in zip(names, training, held_out, strict=True):
        if not len(rows) or not len(others):
            raise DataError(
                f"client '{name}' has {len(rows)} training and {len(others)} held-out rows; it needs both: "
                "more rows, or other shares"
            )
        if rows.shape[1:] not in ((units,), (2 * units,)) or others.shape[1:] != rows.shape[1:]:
            raise DataError(
                f"rows of client '{name}' have the shapes {list(rows.shape[1:])} and {list(others.shape[1:])}, but the "
                f"schema has {units} units"
            )
    with pinned_threads(1):
        stacked = stack_rows(training)
        parameters = network.with_moments(network.pruned(start.detach()), stacked[..., :units])
        if frozen is not None:
            parameters = torch.where(frozen, start.detach(), parameters)
        learner = _Learner(network, parameters, penalty, frozen)
        lesson = _Lesson(learner, training, shuffling_keys(seed, names), settings)
        return _best(learner, lesson, learner.rows(held_out), names, settings)


def _best(learner: _Learner, lesson: _Lesson, held_out: Rows, names: Sequence[str], settings: NGMSettings) -> Trained:
    losses, objective, excess = learner.measure(held_out)
    parameters = learner.parameters.clone()
    judged = (held_out.counts.float() @ learner.membership) > 0
    epochs, run = torch.zeros_like(objective, dtype=torch.int64), torch.zeros(len(names), dtype=torch.int64)
    for epoch in range(1, settings.epochs + 1):
        active = epochs.amax(1) + settings.patience >= epoch
        if not bool(active.any()):
            break
        lesson.take(epoch, active)
        run[active] = epoch
        new_losses, new_objective, new_excess = learner.measure(held_out)
        diverged = active & ~new_objective.isfinite().all(1)
        if bool(diverged.any()):
            raise RunError(
                f"training of client '{names[int(diverged.nonzero()[0])]}' diverged in epoch {epoch} at the learning "
                f"rate {settings.learning_rate}: use a smaller learning-rate"
            )
        # Compare by the fit, except a model within the tolerance with one beyond it.
        within, new_within = (excess == 0)[:, None], (new_excess == 0)[:, None]
        smaller = (new_within == within) & (new_objective < objective * (1 - MARGIN))
        better = active[:, None] & judged & (smaller | (new_within & ~within))
        # Groups without held-out targets get the last epoch in which another one improved.
        better |= ~judged & better.any(1, keepdim=True)
        epochs = epochs.where(~better, epoch)
        objective = new_objective.where(better, objective)
        losses = new_losses.where(better[:, learner.network.feature_group], losses)
        excess = new_excess.where(better.any(1), excess)
        trained = parameters[:, : learner.trained.shape[1]]
        trained.copy_(learner.trained.where(better[:, learner.parameter_group], trained))
    for client in excess.nonzero().flatten().tolist():
        log.warning(
            "the forbidden paths of client '%s' exceeded the tolerance in all epochs; the best fit is kept, in which "
            "they exceed it by %.3g",
            names[client],
            excess[client],
        )
    return Trained(parameters, epochs, run, losses, excess)


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
        self.membership = functional.one_hot(network.feature_group, network.groups).float()
        self.parameter_group = _parameter_group(network, self._layout)

    @property
    def parameters(self) -> Tensor:
        """The current models, with their buffers."""
        return torch.cat([self.trained, self._fixed], 1)

    def rows(self, tables: Sequence[Tensor]) -> CompiledRows | NetworkRows:
        """Return each client's rows, computed in C++ where that is possible."""
        kind = CompiledRows if suits(self.network, self.trained) else NetworkRows
        return kind(self.network, self._buffers, tables)

    def step(self, optimiser: Optimiser, rows: Rows, places: Tensor | None) -> None:
        """Step along the gradient of the loss of a minibatch, and of the penalty."""
        gradient, idle = rows.gradient(self.trained, places)
        if self.penalty is not None:
            parameters = self.trained.detach().requires_grad_()
            penalty = self.penalty(self.network, self._state(parameters)).sum()
            gradient += torch.autograd.grad(penalty, parameters)[0]
        if self._frozen is not None:
            # Adam does not change parameters that never had a gradient.
            gradient.masked_fill_(self._frozen, 0.0)
        if not bool(idle.any()):
            optimiser.step(self.trained, gradient)
            return
        # By its moments, Adam would also move clients without any rows in this batch.
        moving = [self.trained, *optimiser.state.values()]
        before = [value.clone() for value in moving]
        optimiser.step(self.trained, gradient)
        for value, old in zip(moving, before, strict=True):
            value[idle] = old[idle]

    @torch.no_grad()
    def measure(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean losses ``[clients, features]``, the criteria of choice ``[clients, groups]``, and excess."""
        losses = rows.losses(self.trained)
        objective = losses @ self.membership / len(self.network.schema.unit_feature)
        if self.penalty is None:
            return losses, objective, losses.new_zeros(len(losses))
        state = self._state(self.trained)
        if self.penalty.chooses:
            penalty = self.penalty(self.network, state)
            objective += penalty if penalty.shape == objective.shape else penalty.sum(1, keepdim=True)
        return losses, objective, self.penalty.excess(self.network, state)

    @property
    def by_loss_alone(self) -> bool:
        """Whether only the loss affects parameters, and all of them are trained."""
        return self.penalty is None and self._frozen is None

    def _state(self, trained: Tensor) -> dict[str, Tensor]:
        return {**self._layout.unflatten(trained), **self._buffers}


class _Lesson:
    """Training rows, all of which are visited once in every epoch."""

    def __init__(self, learner: _Learner, tables: Sequence[Tensor], keys: Tensor, settings: NGMSettings) -> None:
        self._counts = torch.tensor([len(rows) for rows in tables])
        most = int(self._counts.max())
        self._at_once = settings.batch_size is None or settings.batch_size >= most
        self._settings = TrainSettings(
            optimizer="adam",
            learning_rate=settings.learning_rate,
            batch_size=min(settings.batch_size or most, most),
            local_epochs=1,
        )
        state = fresh_state(self._settings, *learner.trained.shape)
        self._optimiser = Optimiser(self._settings, settings.learning_rate, state)
        self._learner, self._keys = learner, keys
        self._rows = learner.rows(tables)

    def take(self, epoch: int, active: Tensor) -> None:
        """Train the models of clients that are ``active``, bool ``[clients]``; others are undefined afterwards.

        Clients with fewer rows than others have none in the last minibatches.
        """
        learner, rows = self._learner, self._rows
        places = None if self._at_once else self._minibatches(epoch)
        if isinstance(rows, CompiledRows) and learner.by_loss_alone:
            rows.train(self._optimiser, learner.trained, places, active)
            return
        for some in [None] if places is None else places:
            learner.step(self._optimiser, rows, some)

    def _minibatches(self, epoch: int) -> Tensor:
        """Return places of rows, int64 ``[steps, clients, batch]``.

        All rows of a client that fit into one minibatch are in their own order, as they are where no client has more: a
        client's bits do not depend on the others.
        """
        places = training_batches(self._keys, self._counts, self._settings, epoch)
        order = torch.arange(places.shape[2])
        in_order = torch.where(order < self._counts[:, None], order, -1)
        places[0] = in_order.where(self._counts[:, None] <= len(order), places[0])
        return places


def _parameter_group(network: Network, layout: Layout) -> Tensor:
    """Return each parameter's group of hidden units, int64 ``[parameters]``."""
    of_group = torch.arange(network.groups)
    parts = []
    for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
        owner = network.unit_group if name.startswith("head.") else of_group
        parts.append(owner.repeat_interleave(size // shape[0]))
    return torch.cat(parts)
