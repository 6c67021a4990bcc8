"""Networks that predict every feature of a mixed table from others, for many clients at once.

Shrivastava, Chajewska: Neural Graphical Models (ECSQARU 2023), and Federated Learning with Neural Graphical Models,
section 2. The ``masked`` architecture, which excludes forbidden influences, is not from these papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.data.schema import Schema
from fedgraph.graphical.network.grouped_layers import GroupedLayers
from fedgraph.graphical.network.heads import Heads
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.models import Layout
from fedgraph.support.errors import GraphError, RunError

BUFFERS = ("mean", "deviation", "residual")
"""Tensors ``[units]`` of a model that no gradient changes: mean and standard deviation of units in the training rows
(deviation 1 for indicators of categories), and the mean squared error of their predictions in held-out rows.
"""

AT_ONCE = 2**16
"""Most rows of all models that are drawn or computed at once, to bound the memory."""

ROWS = 4096
"""Number of rows that are predicted at once."""

CONSTANT = 1e-6
"""Largest standard deviation of a number that counts as constant."""


class Weights(NamedTuple):
    """A network's weights, arranged for its matrix products.

    offset : ``[clients, units, 1]``, added to the output of the layers.
    """

    layers: GroupedLayers
    offset: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """All weights, in the order in which layers return gradients, and the offset."""
        return [*self.layers.weights, *self.layers.biases, self.layers.head, self.offset]


class Network:
    """A network of one architecture over one graph. Models are rows of a matrix ``[clients, parameters]``.

    Hidden units form groups with separate layers. ``masked``: one group per feature, which sees the units of the
    feature's neighbours and predicts the feature, so neither other features nor the feature itself have any influence;
    without neighbours it is predicted by its mean. ``path-norm``: a single group, which sees everything.

    Inputs and outputs of a masked network are units as they deviate from their means in the training rows, numbers in
    standard deviations. It learns the effect of a missing neighbour; until it has met such rows, a missing value counts
    as the mean, as it always does in the paper's perceptron.

    adjacency : bool ``[features, features]``, row: the predicted feature, column: one that it may be predicted from; or
                one for each client, ``[clients, features, features]``. Its diagonal is ignored.
    groups    : their number; ``unit_group`` and ``feature_group`` contain the group from which each unit or feature is
                read.

    Raises GraphError when the graph is not such a matrix.
    """

    def __init__(self, schema: Schema, adjacency: Tensor, settings: NGMSettings) -> None:
        features = len(schema.features)
        self.schema = schema
        self.settings = settings
        self.adjacency = without_loops(adjacency, features)
        self.heads = Heads(schema, settings.loss == "cross-entropy")
        self.masked = settings.architecture == "masked"
        self.groups = features if self.masked else 1
        self.feature_group = torch.arange(features) if self.masked else torch.zeros(features, dtype=torch.int64)
        self.unit_group = self.feature_group[schema.unit_feature]
        #: 1 for the units of each feature, ``[units, features]``.
        self.membership = functional.one_hot(schema.unit_feature, features).float()
        #: The first unit of each feature, as all units of a feature are missing, or none.
        self.first_units = torch.searchsorted(schema.unit_feature, torch.arange(features))
        graphs = self.adjacency if self.adjacency.dim() == 3 else self.adjacency[None]
        #: Features that the hidden units of each group see, ``[1 or clients, groups, 1, features]``, and units.
        self._seen_features = graphs.float()[:, :, None] if self.masked else torch.ones(1, 1, 1, features)
        self._seen = self._seen_features[..., schema.unit_feature]
        #: Units of groups that see anything, ``[1 or clients, units, 1]``.
        self._informed = (self._seen.sum((2, 3)) > 0).float()[:, self.unit_group, None]
        #: Units whose last bias counts, of the same shape.
        self._biased = self._informed
        self._read, self._is_read, self._place = _slots(self.unit_group, self.groups)

    def over(self, adjacency: Tensor) -> Network:
        """Return a network of the same models over another graph."""
        return Network(self.schema, adjacency, self.settings)

    @property
    def linked(self) -> Tensor:
        """The features from which each may be predicted in the model of any client, bool ``[features, features]``."""
        return self.adjacency.any(0) if self.adjacency.dim() == 3 else self.adjacency

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of one model's tensors; the buffers lie behind the parameters proper."""
        groups, width, units = self.groups, self.settings.width, len(self.unit_group)
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(self.settings.layers):
            shapes[f"hidden.{layer}.weight"] = (groups, width, width if layer else units)
            shapes[f"hidden.{layer}.bias"] = (groups, width)
        if self.masked:
            shapes["missing.weight"] = (groups, width, len(self.schema.features))
        shapes |= {"head.weight": (units, width), "head.bias": (units,)}
        shapes |= dict.fromkeys(BUFFERS, (units,))
        return Layout(tuple(shapes), tuple(shapes.values()), frozenset(BUFFERS))

    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw one model before training, ``[parameters]``.

        Weights and biases of a layer that sees n inputs are uniform within ``1 / sqrt(n)`` of 0; the last biases and
        the weights of missing features are 0.
        """
        row = torch.rand(1, self.layout.num_parameters, generator=generator) * 2 - 1
        state = self.layout.unflatten(row)
        seen = self._seen.sum(3, keepdim=True).amax(0).clamp(min=1)
        for name, values in state.items():
            if name == "hidden.0.weight":
                values /= seen.sqrt()
            elif name == "hidden.0.bias":
                values /= seen[..., 0].sqrt()
            elif name == "deviation":
                values.fill_(1)
            elif name in ("missing.weight", "head.bias", *BUFFERS):
                values.zero_()
            else:
                values /= self.settings.width**0.5
        return row[0]

    def pruned(self, parameters: Tensor) -> Tensor:
        """Return ``parameters`` ``[clients, parameters]`` with 0 for all that the graph leaves without an effect.

        The predictions are then the same in a network over a larger graph.
        """
        state = self.state(parameters)
        state["hidden.0.weight"] = self.first_weight(state)
        if self.masked:
            state["missing.weight"] = state["missing.weight"] * self._seen_features
        state["head.weight"] = state["head.weight"] * self._informed
        state["head.bias"] = state["head.bias"] * self._informed[..., 0]
        return self.layout.flatten(state)

    def with_moments(self, parameters: Tensor, rows: Tensor) -> Tensor:
        """Return ``parameters`` ``[clients, parameters]`` with the moments of ``rows`` ``[clients, rows, units]``.

        The mean of a feature that was never observed is 0.5, or shared evenly among its categories.
        """
        mean = rows.nanmean(1)
        deviation = (rows - mean[:, None]).square().nanmean(1).sqrt()
        widths = torch.tensor([2 if feature.is_scaled else max(feature.width, 2) for feature in self.schema.features])[
            self.schema.unit_feature
        ]
        found = self.with_buffer(parameters, "mean", torch.where(mean.isnan(), 1 / widths, mean))
        # Scaling would move indicators of rare categories far from 0.
        scaled = self.heads.is_number & (deviation > CONSTANT)
        return self.with_buffer(found, "deviation", torch.where(scaled, deviation, 1.0))

    def with_buffer(self, parameters: Tensor, name: str, values: Tensor) -> Tensor:
        """Return ``parameters`` ``[clients, parameters]`` with ``values`` ``[clients, units]`` as buffer ``name``."""
        return parameters.index_copy(1, self.layout.columns(self.layout.part([name])), values)

    def rescaled(self, parameters: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return models ``[clients, parameters]`` with the same predictions and another mean and deviation of units.

        ``mean`` and ``deviation`` are ``[units]`` for all or ``[clients, units]``. The paper's perceptron takes units
        as they are; of its models only the means change, which replace missing values.
        """
        state = dict(self.state(parameters))
        old_mean, old_deviation = state["mean"], state["deviation"]
        if self.masked:
            # Units in the old scaling are ratio * units in the new scaling + shift.
            ratio, shift = deviation / old_deviation, (mean - old_mean) / old_deviation
            first = self.first_weight(state)
            state["hidden.0.weight"] = state["hidden.0.weight"] * ratio[:, None, None]
            shifts = first * shift[:, None, None]
            state["hidden.0.bias"] = state["hidden.0.bias"] + shifts.sum(3)
            # Missing values were 0 before, and have to be 0 again.
            state["missing.weight"] = state["missing.weight"] - shifts @ self.membership
            state["head.weight"] = state["head.weight"] / ratio[..., None]
            marginal = self.unlearned(state) - self.heads.marginal(mean.expand_as(old_mean))
            state["head.bias"] = (state["head.bias"] * old_deviation + marginal) / deviation
        state["mean"] = mean.expand_as(old_mean)
        state["deviation"] = deviation.expand_as(old_deviation)
        return self.pruned(self.layout.flatten(state))

    def forward(self, parameters: Tensor, units: Tensor) -> Tensor:
        """Predict all units from those of other features, ``[clients, rows, units]``; NaN stands for missing.

        ``parameters`` is ``[clients, parameters]``, ``units`` ``[clients, rows, units]``; rows do not influence each
        other, and predictions are differentiable, once. A number is predicted by its expectation, units of binary and
        categorical features by probabilities (under the squared loss by estimates, see :meth:`probabilities`).
        """
        state = self.state(parameters)
        weights = self.weights(state)
        found = weights.layers(self.inputs(state, units.transpose(1, 2)))
        return self.heads.predictions(self.outputs(found, weights.offset)).transpose(1, 2)

    @torch.no_grad()
    def predict(self, parameters: Tensor, units: Tensor) -> Tensor:
        """Compute :meth:`forward` without gradients and in blocks of rows, which bounds the memory."""
        return torch.cat([self.forward(parameters, some) for some in units.split(ROWS, 1)], 1)

    def probabilities(self, predictions: Tensor, name: str) -> Tensor:
        """Return probabilities of a feature's categories, ``[..., categories]``, from predictions ``[..., units]``.

        Estimates under the squared loss are cut to 0 and 1, and divided by their sum.
        """
        units = predictions[..., self.schema.slices[name]].clamp(0, 1)
        if units.shape[-1] == 1:
            return torch.cat([1 - units, units], -1)
        total = units.sum(-1, keepdim=True)
        # If all estimates are negative, categories are equally probable.
        return torch.where(total > 0, units / total.clamp(min=1e-12), 1 / units.shape[-1])

    def state(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return named tensors with a leading client axis. Raises RunError for ``parameters`` of other networks."""
        wanted = self.layout.num_parameters
        if parameters.dim() != 2 or parameters.shape[1] != wanted:
            raise RunError(
                f"models of this network are a matrix {['clients', wanted]}, but this one is "
                f"{list(parameters.shape)}: were they made for other features or settings?"
            )
        return self.layout.unflatten(parameters)

    def inputs(self, state: Mapping[str, Tensor], units: Tensor) -> Tensor:
        """Return units ``[clients, units, rows]``, NaN for missing, as inputs of the first layer: filled in and scaled.

        In a masked network with missing values, as many more inputs as there are features indicate which ones are
        missing.
        """
        absent = units.isnan()
        any_absent = bool(absent.any())
        mean = state["mean"][:, :, None]
        values = torch.where(absent, mean, units) if any_absent else units
        if not self.masked:
            return values
        scaled = (values - mean) / state["deviation"][:, :, None]
        return torch.cat([scaled, absent.index_select(1, self.first_units)], 1) if any_absent else scaled

    def unlearned(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return outputs of a masked network that knows nothing but means, ``[clients, units]``."""
        return self.heads.marginal(state["mean"])

    def base(self, state: Mapping[str, Tensor], units: Tensor) -> Tensor | None:
        """Return the part of outputs of rows ``[clients, units, rows]`` that is not learned; None without such."""
        return None

    def learned_from(self, units: Tensor) -> Tensor:
        """Return which targets of rows ``[clients, units, rows]`` are learned from: here all observed ones, bool."""
        return ~units.isnan()

    def weights(self, state: Mapping[str, Tensor]) -> Weights:
        """Return the weights of a model's tensors, without those that the graph forbids."""
        width = self.settings.width
        names = [f"hidden.{layer}" for layer in range(self.settings.layers)]
        first, head = self.first_weight(state), self.head_weight(state)
        offset = state["head.bias"][:, :, None] * self._biased
        if self.masked:
            first = torch.cat([first, state["missing.weight"] * self._seen_features], 3)
            deviation = state["deviation"][:, :, None]
            offset = offset * deviation + self.unlearned(state)[:, :, None]
            head = head * deviation.index_select(1, self._read).view(head.shape[:3])[..., None]
        further = [state[f"{name}.weight"].reshape(-1, width, width) for name in names[1:]]
        biases = [state[f"{name}.bias"].reshape(-1, width) for name in names]
        layers = GroupedLayers([first.flatten(1, 2), *further], biases, head.flatten(0, 1))
        return Weights(layers, offset)

    def learned_weights(self, state: Mapping[str, Tensor]) -> Weights:
        """Return the weights that are trained: here all."""
        return self.weights(state)

    def first_weight(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return first weights ``[clients, groups, width, units]``, exactly 0 for units that a group does not see."""
        return state["hidden.0.weight"] * self._seen

    def head_weight(self, state: Mapping[str, Tensor]) -> Tensor:
        """Return the last weights ``[clients, groups, outputs, width]``, exactly 0 in groups that see nothing.

        See :meth:`in_order` for the order of the outputs.
        """
        weight = (state["head.weight"] * self._informed).index_select(1, self._read) * self._is_read
        return weight.unflatten(1, (self.groups, -1))

    def outputs(self, found: Tensor, offset: Tensor) -> Tensor:
        """Arrange the output of the layers, ``[clients * groups, outputs, rows]`` -> ``[clients, units, rows]``.

        :class:`fedgraph.graphical.network.heads.Heads` reads them in this order.
        """
        outputs = len(found) // len(offset) * found.shape[1]
        return offset + self.in_order(found.view(len(offset), outputs, found.shape[2]))

    def of_found(self, gradient: Tensor) -> Tensor:
        """Convert the gradient of :meth:`outputs` to that of the output of the layers."""
        if self._place is not None:
            gradient = gradient.index_select(1, self._read) * self._is_read
        outputs = gradient.shape[1] // self.groups
        return gradient.view(len(gradient) * self.groups, outputs, gradient.shape[2])

    def in_order(self, found: Tensor) -> Tensor:
        """Reorder outputs of groups, ``[clients, groups * outputs, ...]`` -> ``[clients, units, ...]``."""
        return found if self._place is None else found.index_select(1, self._place)


def without_loops(adjacency: Tensor, features: int) -> Tensor:
    """Return a graph, bool ``[..., features, features]``, without its diagonal; raise GraphError for other shapes."""
    if adjacency.dtype != torch.bool or adjacency.dim() not in (2, 3) or adjacency.shape[-2:] != (features,) * 2:
        raise GraphError(
            f"the graph of {features} features must be a boolean matrix {[features, features]}, but it is "
            f"{adjacency.dtype} {list(adjacency.shape)}"
        )
    return adjacency & ~torch.eye(features, dtype=torch.bool)


def _slots(unit_group: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the slots of units, as all groups compute as many outputs as the largest has units.

    They are the unit of each slot, int64 ``[groups * outputs]``; 1 for slots that are used and 0 for others ``[groups *
    outputs, 1]``; and the slot of each unit, None when slots are the units in order.
    """
    counts = torch.bincount(unit_group, minlength=groups)
    most, units = int(counts.max()), torch.arange(len(unit_group))
    slot = unit_group * most + units - (counts.cumsum(0) - counts)[unit_group]
    unit = torch.zeros(groups * most, dtype=torch.int64).index_copy(0, slot, units)
    used = torch.zeros(groups * most, 1).index_fill(0, slot, 1.0)
    return unit, used, None if len(slot) == len(used) else slot
