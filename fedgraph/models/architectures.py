"""The architectures of the clients: one for all, or groups of clients with architectures of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedgraph.models.base import StackedModel, TaskSpec
from fedgraph.models.choice import ModelChoice
from fedgraph.models.parameters import Layout
from fedgraph.models.registry import build
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator


def initial_model(model: StackedModel, seed: int) -> Tensor:
    """Draw the initial model of a run, the same for every client.

    Returns
    -------
    Tensor
        ``[parameters]``, determined by ``model`` and ``seed``.
    """
    return model.initial(generator(seed, "initial model"))


@dataclass(frozen=True, eq=False)
class Group:
    """Clients that share an architecture.

    Attributes
    ----------
    number : int
        Position of the architecture among those of the experiment.
    model : StackedModel
        The architecture.
    positions : Tensor
        Rows of its clients, int64 ``[members]``, ascending.
    """

    number: int
    model: StackedModel
    positions: Tensor

    @property
    def size(self) -> int:
        """Number of parameters of one client's model, buffers included."""
        return self.model.layout.num_parameters


@dataclass(frozen=True, eq=False)
class Architectures:
    """The models of some clients as the rows of one matrix ``[clients, width]``.

    A row contains the client's own parameters, padded with zeros to the size of the largest architecture of the
    experiment. With one architecture there is no padding, and the matrix is the usual ``[clients, parameters]``.
    Whatever is computed from whole rows (checkpoints, the hash of a run's weights) includes the zeros.

    Attributes
    ----------
    names : tuple of str
        The clients, in the order of the rows.
    models : tuple of StackedModel
        Every architecture of the experiment, whether one of these clients has it or not, so that nodes with different
        clients agree on ``width``.
    numbers : tuple of int
        Position of each client's architecture in ``models``.
    """

    names: tuple[str, ...]
    models: tuple[StackedModel, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, choice: ModelChoice, task: TaskSpec, names: Sequence[str]) -> Architectures:
        """Build the architectures that an experiment chooses for the clients ``names``.

        Raises
        ------
        ExperimentError
            For a model that does not fit the task.
        """
        models = []
        for table, place in zip(choice.tables, choice.places, strict=True):
            try:
                models.append(build(table, task))
            except ExperimentError as error:
                raise (error if place == "[model]" else ExperimentError(f"{place}: {error}")) from None
        return cls(tuple(names), tuple(models), choice.numbers(names))

    @property
    def is_mixed(self) -> bool:
        """Whether the experiment has more than one architecture."""
        return len(self.models) > 1

    @cached_property
    def width(self) -> int:
        """Columns of the matrix: the most parameters of any architecture."""
        return max(model.layout.num_parameters for model in self.models)

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of one row; with several architectures the one entry ``parameters`` ``[width]``."""
        return Layout(("parameters",), ((self.width,),)) if self.is_mixed else self.models[0].layout

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The clients by architecture, without architectures that none of them has."""
        numbers = torch.tensor(self.numbers, dtype=torch.int64)
        positions = ((numbers == number).nonzero().flatten() for number in range(len(self.models)))
        return tuple(
            Group(number, model, rows)
            for number, (model, rows) in enumerate(zip(self.models, positions, strict=True))
            if len(rows)
        )

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Draw an initial model of every architecture in use, by tensor; :meth:`repeated` turns it into rows.

        Tensors are named as in the model, prefixed with the number of the architecture if there are several
        (``1/bias``). Every architecture draws from the same key, as it would if it were the only one.
        """
        return {
            self._key(group, name): tensor
            for group in self.groups
            for name, tensor in group.model.layout.row_state(initial_model(group.model, seed)).items()
        }

    def repeated(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """Repeat one model per architecture, named as by :meth:`initial`, as rows of clients, ``[clients, width]``."""
        rows = torch.zeros(len(self.names), self.width)
        for group in self.groups:
            layout = group.model.layout
            rows[group.positions, : group.size] = layout.row(
                {name: arrays[self._key(group, name)] for name in layout.names}
            )
        return rows

    def stacked(self, rows: Tensor) -> dict[str, Tensor]:
        """Convert rows ``[clients, width]`` to named tensors ``[members, *shape]``, named as by :meth:`initial`."""
        return {
            self._key(group, name): tensor
            for group in self.groups
            for name, tensor in group.model.layout.unflatten(rows[group.positions, : group.size]).items()
        }

    def padding_violations(self, names: Sequence[str], rows: Tensor) -> dict[str, str]:
        """Return the clients among ``names`` whose row is not zero after their model's parameters, with the reason.

        Such a row was made for another model, so nothing in it can be trusted.
        """
        number_of = dict(zip(self.names, self.numbers, strict=True))
        problems = {}
        for group in self.groups:
            members = [position for position, name in enumerate(names) if number_of[name] == group.number]
            spilled = rows[members, group.size :].any(dim=1)
            for position in torch.tensor(members, dtype=torch.int64)[spilled].tolist():
                problems[names[position]] = (
                    f"its parameters go on behind the {group.size} that its model has, where zeros are expected"
                )
        return problems

    def _key(self, group: Group, name: str) -> str:
        return f"{group.number}/{name}" if self.is_mixed else name
