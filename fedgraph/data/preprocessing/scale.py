"""The scale of a model's inputs: from values in their own units, some of them missing, to what the model is fed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class InputScale:
    """Turns values in their own units into inputs: ``(value - centre) / spread``, and ``fill`` where it is missing.

    Attributes
    ----------
    centre, spread, fill : Tensor
        Of one type, which the computation has; they broadcast to the values, ``[features]`` for a table.
    """

    centre: Tensor
    spread: Tensor
    fill: Tensor

    @classmethod
    def of(cls, centre: Tensor, spread: Tensor) -> InputScale:
        """Return a scale on which missing values are 0."""
        return cls(centre, spread, torch.zeros_like(centre))

    def inputs(self, values: Tensor) -> Tensor:
        """Scale values, NaN where missing."""
        scaled = (values - self.centre) / self.spread
        return torch.where(scaled.isnan(), self.fill, scaled)
