"""Preprocessing of images, and new images to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.base import CohortData
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.data.images.image_files import Images
from fedgraph.data.images.labelled import Ground, read_new
from fedgraph.data.own import UNNAMED
from fedgraph.data.partition import Indices
from fedgraph.data.preprocessing import Form, NewData, Preprocessing, label_answers
from fedgraph.data.preprocessing.preprocessing import Scales
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


class ImageForm(Form):
    """How pixels become inputs: divided by the largest value, then standardised by mean and deviation.

    Attributes
    ----------
    layout : whether an input is an image, or a vector.
    largest : largest value of a pixel.
    mean, deviation : of each channel, of pixels in [0, 1]; empty where they are not used.
    ground : background of transparent images.
    """

    shape: tuple[int, int, int]
    layout: Literal["image", "flat"]
    largest: int
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    ground: Ground = "white"

    def factors(self) -> tuple[Tensor, Tensor | None]:
        """Return factor and offset from pixels to inputs, shaped to broadcast over one input."""
        scale, shift = torch.full(self.shape, 1.0 / self.largest), None
        if self.mean:
            mean, deviation = (torch.tensor(value)[:, None, None] for value in (self.mean, self.deviation))
            scale, shift = scale / deviation, (-mean / deviation).expand(self.shape)
        if self.layout == "flat":
            scale, shift = scale.flatten(), None if shift is None else shift.flatten()
        return scale, shift

    def stored(self, images: Images) -> Tensor:
        """Return pixels in the shape of inputs, as they are stored."""
        pixels = torch.from_numpy(images.pixels)
        return pixels.flatten(1) if self.layout == "flat" else pixels

    def preprocessing(self, names: Sequence[str]) -> Preprocessing:
        """Return the preprocessing of clients, which all have the same scales."""
        scale, shift = self.factors()
        offset = torch.zeros_like(scale) if shift is None else shift
        if self.layout == "image":
            scale, offset = scale[:, :1, :1], offset[:, :1, :1]
        one = {"centre": -offset / scale, "spread": 1 / scale, "fill": torch.zeros_like(scale)}
        return Preprocessing.alike(self, names, {**one, "mean": torch.tensor(0.0), "std": torch.tensor(1.0)})

    def read(self, place: Path, client: str | None) -> NewData:
        """See :class:`Form`: a folder of images, or of a sub-folder for each class; or arrays in an .npz file.

        A folder may have one of these for each site, which is then the client.
        """
        images, keys, labelled = read_new(place, self.task.classes, self.shape, self.ground)
        if int(images.pixels.max()) > self.largest:
            raise DataError(
                f"{place} has pixels up to {images.pixels.max()}, and training used 0 to {self.largest}: rescale them, "
                "as an .npz file"
            )
        rows = {UNNAMED if client is None else client: np.arange(len(images.labels))}
        if images.site is not None:
            rows = {name: np.flatnonzero(images.site == number) for number, name in enumerate(images.sites)}
            if client is not None and client not in rows:
                raise DataError(
                    f"{place} has a folder for each of the clients {', '.join(images.sites[:8])}, and none for "
                    f"'{client}': name the folder of its images"
                )
            rows = rows if client is None else {client: rows[client]}
        return NewImages(self, images, keys, labelled, rows, images.notes)


@dataclass(frozen=True)
class NewImages(NewData):
    """New images to predict.

    Attributes
    ----------
    keys : names of the images.
    labelled : whether their classes are known.
    rows : the images of each client.
    notes : see :class:`NewData`.
    """

    form: ImageForm
    images: Images
    keys: tuple[str, ...]
    labelled: bool
    rows: Mapping[str, Indices]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The clients: the sites, or only one."""
        return tuple(self.rows)

    @property
    def task(self) -> TaskSpec:
        """What is predicted."""
        return self.form.task

    def measured(self, name: str, like: Scales) -> dict[str, Tensor]:
        """Return the scale of all clients."""
        return self.form.preprocessing([name]).of(name)

    def cohort(self, scales: Scales) -> CohortData:
        """See :class:`NewData`."""
        factor, offset = self.form.factors()
        labels = torch.from_numpy(self.images.labels).clamp(min=0)
        rows = row_table(list(self.rows.values()))
        split = ExampleSplit(self.form.stored(self.images), labels, rows, factor, offset)
        return CohortData(self.names, self.task, {"test": split}, scales["mean"], scales["std"])

    def known(self, data: CohortData) -> CohortData | None:
        """See :class:`NewData`: all images, where they have labels."""
        return data if self.labelled else None

    def answers(self, data: CohortData, outputs: Tensor) -> pd.DataFrame:
        """Return the columns ``client``, ``image``, ``label`` where known, ``predicted``, and probabilities."""
        import pandas as pd

        parts = []
        for (name, rows), each in zip(self.rows.items(), outputs, strict=True):
            targets = torch.from_numpy(self.images.labels[rows]) if self.labelled else None
            columns = label_answers(self.task, each[: len(rows)], targets)
            parts.append(pd.DataFrame({"client": name, "image": [self.keys[row] for row in rows], **columns}))
        return pd.concat(parts, ignore_index=True)
