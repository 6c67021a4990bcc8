"""Image classification sets (digits, MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100), partitioned among clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from fedgraph.data.base import CohortData, SplitName, check_clients
from fedgraph.data.images import image_files
from fedgraph.data.images.groups import GroupSettings, Rows, planted, planted_graph
from fedgraph.data.images.image_files import FileKey, Images, read_digits
from fedgraph.data.images.options import ImageOptions, image_cohort
from fedgraph.data.images.sets import IDX_CONTENT, IMAGES, SETS, SetName, catalogue_entry
from fedgraph.data.partition import Indices, balanced_subset, client_names, describe, match, partition, split
from fedgraph.support.catalogue import find, require
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator

if TYPE_CHECKING:
    from fedgraph.graph import ClientGraph

__all__ = ["IMAGES", "ImageSettings", "ImageSource"]


class ImageSettings(ImageOptions, GroupSettings):
    """The ``[data]`` table of an image set; the partition keys divide its training examples.

    Attributes
    ----------
    set              : the name of the image set.
    validation_share : fraction of each client's training examples held out for validation; 0 = no validation split.
    validation       : ``own`` = each client is validated on its own held-out examples; ``shared`` = on those of all
                       clients, which contain all classes.
    test             : ``matched`` = each client gets test examples in the class proportions of its training examples,
                       without overlap; ``shared`` = every client is tested on the whole test set.
    limit            : use at most this many training examples, balanced over the classes.

    With ``groups``, the client graph of the data (``[graph] source = "data"``) joins the clients of each group.
    """

    set: SetName = "digits"
    validation_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    validation: Literal["own", "shared"] = "own"
    test: Literal["matched", "shared"] = "matched"
    limit: PositiveInt | None = None

    @model_validator(mode="after")
    def _something_to_share(self) -> ImageSettings:
        if self.validation == "shared" and self.validation_share == 0:
            raise ValueError('validation = "shared" needs a validation-share above 0')
        return self

    @model_validator(mode="after")
    def _changes_fit_the_images(self) -> ImageSettings:
        self.check_changes(min(SETS[self.set].shape[1:]))
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> ImageSettings:
        if self.groups > self.clients:
            raise ValueError(f"groups = {self.groups} needs as many clients, and clients = {self.clients}")
        return self


class ImageSource:
    """An image set in a data folder, partitioned among clients (a :class:`fedgraph.data.base.DataSource`)."""

    def __init__(self, settings: ImageSettings, data_dir: Path) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self.spec = SETS[settings.set]

    def client_names(self) -> list[str]:
        """Return ``client-00`` and so on."""
        return client_names(self.settings.clients)

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the clients ``names``; all share one tensor of pixels. See DataSource for the errors."""
        known = self.client_names()
        check_clients(self.spec.title, names, known)
        key = self._file_key()
        images = _images(self.settings, key)
        parts, places = _divide(self.settings, key), [known.index(name) for name in names]
        rows: Sequence[Rows] = [parts[place] for place in places]
        if self.settings.groups == 1:
            return image_cohort(self.settings, self.spec, images, names, rows)
        group = [place % self.settings.groups for place in places]
        changed, rows = planted(
            self.settings, images, group, rows, len(self.spec.classes), self.settings.partition_seed
        )
        cohort = image_cohort(self.settings, self.spec, changed, names, rows)
        return replace(cohort, groups=tuple(f"group-{1 + number}" for number in group))

    def given_graph(self) -> ClientGraph | None:
        """Return the graph of planted groups; None without groups."""
        settings = self.settings
        return planted_graph(settings.clients, settings.groups) if settings.groups > 1 else None

    def describe(self) -> str:
        """Describe the data, e.g. ``digits (scikit-learn, 1,797 images 8x8), 20 clients, 2 shards each``."""
        spec, limit = self.spec, self.settings.limit
        facts = [f"{spec.num_train + spec.num_test:,} images {spec.shape[1]}x{spec.shape[2]}"]
        if self.settings.set == "digits":
            facts.insert(0, "scikit-learn")
        if limit is not None and limit < spec.num_train:
            facts.append(f"{limit:,} of {spec.num_train:,} training images")
        paths = find(catalogue_entry(self.settings.set), self.data_dir)
        if paths and paths[0].name == image_files.MOSAIC_NAMES[0]:
            labels = image_files.read_mosaic_labels(paths[0])
            facts.append(
                f"{sum(len(labels.get(f'lossy_{part}', ())) for part in ('train', 'test'))} of them approximate"
            )
        groups = ""
        if self.settings.groups > 1:
            how = {"labels": "its own order of classes", "turned": "its images rotated by 90 degrees more"}
            groups = f", in {self.settings.groups} groups, each with {how[self.settings.groups_differ]}"
        return f"{spec.title} ({', '.join(facts)}), {describe(self.settings)}{groups}"

    def _file_key(self) -> FileKey:
        if self.settings.set == "digits":
            return ()
        return image_files.file_key(require(catalogue_entry(self.settings.set), self.data_dir))


