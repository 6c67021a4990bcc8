"""The user's own images: one folder partitioned among clients, or at each node those of its client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from fedgraph.data.base import SPLITS, CohortData, DataSource, check_clients
from fedgraph.data.images.labelled import Ground, OwnImages, read_labelled
from fedgraph.data.images.options import ImageOptions, image_cohort
from fedgraph.data.images.sets import ImageSet
from fedgraph.data.own import Name, OwnData, data_path, data_title, with_notes
from fedgraph.data.partition import Indices, Method, client_names, describe, partition, split
from fedgraph.data.shared_tests import SplitSettings, draw_shared_test, shared_test_file
from fedgraph.support.errors import counted
from fedgraph.support.randomness import generator


class OwnImageSettings(ImageOptions, SplitSettings):
    """The ``[data]`` table with ``set = "images"``: the user's own images.

    The partition keys divide the images of one folder or file among clients.

    Attributes
    ----------
    path      : a folder with a sub-folder of image files for each class, or with a folder of these for each site, whose
                names are the clients' (the partition keys then have no effect), or an .npz file with the arrays
                ``images`` (bytes ``[images, height, width]`` or ``[images, height, width, channels]``) and ``labels``
                (names of classes, or their numbers); looked for next to the experiment, in the current folder, and in
                the data folder. Not needed where every node has its own images (node config ``data``), which all
                belong to the one client that it names.
    test_path : with ``test = "shared"``, another folder or file of the same form, whose images all clients are tested
                on; looked for as ``path`` is.
    classes   : the names of all classes, the same for all nodes; a node need not have images of each.
    size      : height and width in pixels, or one number for both. Images in files are scaled to it.
    channels  : 1 = grey, 3 = colours.
    ground    : what lies behind transparent parts of images: ``white`` or ``black``.
    mean, deviation : for ``normalise = "standard"``, of each channel of all training pixels in [0, 1]. They must be
                known in advance, as no node has all pixels.
    """

    set: Literal["images"] = "images"
    path: str | None = None
    test_path: str | None = None
    classes: tuple[Name, ...] = Field(min_length=2)
    size: PositiveInt | tuple[PositiveInt, PositiveInt]
    channels: Literal[1, 3] = 3
    ground: Ground = "white"
    mean: tuple[float, ...] | None = None
    deviation: tuple[PositiveFloat, ...] | None = None
    partition: Method = "iid"

    @field_validator("classes")
    @classmethod
    def _each_class_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("class names must differ")
        return value

    @model_validator(mode="after")
    def _keys_fit(self) -> OwnImageSettings:
        self.check_changes(min(self.shape[1:]))
        if self.normalise == "standard":
            for key, given in (("mean", self.mean), ("deviation", self.deviation)):
                if given is None or len(given) != self.channels:
                    raise ValueError(
                        f'normalise = "standard" needs {key}, a number for each of {self.channels} channels'
                    )
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return self.channels, height, width


class OwnImageSource(DataSource):
    """Images of one folder or file."""

    def __init__(self, settings: OwnImageSettings, data_dir: Path, own: OwnData | None = None) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self.own = own
        self.title = data_title(settings.path, own)

    def client_names(self) -> list[str]:
        """Return the sites, or ``client-00`` and so on, or the one client to whom a node's own images belong."""
        if self._images.sites:
            return list(self._images.sites)
        return client_names(self.settings.clients) if self.own is None else [self.own.only_client()]

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the clients ``names``; all share one tensor of pixels. See DataSource for the errors."""
        known, settings = self.client_names(), self.settings
        check_clients(self.title, names, known)
        rows = []
        for name in names:
            own = self._parts[known.index(name)]
            draws = generator(settings.partition_seed, "split", name)
            parts = split(len(own), settings.own_shares, draws, f"client '{name}'")
            rows.append({kind: own[part] for kind, part in zip(SPLITS, parts, strict=True)})
            if settings.test == "shared":
                rows[-1]["test"] = self._shared
        spec = ImageSet(
            self.title, len(self._images.labels), 0, settings.shape, settings.classes,
            settings.mean or (), settings.deviation or (),
        )  # fmt: skip
        return image_cohort(settings, spec, self._images, names, rows, settings.ground)

    def describe(self) -> str:
        """Describe the data, e.g. ``scans, 1,200 images 64x64 of 3 classes, 4 clients, 2 shards each``."""
        _, height, width = self.settings.shape
        images = counted(self._images.num_train, "image")
        count = f"{images} {height}x{width} of {counted(len(self.settings.classes), 'class', 'classes')}"
        division = "1 client" if self.own is not None else describe(self.settings)
        if self._images.sites:
            division = f"{counted(len(self._images.sites), 'client')}, the folders of sites"
        tested = f", tested on the same {counted(len(self._shared), 'image')}" if self.settings.test == "shared" else ""
        return with_notes(f"{self.title}, {count}, {division}{tested}", self._images.notes)

    @cached_property
    def _images(self) -> OwnImages:
        """All images, those of a file that all clients are tested on last."""
        settings = self.settings
        place, every = data_path(settings.path, self.data_dir, self.own), self.own is None
        images = read_labelled(place, settings.classes, settings.shape, settings.ground, every_class=every)
        tested = shared_test_file(settings.test, settings.test_path, self.data_dir, self.own)
        if tested is None:
            return images
        more = read_labelled(tested, settings.classes, settings.shape, settings.ground)
        pixels, labels = np.concatenate([images.pixels, more.pixels]), np.concatenate([images.labels, more.labels])
        return replace(images, pixels=pixels, labels=labels, notes=(*images.notes, *more.notes))

    @cached_property
    def _shared(self) -> Indices:
        """The test images that all clients share."""
        labels, num_train = self._images.labels, self._images.num_train
        if num_train < len(labels):
            return np.arange(num_train, len(labels))
        return draw_shared_test(labels, self.settings.shares[2], self.settings.partition_seed)

    @cached_property
    def _parts(self) -> list[Indices]:
        """Images of each client."""
        labels = self._images.labels
        used = np.arange(len(labels))
        if self.settings.test == "shared":
            used = np.setdiff1d(used, self._shared)
        images = self._images
        if images.site is not None:
            return [used[images.site[used] == place] for place in range(len(images.sites))]
        if self.own is not None:
            return [used]
        return [used[part] for part in partition(self.settings, labels[used], self.settings.partition_seed)]
