"""Preprocessing of an owner's part of the samples, the same in training and prediction."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedgraph.support.errors import DataError

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class Preparation:
    """How an owner's part of the samples becomes the inputs of its model; fixed once the model is trained.

    Attributes
    ----------
    features : tuple of str
        Names of the features in order; empty where they have none.
    classes : tuple of str
        Names of the labels.
    centre, spread : Tensor
        Float32 ``[features]``: fill value and offset of inputs, and their divisor.
    shape : tuple of int
        Of a sample, without its features, such as the steps of a window; empty for rows, and where unknown.
    """

    features: tuple[str, ...]
    classes: tuple[str, ...]
    centre: Tensor
    spread: Tensor
    shape: tuple[int, ...] = ()

    def table(self) -> dict[str, Any]:
        """Return lossless JSON values."""
        numbers = {"centre": self.centre.tolist(), "spread": self.spread.tolist()}
        shape = {"shape": list(self.shape)} if self.shape else {}
        return {"features": list(self.features), "classes": list(self.classes), **numbers, **shape}

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Preparation:
        """Build it from :meth:`table`."""
        centre, spread = (torch.tensor(table[name], dtype=torch.float32) for name in ("centre", "spread"))
        return cls(tuple(table["features"]), tuple(table["classes"]), centre, spread, tuple(table.get("shape", ())))

    @classmethod
    def measured(
        cls, training: Tensor, scaled: Tensor | None, features: tuple[str, ...], classes: tuple[str, ...]
    ) -> Preparation:
        """Measure mean and deviation of each feature of training samples ``[samples, ..., features]``.

        They are 0 and 1 for features that are not ``scaled``, bool ``[features]``; None scales all.
        """
        readings = training.flatten(0, -2).double()
        present = ~readings.isnan()
        count = present.sum(0).clamp(min=1)
        mean = readings.nansum(0) / count
        deviation = (((readings - mean).square().nansum(0)) / count).sqrt()
        # A feature that is constant up to rounding stays 0 instead of becoming noise of deviation 1.
        deviation[deviation <= 1e-6 * mean.abs().clamp(min=1.0)] = 1.0
        if scaled is not None:
            mean, deviation = mean.where(scaled, 0.0), deviation.where(scaled, 1.0)
        return cls(features, classes, mean.float(), deviation.float(), tuple(training.shape[1:-1]))

    def in_order(self, values: Tensor, features: tuple[str, ...], where: str) -> Tensor:
        """Return ``values`` ``[samples, ..., features]`` with the features of training, in their order.

        A category that does not occur is 0 in every row; one unknown in training counts as missing. Raises DataError
        for samples of another shape, such as longer windows, and for other features.
        """
        shape = tuple(values.shape[1:-1])
        if self.shape and shape != self.shape:
            given, trained = (" x ".join(map(str, each)) for each in (shape, self.shape))
            raise DataError(
                f"{where}: a sample has the size {given}, and those that its frozen model was trained on had {trained} "
                "(steps of a window, or pixels): give samples of that size"
            )
        known = self.features
        if features == known and values.shape[-1] == len(self.centre):
            return values
        once, now = _categorical(known), _categorical(features)
        lacking = [name for name in known if name not in features and _column(name) not in now]
        other = [name for name in features if name not in known and _column(name) not in once]
        if not known or not features or lacking or other:
            odd = _column((lacking or other or [f"{values.shape[-1]} without names"])[0])
            raise DataError(
                f"{where}: the features are not those that its frozen model was trained on ({odd}): a column is "
                "missing or new, or holds words where it held numbers; give the columns of training, and the values of "
                "categorical ones as [data.categories]"
            )
        unseen = ", ".join(name for name in features if name not in known)
        if unseen:
            log.warning("%s: unknown when its model was trained, and counted as missing: %s", where, unseen)
        place = {name: number for number, name in enumerate(features)}
        absent = torch.zeros_like(values[..., :1])
        return torch.cat([values[..., place[name], None] if name in place else absent for name in known], -1)

    def columns(self, known: Container[str]) -> tuple[str, ...]:
        """Return the columns of the features, a one-hot feature ``column=value`` by its column.

        Names of columns may contain ``=``: the longest name among the ``known`` ones is meant.
        """
        return tuple(dict.fromkeys(_known_column(name, known) for name in self.features))

    def inputs(self, values: Tensor, present: Tensor, scaling: Literal["client", "none"]) -> Tensor:
        """Fill gaps of ``values`` ``[samples, ..., features]``, scale, and zero lacking samples; may overwrite them."""
        gaps = values.isnan()
        if gaps.any():
            values = torch.where(gaps, self.centre, values)
        if scaling == "client":
            values.sub_(self.centre).div_(self.spread)
        values[~present] = 0.0
        return values


def _column(feature: str) -> str:
    """Return the column of a feature; one-hot features are named ``column=value``."""
    return feature.partition("=")[0]


def _known_column(feature: str, known: Container[str]) -> str:
    parts = feature.split("=")
    starts = ("=".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((start for start in starts if start in known), _column(feature))


def _categorical(features: tuple[str, ...]) -> set[str]:
    """Return the columns that are one-hot."""
    return {_column(name) for name in features if "=" in name}