def _images(settings: ImageSettings, key: FileKey) -> Images:
    """Return all images of a set, the training images first."""
    return _digits(settings.partition_seed) if settings.set == "digits" else named_images(settings.set, key)


def named_images(name: SetName, key: FileKey) -> Images:
    """Read the images of a set other than the digits. Raises DataError if they are those of another set."""
    images, spec = image_files.read_images(key, IDX_CONTENT.get(name, ())), SETS[name]
    if images.pixels.shape[1:] != spec.shape or images.labels.max() >= len(spec.classes):
        raise DataError(
            f"{key[0][0].parent} holds images {images.pixels.shape[1:]} with labels up to {images.labels.max()}, and "
            f"{spec.title} has {spec.shape} and {len(spec.classes)} classes: is this another set?"
        )
    return images


@lru_cache(maxsize=8)
def _digits(seed: int) -> Images:
    """Return scikit-learn's digits, with a fifth of each class for testing."""
    pixels, labels = read_digits()
    draws = generator(seed, "digits", "test")
    train, test = [], []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        kept, tested = split(len(rows), (0.8, 0.2), draws, f"class {label}")
        train.append(rows[kept])
        test.append(rows[tested])
    order = np.concatenate([np.sort(np.concatenate(train)), np.sort(np.concatenate(test))])
    return Images(pixels[order, None], labels[order], sum(map(len, train)))


@lru_cache(maxsize=8)
def _divide(settings: ImageSettings, key: FileKey) -> list[dict[SplitName, Indices]]:
    """Return the rows of each client in each split; cached, as many nodes of a process load different clients."""
    seed, names = settings.partition_seed, client_names(settings.clients)
    images = _images(settings, key)
    used = np.arange(images.num_train)
    if settings.limit is not None:
        used = balanced_subset(images.labels[: images.num_train], settings.limit, seed)
    train_labels, test_labels = images.labels[used], images.labels[images.num_train :]
    parts = partition(settings, train_labels, seed)
    if settings.test == "matched":
        tests = match(test_labels, parts, train_labels, seed)
    else:
        tests = [np.arange(len(test_labels))] * len(names)
    shares = (1.0 - settings.validation_share, settings.validation_share)
    divided: list[dict[SplitName, Indices]] = []
    for name, part, test in zip(names, parts, tests, strict=True):
        if len(test) == 0:
            raise DataError(
                f"{name} gets no test examples, as there are {len(test_labels)} for {len(names)} clients: "
                f'use test = "shared", or fewer clients'
            )
        train, validation = split(len(part), shares, generator(seed, "validation", name), name)
        divided.append(
            {"train": used[part[train]], "validation": used[part[validation]], "test": images.num_train + test}
        )
    if settings.validation == "shared":
        all_rows = np.sort(np.concatenate([own["validation"] for own in divided]))
        divided = [{**own, "validation": all_rows} for own in divided]
    return divided
