"""Preprocessing of plain tensors: of a custom data set, and of new arrays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.base import CohortData
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.own import UNNAMED
from fedgraph.data.preprocessing import Form, NewData, Preprocessing, label_answers
from fedgraph.data.preprocessing.preprocessing import Scales
from fedgraph.models import Batch, TaskSpec
from fedgraph.support.errors import DataError
from fedgraph.support.files import read_arrays

if TYPE_CHECKING:
    import pandas as pd


def empty_targets(task: TaskSpec) -> Tensor:
    """Return targets of zero examples."""
    if task.kind == "classification":
        return torch.zeros(0, dtype=torch.int64)
    return torch.zeros(0, *task.output_shape)


def checked_targets(where: str, inputs: Tensor, targets: Tensor, task: TaskSpec) -> Tensor:
    """Return targets with the dtype and shape of the task. Raises DataError if they do not fit."""
    if targets.dim() and len(targets) != len(inputs):
        raise DataError(f"{where} {len(inputs)} inputs have {len(targets)} targets: each input needs one")
    if task.kind == "classification":
        classes = task.output_shape[0]
        if targets.dim() != 1 or targets.is_floating_point():
            raise DataError(f"{where} classes are {targets.dtype} {list(targets.shape)}, not an integer per example")
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
            raise DataError(
                f"{where} classes are from {int(targets.min())} to {int(targets.max())}, and the task has {classes}, "
                "counted from 0"
            )
        return targets.long()
    wanted = (len(inputs), *task.output_shape)
    targets = targets[:, None] if targets.dim() == 1 and task.output_shape == (1,) else targets
    if tuple(targets.shape) != wanted:
        raise DataError(f"{where} targets have shape {list(targets.shape)}, but by the task it is {list(wanted)}")
    if bool(targets.isinf().any()):
        raise DataError(f"{where} a target is infinite")
    return targets.float()


@dataclass(frozen=True)
class MaskedSplit(ExampleSplit):
    """Examples; missing targets are NaN and have no weight."""

    masks = True

    def batch(self, indices: Tensor) -> Batch:
        """See :class:`ExampleSplit`."""
        inputs, targets, weights = super().batch(indices)
        if not targets.is_floating_point():
            return Batch(inputs, targets, weights)
        lost = targets.isnan()
        return Batch(inputs, targets.masked_fill(lost, 0), weights.masked_fill(lost, 0))


class TensorForm(Form):
    """Arrays ``inputs`` and optionally ``targets`` of an .npz file, as in a custom data set."""

    def read(self, place: Path, client: str | None) -> NewData:
        """See :class:`Form`."""
        arrays = read_arrays(place)
        inputs = arrays.get("inputs", arrays.get("images"))
        shape = ", ".join(map(str, self.task.input_shape))
        if inputs is None or tuple(inputs.shape[1:]) != self.task.input_shape:
            found = "none" if inputs is None else list(inputs.shape)
            raise DataError(f"{place}: inputs are [examples, {shape}], and there are {found}")
        x = torch.from_numpy(inputs).float()
        targets = None
        if "targets" in arrays:
            targets = checked_targets(f"{place}:", x, torch.from_numpy(arrays["targets"]), self.task)
        return NewTensors(self.task, x, targets, UNNAMED if client is None else client)


@dataclass(frozen=True)
class NewTensors(NewData):
    """New inputs of one client in their own units, optionally with targets."""

    task: TaskSpec
    inputs: Tensor
    targets: Tensor | None
    client: str

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The client."""
        return (self.client,)

    def measured(self, name: str, like: Scales) -> dict[str, Tensor]:
        """Raise DataError: only the data set class knows how a client is scaled."""
        raise DataError("the scale of a new client is defined by the data set class")

    def cohort(self, scales: Scales) -> CohortData:
        """See :class:`NewData`."""
        one = {name: value[0] for name, value in scales.items()}
        targets = self.targets
        if targets is None:
            targets = empty_targets(self.task).new_zeros(len(self.inputs), *empty_targets(self.task).shape[1:])
        if self.task.kind != "classification":
            targets = (targets - one["mean"]) / one["std"]
        rows = row_table([np.arange(len(self.inputs))])
        split = MaskedSplit(Preprocessing.input_scale(one).inputs(self.inputs), targets, rows)
        return CohortData(self.names, self.task, {"test": split}, scales["mean"], scales["std"])

    def known(self, data: CohortData) -> CohortData | None:
        """See :class:`NewData`."""
        return None if self.targets is None else data

    def answers(self, data: CohortData, outputs: Tensor) -> pd.DataFrame:
        """Return the columns ``client``, ``example`` (from 0), and the predictions; of forecasts a row per step."""
        import pandas as pd

        if self.task.kind == "forecast":
            count, steps = outputs.shape[1:]
            places = {"example": np.repeat(np.arange(count), steps), "step": np.tile(np.arange(steps) + 1, count)}
            return pd.DataFrame({"client": self.client, **places, "forecast": outputs[0].flatten().numpy()})
        flat = None if self.targets is None else self.targets.flatten()
        columns = label_answers(self.task, outputs[0], flat)
        return pd.DataFrame({"client": self.client, "example": np.arange(len(self.inputs)), **columns})
