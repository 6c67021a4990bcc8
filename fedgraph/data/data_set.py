"""A custom data set, as a class: ``[data] set = "package.module:Class"``."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from pydantic import create_model
from torch import Tensor

from fedgraph.data.base import SPLITS, CohortData, SplitName, check_clients
from fedgraph.data.examples import ExampleSplit, class_counts, row_table
from fedgraph.data.own import OwnData
from fedgraph.data.preprocessing import InputScale, Preprocessing, stacked
from fedgraph.data.tensor_form import MaskedSplit, TensorForm, checked_targets, empty_targets
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, counted
from fedgraph.support.plugins import a_class, load_object
from fedgraph.support.settings import Configured, S, Settings

if TYPE_CHECKING:
    from fedgraph.graph import ClientGraph

Examples = Mapping[SplitName, tuple[Tensor, Tensor]]
"""Inputs ``[examples, *input_shape]`` and targets of each split; splits that are left out have no examples."""

_KINDS = get_args(TaskSpec.__annotations__["kind"]) or ("forecast", "classification", "regression")


class DataSet(Configured[S]):
    """Base class of data sets, subscripted by the settings that are the other keys of ``[data]``.

    A class defines the clients, the task, and the examples of each client::

        class Wards(DataSet[WardsSettings]):
            def client_names(self): return ["mercy", "county"]
            def task(self): return TaskSpec("regression", (3,), (1,), features=("age", "dose", "weight"), unit="days")
            def examples(self, client): return {"train": (inputs, targets), "test": (more_inputs, more_targets)}

    Inputs and targets are in their own units; ``input_scale`` and ``target_scale`` define how they are scaled, also for
    new data.

    Parameters
    ----------
    settings : Settings
        The table ``[data]``, validated: of the class in brackets, with the key ``set`` added.
    data_dir : Path
        Folder in which the node's data lie.
    own : OwnData, optional
        A node's own file (node config ``data``) and its clients.
    """

    def __init__(self, settings: S, data_dir: Path, own: OwnData | None = None) -> None:
        self.settings, self.data_dir, self.own = settings, data_dir, own

    @abstractmethod
    def client_names(self) -> list[str]:
        """Return the names of all clients in a stable order; for a node's own data, those of the node."""

    @abstractmethod
    def task(self) -> TaskSpec:
        """Return the task, the same for all clients: a forecast, a classification or a regression."""

    @abstractmethod
    def examples(self, client: str) -> Examples:
        """Return a client's examples: inputs ``[examples, *input_shape]`` and targets of each split.

        Targets are ``[examples]`` whole numbers from 0 for classes, ``[examples]`` or ``[examples, 1]`` numbers, or
        ``[examples, steps]`` readings, NaN where one is missing. Missing inputs may be NaN if ``input_scale`` has a
        value to fill them with.
        """

    def input_scale(self, client: str) -> InputScale:
        """Return the scale of a client's inputs; by default inputs are unscaled, and 0 where missing."""
        zero = torch.zeros(1)
        return InputScale(zero, torch.ones(1), zero)

    def target_scale(self, client: str) -> tuple[float, float]:
        """Return the mean and deviation by which a client's targets are scaled; by default 0 and 1."""
        return 0.0, 1.0

    def given_graph(self) -> ClientGraph | None:
        """Return the client graph of the data, for ``[graph] source = "data"``; by default none."""
        return None

    def describe(self) -> str:
        """Return a phrase for reports: which data, and which part of it."""
        return f"{type(self).__name__}, {counted(len(self.client_names()), 'client')}"

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the clients ``names``, scaled.

        Raises DataError for unknown clients, and for examples that do not fit the task. The message names client and
        split.
        """
        task = self._checked_task()
        check_clients(self._name, names, self.client_names())
        inputs, targets = [torch.zeros(0, *task.input_shape)], [empty_targets(task)]
        rows: dict[SplitName, list[np.ndarray]] = {split: [] for split in SPLITS}
        scales, first = [], 0
        for name in names:
            own = self._checked_examples(name, task)
            scale, (mean, std) = self.input_scale(name), self.target_scale(name)
            if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
                raise DataError(
                    f"{self._name}.target_scale('{name}') returned ({mean}, {std}): it must be a mean and a deviation "
                    "above 0, of the targets that are not missing",
                    quoted=f"({mean}, {std})",
                )
            parts = {"centre": scale.centre, "spread": scale.spread, "fill": scale.fill, "mean": mean, "std": std}
            scales.append({key: torch.as_tensor(value, dtype=torch.float32) for key, value in parts.items()})
            for split in SPLITS:
                x, y = own[split]
                inputs.append(Preprocessing.input_scale(scales[-1]).inputs(x.float()))
                targets.append(y if task.kind == "classification" else (y - mean) / std)
                rows[split].append(first + np.arange(len(x)))
                first += len(x)
        storage, goal = torch.cat(inputs), torch.cat(targets)
        kind = MaskedSplit if goal.is_floating_point() and bool(goal.isnan().any()) else ExampleSplit
        counts = None
        if task.kind == "classification":
            counts = class_counts(goal, rows["train"], task.output_shape[0])
        every = stacked(scales)
        return CohortData(
            names=tuple(names),
            task=task,
            splits={split: kind(storage, goal, row_table(parts)) for split, parts in rows.items()},
            mean=every["mean"],
            std=every["std"],
            label_counts=counts,
            preprocessing=Preprocessing(TensorForm(task=task), tuple(names), every),
        )

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _checked_task(self) -> TaskSpec:
        task = self.task()
        if not isinstance(task, TaskSpec) or task.kind not in _KINDS:
            raise DataError(f"{self._name}.task returned {task!r}; it is a TaskSpec of kind {' or '.join(_KINDS)}")
        return task

    def _checked_examples(self, client: str, task: TaskSpec) -> dict[SplitName, tuple[Tensor, Tensor]]:
        """Return all splits of a client. Raises DataError naming client and split if they do not fit the task."""
        examples = self.examples(client)
        if not isinstance(examples, Mapping) or set(examples) - set(SPLITS) or "train" not in examples:
            returned = sorted(examples) if isinstance(examples, Mapping) else type(examples).__name__
            raise DataError(
                f"{self._name}.examples('{client}') returned {returned}; it must be a dict with inputs and targets of "
                "'train' and, optionally, 'validation' and 'test'"
            )
        found: dict[SplitName, tuple[Tensor, Tensor]] = {}
        for split in SPLITS:
            pair = examples.get(split, (torch.zeros(0, *task.input_shape), empty_targets(task)))
            try:
                x, y = (torch.as_tensor(part) for part in pair)
            except (TypeError, ValueError) as error:
                place = f"{self._name}, client '{client}', {split}"
                raise DataError(f"{place}: no tensors: {error}", quoted=str(error)) from None
            where = f"{self._name}, client '{client}', {split}:"
            if tuple(x.shape[1:]) != task.input_shape:
                raise DataError(
                    f"{where} inputs have shape {list(x.shape)}, and the task says [examples, "
                    f"{', '.join(map(str, task.input_shape))}]"
                )
            if x.is_floating_point() and bool(x.isinf().any()):
                raise DataError(f"{where} an input is infinite")
            found[split] = x, checked_targets(where, x, y, task)
        return found


def custom_class(path: str) -> type[Any]:
    """Load a data set class by its dotted path. Raises ExperimentError for anything else."""
    found: type[Any] = load_object(path, "[data] set", _a_data_set)
    return found


def _a_data_set(found: Any) -> str:
    """Demand a class with the functions of a data set."""
    problem = a_class("client_names", "load", "describe", "given_graph")(found)
    advice = "derive it from fedgraph.data.DataSet, as `fedgraph new dataset NAME` writes it"
    return problem and f"is not a data set class ({problem}): {advice}"


def custom_settings(path: str) -> type[Settings]:
    """Return the settings class of a custom data set, with the key ``set`` added."""
    return _with_set(getattr(custom_class(path), "settings_type", Settings))


@cache
def _with_set(kind: type[Settings]) -> type[Settings]:
    made: type[Settings] = create_model(kind.__name__, __base__=kind, set=(str, ...))
    made.__doc__ = kind.__doc__
    return made
