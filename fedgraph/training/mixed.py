"""Clients of one node with different architectures: one cohort for each, with the interface of a single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedgraph.data import CohortData, DataSource, Split, SplitName
from fedgraph.models import Architectures, Batch, ModelChoice, build
from fedgraph.support.errors import RunError
from fedgraph.training.cohort import EVALUATION_BATCH, Cohort, GradientTerm, TrainResult
from fedgraph.training.optimisers import check_state, fresh_state
from fedgraph.training.settings import TrainSettings


class MixedCohort:
    """The clients of a node whose experiment has several architectures.

    Its interface is that of :class:`fedgraph.training.cohort.Cohort`. Models are the rows of a matrix ``[clients,
    width]`` as :class:`Architectures` describes it: every client's own parameters, then zeros. Training leaves the
    zeros unchanged. Each group of clients with the same architecture is a cohort of its own, and its results are
    bitwise identical to those of that cohort.

    model : the architecture of each client; ``model.layout`` describes a whole row.
    data  : the data of all clients, in the order of their rows.
    """

    def __init__(
        self, model: Architectures, group_data: Sequence[CohortData], settings: TrainSettings, seed: int
    ) -> None:
        """Create the cohort of each of ``model.groups`` with its data, ``group_data`` in that order."""
        self.model = model
        self.settings = settings
        self.seed = seed
        self._rows = [group.positions for group in model.groups]
        self._cohorts = [
            Cohort(group.model, data, settings, seed) for group, data in zip(model.groups, group_data, strict=True)
        ]
        self.data = join_data(model.names, self._rows, group_data)

    def train(
        self,
        parameters: Tensor,
        round: int,
        gradient_term: GradientTerm | None = None,
        optimizer_state: Mapping[str, Tensor] | None = None,
    ) -> TrainResult:
        """Train every client from its row of ``parameters`` ``[clients, width]``, as ``Cohort.train`` does.

        ``gradient_term`` gets a block of clients of one architecture: parameters ``[block, trainable]`` of that
        architecture, and their rows in the node. Optimiser moments are ``[clients, width]``, padded with zeros like the
        models.
        """
        self._check(parameters)
        keeps = self.settings.keep_optimizer
        whole_state = fresh_state(self.settings, len(self.model.names), self.model.width) if keeps else {}
        if optimizer_state is not None and keeps:
            check_state(dict(optimizer_state), whole_state)
        trained = torch.zeros(len(self.model.names), self.model.width)
        results = []
        for rows, cohort in zip(self._rows, self._cohorts, strict=True):
            own = cohort.model.layout.num_parameters
            state = None
            if optimizer_state is not None and keeps:
                needed = fresh_state(self.settings, 1, cohort.model.layout.num_trainable)
                state = {name: optimizer_state[name][_corner(rows, value)] for name, value in needed.items()}
            result = cohort.train(parameters[rows, :own], round, _for_rows(gradient_term, rows), state)
            trained[rows, :own] = result.parameters
            for name, value in result.optimizer_state.items():
                whole_state[name][_corner(rows, value)] = value
            results.append(result)
        return TrainResult(
            parameters=trained,
            loss=self._joined([result.loss for result in results]),
            steps=self._joined([result.steps for result in results]),
            num_examples=self._joined([result.num_examples for result in results]),
            optimizer_state=whole_state,
        )

    def evaluate(
        self,
        parameters: Tensor,
        split: SplitName,
        horizons: Sequence[int] = (),
        batch_size: int = EVALUATION_BATCH,
        missing_as: float | None = None,
    ) -> dict[str, Tensor]:
        """Compute metrics of all clients, ``{name: [clients]}``, as ``Cohort.evaluate``; NaN where a group has none."""
        self._check(parameters)
        results = [
            cohort.evaluate(
                parameters[rows, : cohort.model.layout.num_parameters], split, horizons, batch_size, missing_as
            )
            for rows, cohort in zip(self._rows, self._cohorts, strict=True)
        ]
        names = dict.fromkeys(name for result in results for name in result)
        missing = [torch.full((len(rows),), torch.nan, dtype=torch.float64) for rows in self._rows]
        return {
            name: self._joined([result.get(name, nan) for result, nan in zip(results, missing, strict=True)])
            for name in names
        }

    def predict(self, parameters: Tensor, split: SplitName, batch_size: int = EVALUATION_BATCH) -> Tensor:
        """Return outputs ``[clients, examples, *output_shape]`` as ``Cohort.predict``, padded with NaN."""
        self._check(parameters)
        outputs = [
            cohort.predict(parameters[rows, : cohort.model.layout.num_parameters], split, batch_size)
            for rows, cohort in zip(self._rows, self._cohorts, strict=True)
        ]
        longest = max(output.shape[1] for output in outputs)
        whole = torch.full((len(self.model.names), longest, *self.data.task.output_shape), torch.nan)
        for rows, output in zip(self._rows, outputs, strict=True):
            whole[rows, : output.shape[1]] = output
        return whole

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return _in_order(self._rows, parts)

    def _check(self, parameters: Tensor) -> None:
        wanted = (len(self.model.names), self.model.width)
        if tuple(parameters.shape) != wanted:
            raise RunError(
                f"the parameters have the shape {tuple(parameters.shape)}, but {wanted[0]} clients, whose largest "
                f"model has {wanted[1]} parameters, need {wanted}"
            )


AnyCohort = Cohort | MixedCohort
"""The argument of a client class: all clients of its request, whatever their architectures."""


def load_cohort(
    choice: ModelChoice, source: DataSource, names: Sequence[str], settings: TrainSettings, seed: int
) -> AnyCohort:
    """Load the clients ``names`` with their data and models.

    Returns
    -------
    Cohort or MixedCohort
        A plain cohort where the experiment has one architecture.

    Raises
    ------
    DataError
        As ``source.load``.
    ExperimentError
        When a model does not fit the data.
    """
    if not choice.is_mixed:
        data = source.load(names)
        return Cohort(build(choice.tables[0], data.task), data, settings, seed)
    numbers = choice.numbers(names)
    data_of = {
        number: source.load([name for name, own in zip(names, numbers, strict=True) if own == number])
        for number in sorted(set(numbers))
    }
    architectures = Architectures.of(choice, next(iter(data_of.values())).task, names)
    return MixedCohort(architectures, [data_of[group.number] for group in architectures.groups], settings, seed)


class JoinedSplit:
    """One split of several groups of clients, with the clients in the order of the node's rows.

    parts : for each group the rows of its clients, int64 ``[members]``, ascending, and its split.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Split]]) -> None:
        self._parts = parts
        self.num_examples = _in_order([rows for rows, _ in parts], [split.num_examples for _, split in parts])

    def batch(self, indices: Tensor) -> Batch:
        """See :class:`fedgraph.data.base.Split`."""
        wanted = [(rows[rows < len(indices)], split) for rows, split in self._parts]
        wanted = [(rows, split) for rows, split in wanted if len(rows)]
        batches = [split.batch(indices[rows]) for rows, split in wanted]
        return Batch(*(_in_order([rows for rows, _ in wanted], parts) for parts in zip(*batches, strict=True)))

    def select(self, clients: slice | Tensor) -> JoinedSplit:
        """See :class:`fedgraph.data.base.Split`; clients of several groups are copied."""
        chosen = torch.arange(len(self.num_examples))[clients]
        parts = []
        for rows, split in self._parts:
            place = torch.full((len(self.num_examples),), -1)
            place[rows] = torch.arange(len(rows))
            members = place[chosen]
            if bool((members >= 0).any()):
                parts.append(((members >= 0).nonzero().flatten(), split.select(members[members >= 0])))
        return JoinedSplit(parts)

    def to(self, device: torch.device) -> JoinedSplit:
        """See :class:`fedgraph.data.base.Split`."""
        return JoinedSplit([(rows, split.to(device)) for rows, split in self._parts])


