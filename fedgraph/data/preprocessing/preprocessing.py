"""The preprocessing of clients: a form that all share, and scales measured by each."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.files import json_digest, read_tensors, write_tensors
from fedgraph.support.plugins import derived, dotted_path, load_object
from fedgraph.support.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

    from fedgraph.data.base import CohortData

Scales = Mapping[str, Tensor]
"""``centre``, ``spread`` and ``fill`` of inputs, ``[clients, ...]``; ``mean`` and ``std`` of targets, ``[clients]``;
and whatever else a form needs."""


class NewData(ABC):
    """New rows, series or images, read from a file like those of training.

    Attributes
    ----------
    names : tuple of str
        The clients whose data it is.
    notes : tuple of str
        Notes for the user who asks for predictions.
    """

    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @abstractmethod
    def measured(self, name: str, like: Scales) -> dict[str, Tensor]:
        """Measure the scales of a client that the run does not know on this data; without client axis.

        Scales that all clients share are copied from ``like``, those of a client of the run. Raises DataError when
        there are too few data, or the target is missing.
        """

    @abstractmethod
    def cohort(self, scales: Scales) -> CohortData:
        """Return the data, scaled by the scales of ``names``, as the split ``test``; unknown targets have no weight."""

    def known(self, data: CohortData) -> CohortData | None:
        """Return the part of :meth:`cohort` with known targets; None without any."""
        return data

    def in_order(self, names: Sequence[str]) -> NewData:
        """Return the same data with its clients in another order."""
        raise DataError("data of this kind cannot be predicted for several clients at once")

    @abstractmethod
    def answers(self, data: CohortData, outputs: Tensor) -> pd.DataFrame:
        """Return predictions as a data frame.

        Parameters
        ----------
        data : CohortData
            What :meth:`cohort` returned.
        outputs : Tensor
            ``[clients, examples, *output_shape]``, in the unit of the task; logits of classes.
        """


class Form(Settings, ABC):
    """What the data of all clients have in common: columns, categories, classes, steps.

    Attributes
    ----------
    task : TaskSpec
        Inputs and outputs of the models: names of features in order, of classes, the unit.
    """

    task: TaskSpec

    @abstractmethod
    def read(self, place: Path, client: str | None) -> NewData:
        """Read new data.

        Raises DataError when the data do not match those of training.

        Parameters
        ----------
        place : Path
            A file, or a folder.
        client : str or None
            The client whose data it is; None where the file says so.
        """


@dataclass(frozen=True)
class Preprocessing:
    """The form that the data of all clients have, and the scales of some clients.

    Attributes
    ----------
    form : Form
        What all have in common.
    names : tuple of str
        The clients.
    scales : mapping of str to Tensor
        Their scales, with a leading client axis.
    """

    form: Form
    names: tuple[str, ...]
    scales: Scales

    FOLDER: ClassVar[str] = "preprocessing"
    """Folder of the preprocessing of a node's clients, in the node's run state."""

    @classmethod
    def alike(cls, form: Form, names: Sequence[str], scales: Scales) -> Preprocessing:
        """Return the preprocessing of clients that all have the same ``scales``, without client axis."""
        return cls(form, tuple(names), {key: value.expand(len(names), *value.shape) for key, value in scales.items()})

    def of(self, client: str) -> dict[str, Tensor]:
        """Return the scales of one client, without client axis."""
        row = self.names.index(client)
        return {name: values[row] for name, values in self.scales.items()}

    def first(self) -> dict[str, Tensor]:
        """Return the scales of the first client."""
        return self.of(self.names[0])

    @staticmethod
    def input_scale(scales: Scales) -> InputScale:
        """Return the scale of inputs that scales of clients contain."""
        return InputScale(*(scales[name] for name in ("centre", "spread", "fill")))

    def write(self, folder: Path) -> None:
        """Write a file for these clients into a folder; it replaces an earlier one of the same clients."""
        head = {
            "form": dotted_path(type(self.form)),
            "settings": self.form.model_dump_json(),
            "clients": json.dumps(list(self.names)),
        }
        write_tensors(folder / f"{json_digest(sorted(self.names))[:32]}.safetensors", self.scales, head)

    @classmethod
    def read(cls, file: Path) -> Preprocessing:
        """Read what :meth:`write` wrote. Raises RunError for a file that is damaged."""
        try:
            scales, head = read_tensors(file)
            kind: type[Form] = load_object(head["form"], "the preprocessing of the run", derived(Form))
            return cls(kind.model_validate_json(head["settings"]), tuple(json.loads(head["clients"])), scales)
        except (KeyError, ValueError, OSError, TypeError) as error:
            raise RunError(f"{file} cannot be read: {error}; put a copy of it back") from None

    @classmethod
    def by_client(cls, folder: Path) -> dict[str, Preprocessing]:
        """Read the latest preprocessing of each client in a folder."""
        if not folder.is_dir():
            return {}
        files = sorted(folder.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns)
        return {name: found for found in map(cls.read, files) for name in found.names}


def stacked(rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack the scales of clients. Raises DataError for clients whose data have different forms."""
    try:
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    except RuntimeError:
        raise DataError(
            "these clients do not share the times of their steps: predict them one at a time (client)"
        ) from None


