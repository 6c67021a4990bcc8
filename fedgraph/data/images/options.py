"""Options of all sets of labelled images, and the conversion of images to a cohort."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import PositiveInt, field_validator

from fedgraph.data.base import SPLITS, CohortData, SplitName
from fedgraph.data.examples import ExampleSplit, class_counts, row_table
from fedgraph.data.images.augmentation import Change, ImageAugmentation
from fedgraph.data.images.image_files import Images
from fedgraph.data.images.image_form import ImageForm
from fedgraph.data.images.labelled import Ground
from fedgraph.data.images.sets import ImageSet
from fedgraph.data.partition import Indices, PartitionSettings
from fedgraph.models import TaskSpec


class ImageOptions(PartitionSettings):
    """The keys of ``[data]`` that any set of images has.

    Attributes
    ----------
    normalise        : ``unit`` = pixels in [0, 1]; ``standard`` = these minus the set's mean, divided by its deviation.
    layout           : ``image`` = ``[channels, height, width]``; ``flat`` = one vector.
    augment          : random changes to training images each time they are used, any of ``crop`` (padded by reflection,
                       cut to their own size), ``flip`` (half of them are mirrored) and ``cutout`` (a square becomes
                       zero, after scaling).
    crop_padding     : largest shift of a crop, in pixels.
    cutout_size      : side of the square in pixels.
    """

    normalise: Literal["unit", "standard"] = "unit"
    layout: Literal["image", "flat"] = "image"
    augment: tuple[Change, ...] = ()
    crop_padding: PositiveInt = 4
    cutout_size: PositiveInt = 8

    @field_validator("augment")
    @classmethod
    def _each_change_once(cls, value: tuple[Change, ...]) -> tuple[Change, ...]:
        if len(set(value)) < len(value):
            raise ValueError("changes must differ")
        return value

    @property
    def augmentation(self) -> ImageAugmentation | None:
        """Random changes to training images; None if there are none."""
        changes = frozenset(self.augment)
        return ImageAugmentation(changes, self.crop_padding, self.cutout_size) if changes else None

    def check_changes(self, side: int) -> None:
        """Raise ValueError for changes that do not fit images whose shorter side has ``side`` pixels."""
        if self.augment and self.layout == "flat":
            raise ValueError('augment moves pixels around and needs layout = "image"')
        if "crop" in self.augment and self.crop_padding >= side:
            raise ValueError(f"crop-padding must be less than the {side} pixels of an image; got {self.crop_padding}")
        if "cutout" in self.augment and self.cutout_size >= side:
            raise ValueError(f"cutout-size must be less than the {side} pixels of an image; got {self.cutout_size}")


def image_cohort(
    options: ImageOptions,
    spec: ImageSet,
    images: Images,
    names: Sequence[str],
    rows: Sequence[Mapping[SplitName, Indices]],
    ground: Ground = "white",
) -> CohortData:
    """Build the cohort of the clients ``names`` with the images ``rows``; all share one tensor of pixels."""
    standard = options.normalise == "standard"
    task = TaskSpec(
        kind="classification",
        input_shape=(math.prod(spec.shape),) if options.layout == "flat" else spec.shape,
        output_shape=(len(spec.classes),),
        classes=spec.classes,
    )
    form = ImageForm(
        task=task, shape=spec.shape, layout=options.layout, largest=spec.largest_pixel,
        mean=spec.mean if standard else (), deviation=spec.deviation if standard else (), ground=ground,
    )  # fmt: skip
    storage, targets = form.stored(images), torch.from_numpy(images.labels)
    scale, shift = form.factors()
    return CohortData(
        names=tuple(names),
        task=task,
        splits={
            kind: ExampleSplit(storage, targets, row_table([own[kind] for own in rows]), scale, shift)
            for kind in SPLITS
        },
        mean=torch.zeros(len(names)),
        std=torch.ones(len(names)),
        label_counts=class_counts(targets, [own["train"] for own in rows], len(spec.classes)),
        augment=options.augmentation,
        preprocessing=form.preprocessing(names),
    )
