"""Random crop, horizontal flip and cutout of training images, all clients in single tensor operations.

As in the program of Chen et al. (IJCAI 2022): images are padded by reflection and cropped to their size, half are
mirrored, and a square is set to zero after scaling (the mean colour with ``normalise = "standard"``, else black).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

import torch
from torch import Tensor

from fedgraph.support.randomness import drawn

Change = Literal["crop", "flip", "cutout"]


@dataclass(frozen=True)
class ImageAugmentation:
    """Random changes to minibatches of images (a :data:`fedgraph.data.base.Augment`).

    Attributes
    ----------
    crop_padding : largest shift of a crop, in pixels.
    cutout_size : side of the square, in pixels.
    """

    changes: frozenset[Change]
    crop_padding: int = 4
    cutout_size: int = 8

    def __call__(self, inputs: Tensor, numbers: Tensor) -> Tensor:
        """Change images ``[clients, batch, channels, height, width]`` by random int64 ``[clients, batch]``.

        The result for an image depends only on the image and its number.
        """
        height, width = inputs.shape[-2:]
        draws = count()
        if self.changes & {"crop", "flip"}:
            rows = torch.arange(height, device=inputs.device).expand(*numbers.shape, -1)
            columns = torch.arange(width, device=inputs.device).expand(*numbers.shape, -1)
            if "flip" in self.changes:
                mirrored = self._drawn(numbers, draws, 2) == 1
                columns = torch.where(mirrored, width - 1 - columns, columns)
            if "crop" in self.changes:
                shifts = 2 * self.crop_padding + 1
                rows = reflected(rows + self._drawn(numbers, draws, shifts) - self.crop_padding, height)
                columns = reflected(columns + self._drawn(numbers, draws, shifts) - self.crop_padding, width)
            pixels = (rows.unsqueeze(-1) * width + columns.unsqueeze(-2)).flatten(2).unsqueeze(2)
            flat = inputs.flatten(3)
            inputs = flat.gather(3, pixels.expand_as(flat)).view_as(inputs)
        if "cutout" in self.changes:
            inside_rows = self._inside(numbers, draws, height)
            inside_columns = self._inside(numbers, draws, width)
            square = inside_rows.unsqueeze(-1) & inside_columns.unsqueeze(-2)
            inputs = inputs.masked_fill(square.unsqueeze(2), 0)
        return inputs

    def _inside(self, numbers: Tensor, draws: Iterator[int], size: int) -> Tensor:
        """Return the rows or columns that the square covers, bool ``[clients, batch, size]``."""
        first = self._drawn(numbers, draws, size - self.cutout_size + 1)
        place = torch.arange(size, device=numbers.device)
        return (place >= first) & (place < first + self.cutout_size)

    @staticmethod
    def _drawn(numbers: Tensor, draws: Iterator[int], values: int) -> Tensor:
        """Return the next draw of each image, ``[clients, batch, 1]``."""
        return drawn(numbers, next(draws), values).unsqueeze(-1)


def reflected(places: Tensor, size: int) -> Tensor:
    """Mirror positions beyond ``0..size-1``, by less than ``size``, at the outermost pixel, which is not repeated."""
    return size - 1 - (size - 1 - places.abs()).abs()
