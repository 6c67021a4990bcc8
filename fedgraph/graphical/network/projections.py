"""Projections of wide features to a few numbers, learned with the network that sees them.

Shrivastava, Chajewska: Neural Graphical Models (ECSQARU 2023) use perceptrons as projection modules; here they are
linear maps, which is as general for categories, and is followed by a non-linear layer for embeddings. So projections
are multiplied into that layer's weights, and nothing else changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.network.settings import NGMSettings


class Projections:
    """Projections of the features of a schema with more than ``projected_above`` units; true if there are any.

    input_feature : the feature that each input of the first layer belongs to, int64 ``[inputs]``, in rising order.
    unit_feature  : the feature of each unit that is projected, int64 ``[projected units]``.
    spread        : divisor of the initial numbers from -1 to 1, ``[projected units, 1]``.
    """

    def __init__(self, schema: Schema, settings: NGMSettings) -> None:
        above = settings.projected_above
        wide = torch.tensor([above is not None and feature.width > above for feature in schema.features])
        widths = torch.bincount(schema.unit_feature, minlength=len(wide))
        inputs = torch.where(wide, settings.projection, widths)
        self.width = settings.projection
        self.input_feature = torch.arange(len(wide)).repeat_interleave(inputs)
        self._projected = wide[schema.unit_feature].nonzero()[:, 0]
        self.unit_feature = schema.unit_feature[self._projected]
        is_number = torch.tensor([feature.is_scaled for feature in schema.features])
        self.spread = torch.where(is_number, widths, 1)[self.unit_feature, None].sqrt()
        is_wide_input = wide[self.input_feature]
        self._slots, self._direct_inputs = (each.nonzero()[:, 0] for each in (is_wide_input, ~is_wide_input))
        self._direct = (~wide[schema.unit_feature]).nonzero()[:, 0]
        #: Position of each unit when those that are not projected come first.
        self._order = torch.cat([self._direct, self._projected]).argsort()
        #: The projected units of each slot, ``[slots, projected units]``.
        self._own = (self.input_feature[self._slots][:, None] == self.unit_feature).float()

    def __bool__(self) -> bool:
        return len(self._projected) > 0

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the weights: for each projected unit a vector."""
        return len(self._projected), self.width

    def applied(self, weight: Tensor, projection: Tensor) -> Tensor:
        """Convert weights of inputs ``[clients, groups, width, inputs]`` to weights of units ``[..., units]``.

        projection : ``[clients, projected units, projection]``.
        """
        matrix = projection.mT.repeat(1, len(self._slots) // self.width, 1) * self._own
        wide = weight.index_select(3, self._slots).flatten(1, 2) @ matrix
        together = torch.cat([weight.index_select(3, self._direct_inputs), wide.view(*weight.shape[:3], -1)], 3)
        return together.index_select(3, self._order)

    def parted(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Split factors of units ``[clients, units]`` into those of inputs (1 for projections) and projected units."""
        of_inputs = factors.new_ones(len(factors), len(self.input_feature))
        of_inputs = of_inputs.index_copy(1, self._direct_inputs, factors[:, self._direct])
        return of_inputs, factors[:, self._projected]