def label_answers(task: TaskSpec, outputs: Tensor, targets: Tensor | None) -> dict[str, Any]:
    """Return columns of predictions of one label: ``label`` where there are any, and what is predicted.

    Column by name: of classes ``predicted``, and ``probability CLASS`` of each; of a number ``predicted``.

    Parameters
    ----------
    task : TaskSpec
        A classification or regression.
    outputs : Tensor
        ``[examples, classes]`` logits, or ``[examples, 1]`` in the unit of the label.
    targets : Tensor or None
        Classes, or numbers in their unit, ``[examples]``; negative, or NaN, where unknown.
    """
    if task.kind != "classification":
        label = {} if targets is None else {"label": targets.tolist()}
        return {**label, "predicted": outputs[:, 0].tolist()}
    names = task.classes or tuple(map(str, range(task.output_shape[0])))
    label = {} if targets is None else {"label": [None if at < 0 else names[at] for at in targets.tolist()]}
    probabilities = outputs.double().softmax(-1)
    predicted = {"predicted": [names[at] for at in outputs.argmax(-1).tolist()]}
    return {
        **label,
        **predicted,
        **{f"probability {name}": probabilities[:, place].tolist() for place, name in enumerate(names)},
    }


def latest(data: CohortData, windows: int | None) -> CohortData:
    """Return new data with the latest windows, at most so many. Raises DataError for data that are not time series."""
    if windows is None:
        return data
    split: Any = data.splits["test"]
    if not hasattr(split, "latest"):
        raise DataError("windows applies only to time series: leave it out")
    return replace(data, splits={"test": split.latest(windows)})


@dataclass(frozen=True)
class InputScale:
    """Scales values to inputs: ``(value - centre) / spread``, and ``fill`` where missing.

    Attributes
    ----------
    centre, spread, fill : Tensor
        Broadcast to the values, ``[features]`` for a table; their dtype is that of the computation.
    """

    centre: Tensor
    spread: Tensor
    fill: Tensor

    @classmethod
    def of(cls, centre: Tensor, spread: Tensor) -> InputScale:
        """Return a scale on which missing values are 0.

        A ``spread`` of 0, that of a constant, becomes 1, and unknown ones (NaN), as of a column without values, too.
        """
        known = torch.where(spread == 0, 1.0, spread.nan_to_num(nan=1.0))
        return cls(centre.nan_to_num(nan=0.0), known, torch.zeros_like(centre))

    def inputs(self, values: Tensor) -> Tensor:
        """Scale values, NaN where missing."""
        scaled = (values - self.centre) / self.spread
        return torch.where(scaled.isnan(), self.fill, scaled)
