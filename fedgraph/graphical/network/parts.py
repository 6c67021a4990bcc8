"""Predictions of each feature given all others, for groups of features that are not neighbours.

Given everything else such features are independent, so they can be computed or drawn at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.network.grouped_layers import GroupedLayers
from fedgraph.graphical.network.heads import Heads, normalised
from fedgraph.graphical.network.network import Network, Weights


@dataclass(frozen=True)
class Part:
    """Some features of a network, predicted without the others.

    units     : of these features, int64 ``[units of the part]``; tensors of units below are in this order.
    owner     : position of each unit's feature among those of the part.
    is_number : of each unit.
    features  : positions in the schema.
    """

    units: Tensor
    owner: Tensor
    is_number: Tensor
    features: Tensor
    _heads: Heads
    _weights: Weights
    _slots: Tensor
    _normalised: bool

    def __call__(self, inputs: Tensor, shift: Tensor | None = None) -> Tensor:
        """Predict expectations of numbers and probabilities of categories, ``[clients, units of the part, rows]``.

        inputs : all of the network's, without missing values (:meth:`Network.inputs`).
        shift  : added to outputs, which are numbers or logits, ``[clients, units of the network, 1]``.
        """
        return self.predictions(self.outputs(inputs), shift)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Compute the outputs before they are shifted and converted to predictions."""
        found, _ = self._weights.layers.forward(inputs)
        return found.view(len(inputs), -1, inputs.shape[2]).index_select(1, self._slots) + self._weights.offset

    def predictions(self, outputs: Tensor, shift: Tensor | None = None) -> Tensor:
        """Convert outputs, shifted, to predictions."""
        predictions = self._heads.predictions(outputs if shift is None else outputs + shift[:, self.units])
        if self._normalised:
            return predictions
        return torch.where(self.is_number[:, None], predictions, normalised(predictions, self.owner))

    def centre(self, predictions: Tensor, mean: Tensor) -> Tensor:
        """Return the shift of outputs that moves the mean of ``predictions`` over rows to ``mean``.

        It is exact for numbers; for categories it is a step towards it. ``mean`` and result are ``[clients, units of
        the part, 1]``.
        """
        wanted, found = (self._heads.marginal(each[..., 0]) for each in (mean, predictions.mean(2, keepdim=True)))
        return (wanted - found)[..., None]


def colour_classes(adjacency: Tensor) -> list[Tensor]:
    """Divide features into few classes without neighbours, by greedy colouring: ascending positions, int64.

    adjacency : bool ``[features, features]``, or with a leading client axis: then neighbours of no client share a
                class.
    """
    graph = adjacency.any(0) if adjacency.dim() == 3 else adjacency
    graph = graph | graph.T
    colours = torch.full((len(graph),), -1, dtype=torch.int64)
    for feature in graph.sum(1).argsort(descending=True, stable=True).tolist():
        taken = set(colours[graph[feature]].tolist())
        colours[feature] = next(colour for colour in range(len(graph)) if colour not in taken)
    return [(colours == colour).nonzero()[:, 0] for colour in range(int(colours.max()) + 1)]


def split_parts(network: Network, parameters: Tensor, features: Tensor | None = None) -> list[Part]:
    """Return parts that together contain the ``features`` (bool ``[features]``; None: all), each without neighbours.

    ``parameters`` ``[clients, parameters]`` are copied.
    """
    with torch.no_grad():
        weights = network.weights(network.state(parameters))
    classes = colour_classes(network.adjacency)
    if features is not None:
        classes = [some[features[some]] for some in classes]
    return [_part(network, weights, some) for some in classes if len(some)]


def _part(network: Network, weights: Weights, features: Tensor) -> Part:
    schema = network.schema
    units = torch.isin(schema.unit_feature, features).nonzero()[:, 0]
    owner = torch.searchsorted(features, schema.unit_feature[units])
    layers, clients = weights.layers, len(weights.offset)
    if network.masked:
        within = units - network.first_units[schema.unit_feature[units]]
        outputs = int(within.max()) + 1

        def chosen(values: Tensor) -> Tensor:
            return values.unflatten(0, (clients, network.groups))[:, features].flatten(0, 1)

        first = layers.weights[0].unflatten(1, (network.groups, -1))[:, features].flatten(1, 2)
        layers = GroupedLayers(
            [first, *(chosen(weight) for weight in layers.weights[1:])],
            [chosen(bias) for bias in layers.biases],
            chosen(layers.head)[:, :outputs].contiguous(),
        )
        slots = owner * outputs + within
    else:
        layers = GroupedLayers(layers.weights, layers.biases, layers.head[:, units])
        slots = torch.arange(len(units))
    cross_entropy = network.settings.loss == "cross-entropy"
    return Part(
        units=units,
        owner=owner,
        is_number=network.heads.is_number[units],
        features=features,
        _heads=Heads(Schema(tuple(schema.features[place] for place in features.tolist())), cross_entropy),
        _weights=Weights(layers, weights.offset[:, units]),
        _slots=slots,
        _normalised=cross_entropy,
    )
