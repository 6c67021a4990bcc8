"""Images cut into patches, with one client per position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor

from fedgraph.data.images.image_files import Images, file_key, read_digits
from fedgraph.data.images.images import named_images
from fedgraph.data.images.sets import SETS, catalogue_entry
from fedgraph.data.owners.shared_samples import Holdings, OwnerSource, SharedSampleSettings
from fedgraph.graph import ClientGraph
from fedgraph.support.catalogue import require


class ImagePatchSettings(SharedSampleSettings):
    """The table ``[data]`` with ``set = "image-patches"``: clients ``patch-0-0`` (row, column) and so on.

    Sets with their own test images are tested on those; the digits of scikit-learn are divided by shares.

    Attributes
    ----------
    images         : the set of images.
    grid           : rows and columns of patches, of sizes as equal as possible.
    as_rows        : clients whose input is a sequence of rows of pixels, ``[height, width * channels]``, for a
                     recurrent model; the input of other clients is ``[channels, height, width]``.
    flatten        : clients whose input is one vector.
    first_examples : use at most this many training images from the beginning, and the same fraction of the test images.
    """

    set: Literal["image-patches"] = "image-patches"
    images: Literal["digits", "mnist", "fashion-mnist", "cifar10"] = "digits"
    grid: tuple[PositiveInt, PositiveInt] = (2, 2)
    as_rows: tuple[str, ...] = ()
    flatten: tuple[str, ...] = ()
    first_examples: PositiveInt | None = None

    @model_validator(mode="after")
    def _patches_exist(self) -> ImagePatchSettings:
        height, width = SETS[self.images].shape[1:]
        if self.grid[0] > height or self.grid[1] > width:
            raise ValueError(f"grid = {list(self.grid)} is finer than the {height} x {width} pixels of an image")
        known = patch_names(self.grid)
        for key, names in (("as-rows", self.as_rows), ("flatten", self.flatten)):
            for name in names:
                if name not in known:
                    raise ValueError(f"{key} names '{name}'; the clients are {known[0]} to {known[-1]}")
        both = sorted(set(self.as_rows) & set(self.flatten))
        if both:
            raise ValueError(f"'{both[0]}' is in as-rows and in flatten; choose one")
        return self


def patch_names(grid: tuple[int, int]) -> tuple[str, ...]:
    """Return ``patch-0-0``, ``patch-0-1`` and so on: row by row, from the top left."""
    return tuple(f"patch-{row}-{column}" for row in range(grid[0]) for column in range(grid[1]))


class ImagePatchSource(OwnerSource):
    """The patches of one image set in a data folder."""

    def __init__(self, settings: ImagePatchSettings, data_dir: Path) -> None:
        self.settings: ImagePatchSettings = settings
        self.data_dir = data_dir
        self.spec = SETS[settings.images]
        self.title = f"{self.spec.title} in {settings.grid[0]} x {settings.grid[1]} patches"

    def every_client(self) -> tuple[str, ...]:
        """Return all positions of the grid."""
        return patch_names(self.settings.grid)

    def holdings(self, names: Sequence[str], classes: tuple[str, ...] = ()) -> Holdings:
        """Return patches ``[images, height, width, channels]`` in [0, 1]; keys such as ``train-00007``."""
        images, keys, is_test = self._images()
        rows, columns = (
            np.linspace(0, size, parts + 1).round().astype(int).tolist()
            for size, parts in zip(self.spec.shape[1:], self.settings.grid, strict=True)
        )
        inputs = []
        for name in names:
            row, column = map(int, name.split("-")[1:])
            patch = images.pixels[:, :, rows[row] : rows[row + 1], columns[column] : columns[column + 1]]
            inputs.append(torch.from_numpy(patch.transpose(0, 2, 3, 1).astype(np.float32) / self.spec.largest_pixel))
        return Holdings(
            keys=keys,
            labels=torch.from_numpy(images.labels),
            classes=self.spec.classes,
            inputs=tuple(inputs),
            present=torch.ones(len(names), len(keys), dtype=torch.bool),
            features=((),) * len(names),
            is_test=is_test,
        )

    def arranged(self, name: str, inputs: Tensor) -> Tensor:
        """Return inputs of ``name`` as images, sequences of rows, or vectors of pixels in the order of the image."""
        if name in self.settings.as_rows:
            return inputs.flatten(2)
        image = inputs.permute(0, 3, 1, 2).contiguous()
        return image.flatten(1) if name in self.settings.flatten else image

    def every_graph(self) -> ClientGraph | None:
        """Return the graph of patches that share a side, with weight 1."""
        height, width = self.settings.grid
        names = patch_names(self.settings.grid)
        place = torch.arange(height * width).reshape(height, width)
        pairs = torch.cat(
            [
                torch.stack([place[:, :-1].flatten(), place[:, 1:].flatten()], 1),
                torch.stack([place[:-1].flatten(), place[1:].flatten()], 1),
            ]
        ).tolist()
        starts, ends = ([names[pair[side]] for pair in pairs] for side in (0, 1))
        return ClientGraph.from_lists(names, starts, ends, torch.ones(len(pairs)), directed=False)

    def _images(self) -> tuple[Images, tuple[str, ...], Tensor | None]:
        """Return the images in use, their keys, and a mask of the set's own test images, if any."""
        name, wanted = self.settings.images, self.settings.first_examples
        if name == "digits":
            pixels, labels = read_digits()
            images = Images(pixels[:, None], labels, len(labels))  # which have no test images of their own
        else:
            images = named_images(name, file_key(require(catalogue_entry(name), self.data_dir)))
        train, test = images.num_train, len(images.labels) - images.num_train
        if wanted is not None and wanted < train:
            train, test = wanted, -(-test * wanted // train)
            used = np.concatenate([np.arange(train), images.num_train + np.arange(test)])
            images = Images(images.pixels[used], images.labels[used], train)
        if not test:
            return images, _numbered("image", train), None
        return images, _numbered("train", train) + _numbered("test", test), torch.arange(train + test) >= train


def _numbered(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}-{number:05d}" for number in range(count))
