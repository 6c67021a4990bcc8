"""A client's network over common and private features: a frozen global network with stitched additions.

``masked`` networks get layers beside the global ones, which excludes forbidden influences; ``path-norm`` networks are
enlarged.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.4 and fig. 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.data.schema import Schema
from fedgraph.graphical.network.grouped_layers import GroupedLayers
from fedgraph.graphical.network.network import Network, Weights, without_loops
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.models import Layout
from fedgraph.support.errors import DataError, RunError

_PREFIX = "global."


def stitched_graph(common: Tensor, own: Tensor) -> Tensor:
    """Join the global graph and the edges of a client's graph that touch a private feature (section 2.4).

    ``common`` is bool ``[..., common features, common features]``, ``own`` and the result ``[..., features, features]``
    with the common features first. Between common features only the global graph counts.
    """
    more = own.shape[-1] - common.shape[-1]
    return torch.where(touches_private(own.shape[-1], more), own, functional.pad(common, (0, more, 0, more)))


def touches_private(features: int, private: int) -> Tensor:
    """Return the pairs with any of the last ``private`` features, bool ``[features, features]``."""
    of_feature = torch.arange(features) >= features - private
    return of_feature | of_feature[:, None]


def check_stitchable(common: Network, schema: Schema, settings: NGMSettings) -> None:
    """Raise DataError unless ``schema`` begins with the common features, RunError unless the networks are alike."""
    if schema.features[: len(common.schema.features)] != common.schema.features:
        raise DataError(
            f"a stitched model needs the features of the global one first and unchanged, "
            f"{', '.join(common.schema.names)}; but the client's are {', '.join(schema.names)}"
        )
    for key in ("architecture", "layers", "loss"):
        here, present = getattr(settings, key), getattr(common.settings, key)
        if here != present:
            raise RunError(f"{key} is {here!r} for stitching and {present!r} in the global model: both must agree")


class StitchedNetwork(Network):
    """A global ``masked`` network, and groups of hidden units beside it for features that touch private ones.

    A private feature has its own group. A common feature with private neighbours has one that sees all its
    neighbours, and its output is added to that of the global network, before probabilities are
    taken. It starts as 0; and it counts only where a private neighbour is known, so that elsewhere predictions are
    bitwise identical to the global model's. Other common features are predicted by the global model alone.

    The tensors of the global model are buffers named ``global.``, which no training touches; other tensors are those of
    a network over all features.

    schema    : the features of ``common`` first, then the private ones.
    adjacency : the client's own graph, bool ``[features, features]`` or with a leading client axis, from which
                :func:`stitched_graph` makes that of the network.
    common    : the global network.

    Raises DataError for other features, RunError where the networks are not alike, GraphError as a network does.
    """

    def __init__(self, schema: Schema, adjacency: Tensor, settings: NGMSettings, common: Network) -> None:
        check_stitchable(common, schema, settings)
        features, known = len(schema.features), len(common.schema.features)
        graph = stitched_graph(common.adjacency, without_loops(adjacency, features))
        is_private = torch.arange(features) >= known
        needed = graph & is_private & ~is_private[:, None]
        grows = needed.any(-1) | is_private
        super().__init__(schema, graph & grows[..., None], settings)
        self.adjacency = graph
        self.common = common
        self._is_private = is_private[schema.unit_feature]
        self._common_units = len(common.unit_group)
        #: Private neighbours of each common feature, one of which must be known, and units that need none.
        self._needed = needed.float()
        self._always = ~needed.any(-1)[..., schema.unit_feature, None]
        self._learned = grows[..., schema.unit_feature, None]
        #: The last biases of features that are not learned are 0, unless their predictions are shifted.
        linked = graph.any(-1)[..., schema.unit_feature, None].float()
        self._biased = linked if linked.dim() == 3 else linked[None]

    def over(self, adjacency: Tensor) -> StitchedNetwork:
        """See :meth:`fedgraph.graphical.network.network.Network.over`; between common features the global graph
        stays."""
        return StitchedNetwork(self.schema, adjacency, self.settings, self.common)

    @property
    def common_size(self) -> tuple[int, int]:
        """Number of features of the global network, and of its hidden units for each."""
        return len(self.common.schema.features), self.common.settings.width

    @classmethod
    def rebuilt(
        cls, schema: Schema, adjacency: Tensor, settings: NGMSettings, size: tuple[int, int]
    ) -> StitchedNetwork:
        """Rebuild a network from its own schema, graph, settings and ``common_size``, as a file contains them."""
        features, hidden = size
        alike = settings.model_copy(update={"hidden": hidden})
        known = Network(schema.select(schema.names[:features]), adjacency[..., :features, :features], alike)
        return cls(schema, adjacency, settings, known)

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of one model's tensors, those of the global model last."""
        own, common = super().layout, self.common.layout
        names = tuple(_PREFIX + name for name in common.names)
        return Layout(own.names + names, own.shapes + common.shapes, own.buffers | frozenset(names))

    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw one model before training, ``[parameters]``, with a global model of zeros."""
        row = super().initial(generator)
        state = self.layout.unflatten(row[None])
        state["head.weight"][:, ~self._is_private] = 0
        for name, values in state.items():
            if name.startswith(_PREFIX):
                values.zero_()
        return row

    @property
    def frozen(self) -> Tensor:
        """Mask of the global model's parameters, bool ``[parameters]``, in the order of the global model."""
        part = self.layout.part(name for name in self.layout.names if name.startswith(_PREFIX))
        return torch.zeros(self.layout.num_parameters, dtype=torch.bool).index_fill(0, self.layout.columns(part), True)

    def common_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the global model's tensors among a model's."""
        return {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}

    def forward(self, parameters: Tensor, units: Tensor) -> Tensor:
        """See :meth:`fedgraph.graphical.network.network.Network.forward`."""
        state, units = self.state(parameters), units.transpose(1, 2)
        weights = self.learned_weights(state)
        added = self.outputs(weights.layers(self.inputs(state, units)), weights.offset)
        outputs = self.base(state, units) + torch.where(self._counts(units), added, 0.0)
        return self.heads.predictions(outputs).transpose(1, 2)

    def learned_weights(self, state: Mapping[str, Tensor]) -> Weights:
        """Return the weights of the additions to the global network."""
        return super().weights(state)

    def weights(self, state: Mapping[str, Tensor]) -> Weights:
        """Return the weights of both networks as one with wider groups, for rows without missing values.

        To float tolerance its predictions are those of :meth:`forward`; the global weights are rescaled to the client's
        means and deviations.
        """
        added, count, units = self.learned_weights(state), self._common_units, len(self.unit_group)
        row = self.common.layout.flatten(self.common_state(state))
        row = self.common.rescaled(row, state["mean"][:, :count], state["deviation"][:, :count])
        frozen = self.common.weights(self.common.state(row))
        offset = added.offset + functional.pad(frozen.offset, (0, 0, 0, units - count))
        return Weights(_side_by_side(added.layers, frozen.layers, len(row), (units, count)), offset)

    def unlearned(self, state: Mapping[str, Tensor]) -> Tensor:
        """See :meth:`fedgraph.graphical.network.network.Network.unlearned`; nothing is added to common features."""
        return super().unlearned(state) * self._is_private

    def base(self, state: Mapping[str, Tensor], units: Tensor) -> Tensor:
        """Return the outputs of the global model, 0 for private features; ``[clients, units, rows]`` like ``units``."""
        common, count = self.common_state(state), self._common_units
        weights = self.common.weights(common)
        found = weights.layers(self.common.inputs(common, units[:, :count]))
        return functional.pad(self.common.outputs(found, weights.offset), (0, 0, 0, units.shape[1] - count))

    def learned_from(self, units: Tensor) -> Tensor:
        """See :meth:`fedgraph.graphical.network.network.Network.learned_from`; not where the global model predicts."""
        return super().learned_from(units) & self._counts(units) & self._learned

    def _counts(self, units: Tensor) -> Tensor:
        """Return where the additions count, bool ``[clients, units, rows]``."""
        known = (~units.index_select(1, self.first_units).isnan()).float()
        return (self._needed @ known > 0).index_select(1, self.schema.unit_feature) | self._always


def _side_by_side(layers: GroupedLayers, others: GroupedLayers, clients: int, units: tuple[int, int]) -> GroupedLayers:
    """Join groups of hidden units; ``others`` have fewer groups, inputs and outputs, which are the first ones.

    The output of a group is the sum of both outputs. ``units`` are how many each sees, without inputs that
    indicate missing values, which are left out.
    """
    groups = len(layers.head) // clients
    missing = groups - len(others.head) // clients

    def filled(values: Tensor) -> Tensor:
        """Return ``[clients * groups, ...]`` of the others, with 0 for groups that they lack."""
        values = values.unflatten(0, (clients, -1))
        return functional.pad(values, (0, 0) * (values.dim() - 2) + (0, missing)).flatten(0, 1)

    def first(values: Tensor, groups: int, seen: int) -> Tensor:
        """Return the first weights by group, ``[clients * groups, width, units]``."""
        return functional.pad(values.unflatten(1, (groups, -1)).flatten(0, 1)[..., :seen], (0, units[0] - seen))

    own, other = first(layers.weights[0], groups, units[0]), first(others.weights[0], groups - missing, units[1])
    weights = [torch.cat([own, filled(other)], 1).unflatten(0, (clients, groups)).flatten(1, 2)]
    for own, other in zip(layers.weights[1:], others.weights[1:], strict=True):
        own_width, other_width = own.shape[2], other.shape[2]
        own, other = functional.pad(own, (0, other_width)), functional.pad(filled(other), (own_width, 0))
        weights.append(torch.cat([own, other], 1))
    biases = [torch.cat([own, filled(other)], 1) for own, other in zip(layers.biases, others.biases, strict=True)]
    head = functional.pad(others.head, (0, 0, 0, layers.head.shape[1] - others.head.shape[1]))
    return GroupedLayers(weights, biases, torch.cat([layers.head, filled(head)], 2))


def enlarged(common: Network, schema: Schema, adjacency: Tensor, settings: NGMSettings) -> Network:
    """Return a ``path-norm`` network with inputs and outputs for private features, and more hidden units in each layer.

    New units are fully connected. A missing input counts as its mean, for a common feature the mean of the global
    model.

    schema    : the features of ``common`` first, then the private ones.
    adjacency : the client's own graph, see :func:`fedgraph.graphical.network.stitched.stitched_graph`.
    settings  : its ``hidden`` is the number of units that are added to each layer.

    Raises what :class:`fedgraph.graphical.network.stitched.StitchedNetwork` raises.
    """
    check_stitchable(common, schema, settings)
    graph = stitched_graph(common.adjacency, without_loops(adjacency, len(schema.features)))
    return Network(schema, graph, settings.model_copy(update={"hidden": common.settings.width + settings.width}))


def global_part(network: Network, common: Network) -> Tensor:
    """Mask the global parameters in an enlarged model, bool ``[parameters]``: a corner of every tensor.

    It is in the order of the global model's own row.
    """
    found = torch.zeros(1, network.layout.num_parameters, dtype=torch.bool)
    for name, values in network.layout.unflatten(found).items():
        values[_corner(common, name)] = True
    return found[0]


def without_new_influence(network: Network, common: Network, parameters: Tensor) -> Tensor:
    """Return ``parameters`` ``[clients, parameters]`` with 0 for new weights into the global hidden units."""
    changed = parameters.clone()
    for name, values in network.layout.unflatten(changed).items():
        if name.endswith(".weight"):
            *rows, columns = _corner(common, name)
            values[(*rows, slice(columns.stop, None))] = 0
    return changed


def _corner(common: Network, name: str) -> tuple[slice, ...]:
    shape = common.layout.shapes[common.layout.names.index(name)]
    return (slice(None), *(slice(size) for size in shape))