def join_data(names: tuple[str, ...], rows: Sequence[Tensor], parts: Sequence[CohortData]) -> CohortData:
    """Join the data of several groups of clients to that of ``names``; ``rows`` are those of each group, ascending."""
    counts = [part.label_counts for part in parts]
    known = [each for each in counts if each is not None]
    moments = [part.moments for part in parts if part.moments is not None]
    group_of = {
        name: group for part in parts if part.groups for name, group in zip(part.names, part.groups, strict=True)
    }
    untrained = {name for part in parts for name in part.untrained}
    return CohortData(
        names=names,
        task=parts[0].task,
        splits={
            split: JoinedSplit([(own, part.splits[split]) for own, part in zip(rows, parts, strict=True)])
            for split in parts[0].splits
        },
        mean=_in_order(rows, [part.mean for part in parts]),
        std=_in_order(rows, [part.std for part in parts]),
        label_counts=_in_order(rows, known) if len(known) == len(counts) else None,
        augment=parts[0].augment,
        groups=tuple(group_of[name] for name in names) if len(group_of) == len(names) else None,
        untrained=tuple(name for name in names if name in untrained),
        moments=_in_order(rows, moments) if len(moments) == len(parts) else None,
    )


def _in_order(rows: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Merge tensors ``[members, ...]`` of groups at ``rows`` into ``[clients, ...]``."""
    return torch.cat(list(parts))[torch.cat(list(rows)).argsort()]


def _corner(rows: Tensor, value: Tensor) -> tuple[Tensor | slice, ...]:
    """Return the index of ``value`` ``[members, ...]`` in a wider tensor: ``rows``, and as many columns as it has."""
    return (rows, *(slice(size) for size in value.shape[1:]))


def _for_rows(term: GradientTerm | None, rows: Tensor) -> GradientTerm | None:
    """Return a gradient term for the clients of a group, which maps them to their rows in the node."""
    if term is None:
        return None

    def of_group(parameters: Tensor, clients: Any, batch_weight: Tensor) -> Tensor:
        chosen: Any = rows[clients.cpu() if isinstance(clients, Tensor) else clients]
        return term(parameters, chosen, batch_weight)

    return of_group
