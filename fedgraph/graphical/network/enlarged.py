"""The paper's perceptron made larger around a global model that stays as it is.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.4 and fig. 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.network.network import Network, without_loops
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.network.stitched import check_stitchable, stitched_graph


def enlarged(common: Network, schema: Schema, adjacency: Tensor, settings: NGMSettings) -> Network:
    """A ``path-norm`` network with inputs and outputs for private features, and more hidden units in each layer.

    All that is new is linked to everything in the layers before and behind it. A missing input counts as its mean, of a
    common feature as the global model knows it.

    schema    : the features of ``common`` first, then the private ones.
    adjacency : the client's own graph, see :func:`fedgraph.graphical.network.stitched.stitched_graph`.
    settings  : ``hidden`` of which is how many units each layer is given.

    Raises what :class:`fedgraph.graphical.network.stitched.StitchedNetwork` raises.
    """
    check_stitchable(common, schema, settings)
    graph = stitched_graph(common.adjacency, without_loops(adjacency, len(schema.features)))
    return Network(schema, graph, settings.model_copy(update={"hidden": common.settings.width + settings.width}))


def global_part(network: Network, common: Network) -> Tensor:
    """What of a model of the enlarged network is the global one, bool ``[parameters]``: a corner of every tensor.

    In the order in which it lies in the global model's own row.
    """
    found = torch.zeros(1, network.layout.num_parameters, dtype=torch.bool)
    for name, values in network.layout.unflatten(found).items():
        values[_corner(common, name)] = True
    return found[0]


def without_new_influence(network: Network, common: Network, parameters: Tensor) -> Tensor:
    """``parameters`` ``[clients, parameters]`` with 0 for new weights that would change what global units compute."""
    changed = parameters.clone()
    for name, values in network.layout.unflatten(changed).items():
        if name.endswith(".weight"):
            *rows, columns = _corner(common, name)
            values[(*rows, slice(columns.stop, None))] = 0
    return changed


def _corner(common: Network, name: str) -> tuple[slice, ...]:
    shape = common.layout.shapes[common.layout.names.index(name)]
    return (slice(None), *(slice(size) for size in shape))
