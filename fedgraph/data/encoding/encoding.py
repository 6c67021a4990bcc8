"""Values of a mixed table as the units of a network, and back.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 3 (categories as one-hot vectors).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.columns.columns import Floats
from fedgraph.data.encoding.scaling import Scaling, needs_range
from fedgraph.data.encoding.unit_scale import UnitScale
from fedgraph.data.encoding.values import check_shape
from fedgraph.data.schema.schema import Schema
from fedgraph.support.errors import DataError


class _Scales(dict[str, UnitScale]):
    def __missing__(self, name: str) -> UnitScale:
        raise DataError(
            f"every client has its own range of '{name}', which this model does not have: leave it unknown, or "
            f"give one client's range, GraphicalModel.load(path, ranges={{'{name}': (low, high)}}). A model of common "
            'ranges is made with [fedngm.scaling] source = "shared-ranges", or in an app with '
            'FedNGM(scaling={"source": "shared-ranges"}) and table_client_app(consent=["ranges"])'
        )


_DIGITS = 6
"""Significant digits of a range that a float32 unit preserves."""


@dataclass(frozen=True)
class Encoding:
    """Conversion between values and units.

    Values are float64 ``[rows, features]`` (:mod:`fedgraph.data.encoding.values`), units float32 ``[rows, units]``:

    - A number is one unit, 0 at the low and 1 at the high end of its range, with equal steps between them unless it
      is on a logarithmic scale (:class:`fedgraph.data.encoding.unit_scale.UnitScale`).
    - An embedding is one unit for each of its numbers, which share one range.
    - Ordered words are one unit with equal steps from 0 to 1.
    - A binary feature is one unit, 0 or 1.
    - A categorical feature is one unit per category (one-hot).

    Units are NaN where a value is missing: all units of a category or an embedding.

    Attributes
    ----------
    schema : Schema
        The features.
    scaling : Scaling
        Ranges of the numbers.
    outside : {"keep", "clip"}
        Values outside their range; see :class:`ScalingSettings`.
    own_ranges : bool
        Whether numbers without a range here have a range at each client that only the client knows. They can be
        neither encoded nor decoded; all other features can.
    """

    schema: Schema
    scaling: Scaling
    outside: Literal["keep", "clip"] = "keep"
    own_ranges: bool = False

    @property
    def without_range(self) -> tuple[str, ...]:
        """Numbers with a range that only their clients know."""
        lacking = (part.name for part in self.schema.features if needs_range(part))
        return tuple(name for name in lacking if self.own_ranges and name not in self.scaling.ranges)

    @cached_property
    def scales(self) -> Mapping[str, UnitScale]:
        """Scale of each feature.

        Raises DataError if a feature has no range, and on access to one that only clients know.
        """
        unknown = self.without_range
        known = self.schema.select([name for name in self.schema.names if name not in unknown])
        return _Scales(zip(known.names, self.scaling.scales(known), strict=True))

    def encode(self, values: Floats) -> Tensor:
        """Convert values float64 ``[rows, features]`` to units float32 ``[rows, units]``.

        Raises DataError when a feature has no range, when the columns are not those of the schema, and for a value a
        thousand ranges away from its own range unless ``outside`` is ``clip``.
        """
        check_shape(values, self.schema)
        # Unit after unit in memory, transposed at the end: writing columns into rows takes several times longer.
        units = np.empty((len(self.schema.unit_feature), len(values)), dtype=np.float32)
        for part in self.schema.features:
            own, block = values[:, self.schema.value_slices[part.name]], units[self.schema.slices[part.name]]
            column = own[:, 0]
            if part.name in self.without_range and np.isnan(own).all():
                block[:] = np.nan
            elif part.kind == "embedding":
                block[:] = self._scaled(own.T, part.name)
                block[:, np.isnan(own).any(1)] = np.nan
            elif part.kind == "categorical":
                block[:] = column == np.arange(part.width)[:, None]
                block[:, np.isnan(column)] = np.nan
            else:
                block[0] = self._scaled(column, part.name)
        return torch.from_numpy(units).T.contiguous()

    def _scaled(self, values: Floats, name: str) -> Floats:
        scale = self.scales[name]
        if self.outside == "clip":
            return np.clip(scale.units(values), 0.0, 1.0)
        far = scale.is_far(values)
        if far.any():
            problem = f"{int(far.sum()):,} values such as {values[far].min():g} far outside its range "
            problem += f"{scale.low:g} to {scale.high:g}"
            raise DataError(
                f"feature '{name}' has {problem}: list marks of missing values in missing-codes, widen the range, or "
                "set "
                f'outside = "clip"',
                quoted=problem,
            )
        return scale.units(values)

    def beyond(self, values: Floats) -> dict[str, float]:
        """Return, by feature, a value of ``[rows, features]`` that is more than half a range outside its range."""
        found: dict[str, float] = {}
        for name, limits in self.scaling.ranges.items():
            own = values[:, self.schema.value_slices[name]]
            margin = (limits[-1] - limits[0]) / 2
            far = (own < limits[0] - margin) | (own > limits[-1] + margin)
            if far.any():
                found[name] = float(own[far][0])
        return found

    def decode(self, units: Tensor) -> Floats:
        """Convert units ``[rows, units]``, such as the predictions of a model, to values float64 ``[rows, features]``.

        Integers and ordinals are rounded. A binary feature is its second category from 0.5 on, a categorical one the
        category with the largest unit, missing if any of its units is NaN. Real numbers are rounded to a millionth of
        their range or less, which is about the precision of a unit. Numbers without a range are missing. Raises
        DataError when the number of units is not that of the schema.
        """
        if units.ndim != 2 or units.shape[1] != len(self.schema.unit_feature):
            raise DataError(
                f"units of shape {list(units.shape)} do not fit the schema: it needs [rows, "
                f"{len(self.schema.unit_feature)}]"
            )
        given = units.detach().cpu().T.contiguous().numpy()
        values = np.empty((len(units), self.schema.num_values), order="F")
        for part in self.schema.features:
            block, place = given[self.schema.slices[part.name]], self.schema.value_slices[part.name].start
            if part.name in self.without_range:
                values[:, self.schema.value_slices[part.name]] = np.nan
                continue
            if part.kind == "embedding":
                own = self.scales[part.name].values(block.astype(np.float64))
                own[:, np.isnan(own).any(0)] = np.nan
                values[:, self.schema.value_slices[part.name]] = own.T
                continue
            if part.kind == "categorical":
                values[:, place] = np.where(np.isnan(block).any(0), np.nan, block.argmax(0))
                continue
            scale = self.scales[part.name]
            column = scale.values(block[0].astype(np.float64))
            if part.kind == "binary":
                # Not rounded: 0.5 would be rounded to the even 0.
                column = np.where(np.isnan(column), np.nan, column >= 0.5)
            elif part.kind == "real":
                column = column.round(_DIGITS - int(np.floor(np.log10(scale.span))))
            else:
                column = column.round()
            values[:, place] = column if needs_range(part) else np.clip(column, 0, max(1, len(part.categories) - 1))
        return values
