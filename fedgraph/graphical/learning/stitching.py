"""Stitching: a client's own model over common and private features, around a frozen global model.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.4, and 2.5 for neural graph
revealers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.learning.dependence import dependencies, derivatives, read_graph
from fedgraph.graphical.learning.ngm import SAMPLE, NGMFit, fitted
from fedgraph.graphical.learning.ngr import NGRFit
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.penalties import PathPenalty, SparsePaths
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.graphical.network.stitched import (
    StitchedNetwork,
    enlarged,
    global_part,
    stitched_graph,
    touches_private,
    without_new_influence,
)
from fedgraph.graphical.network.training import Penalty, train
from fedgraph.support.randomness import generator


class GlobalModel(NamedTuple):
    """Global model that a client received.

    Attributes
    ----------
    network : Network
        Over the common features.
    parameters : Tensor
        ``[1, parameters]``.
    """

    network: Network
    parameters: Tensor


class ClientRows(NamedTuple):
    """Rows of one client, as units ``[rows, units]``, NaN for missing.

    Attributes
    ----------
    name : str
        Name of the client.
    training, held_out : Tensor
        The two parts of its table.
    """

    name: str
    training: Tensor
    held_out: Tensor


def stitch_ngm(
    model: GlobalModel, schema: Schema, adjacency: Tensor, rows: ClientRows, settings: NGMSettings, seed: int
) -> NGMFit:
    """Train a client's additions to the global model, for its private features and the common ones that depend on them.

    No weight of the global model changes. In ``masked`` networks, wherever no private neighbour of a common feature is
    known its prediction is the global model's, see :class:`fedgraph.graphical.network.stitched.StitchedNetwork`. For
    ``path-norm`` see :func:`fedgraph.graphical.network.stitched.enlarged`; as in the paper the loss is eq. 1 for the
    whole network, with a penalty on all of its forbidden paths, those through frozen weights included, while the
    tolerance counts what is added to these. Returns the model of the client. Raises DataError when the schema does not
    begin with the common features, or rows do not fit it. Raises RunError when the settings do not go with the global
    model's, or training diverges.

    Parameters
    ----------
    model : GlobalModel
        The global model.
    schema : Schema
        The common features first, then the private ones
        (:func:`fedgraph.data.schema.agreement.with_private_features`).
    adjacency : Tensor
        The client's own graph over them, bool ``[features, features]``; only edges that touch a private feature are
        used.
    rows : ClientRows
        Rows of the client.
    settings : NGMSettings
        As of the global model, except ``hidden``: units of the additions, for each feature in ``masked`` networks and
        in total in others.
    seed : int
        Seed of the experiment.
    """
    start = _started(model, schema, adjacency, rows.name, settings, seed)
    penalty = None if start.network.masked else PathPenalty(settings, before=start.before)
    return _fit(start, rows, settings, seed, penalty)


def stitch_ngr(model: GlobalModel, schema: Schema, rows: ClientRows, settings: NGRSettings, seed: int) -> NGRFit:
    """Train a client's additions to the global model, and find the edges in training rather than from a graph.

    Sparsity applies to new weights only. Parameters and errors are those of :func:`stitch_ngm`, except ``settings``.
    Returns the model of the client, its dependencies and its graph.

    Parameters
    ----------
    settings : NGRSettings
        ``threshold`` applies to pairs with a private feature; between common features the graph is the global model's.
    """
    features, private = len(schema.features), len(schema.features) - len(model.network.schema.features)
    full, requested = torch.ones(features, features, dtype=torch.bool), touches_private(features, private)
    start = _started(model, schema, full, rows.name, settings, seed)
    penalty: Penalty = SparsePaths(settings.gamma)
    if not start.network.masked:
        penalty = PathPenalty(settings, settings.gamma, start.before)
    fit = _fit(start, rows, settings, seed, penalty)
    found = derivatives(fit.network, fit.parameters, rows.held_out[None, :SAMPLE])
    strengths = dependencies(fit.network, fit.parameters, found)
    graph = read_graph(strengths, settings.threshold) & requested
    if fit.network.masked:
        again = _started(model, schema, graph[0], rows.name, settings, seed)
        fit = _fit(again._replace(parameters=fit.parameters), rows, settings, seed)
    return NGRFit(strengths, stitched_graph(model.network.adjacency, graph), fit)


class _Start(NamedTuple):
    """A model before training, ``[1, parameters]``; frozen: the part of the global model, bool ``[parameters]``."""

    network: Network
    parameters: Tensor
    frozen: Tensor

    @property
    def before(self) -> dict[str, Tensor]:
        """The tensors of the model with all but the global part set to 0."""
        return self.network.state(self.parameters * self.frozen)


def _started(
    model: GlobalModel, schema: Schema, adjacency: Tensor, name: str, settings: NGMSettings, seed: int
) -> _Start:
    random = generator(seed, "stitching", name)
    if model.network.masked:
        stitched = StitchedNetwork(schema, adjacency, settings, model.network)
        network: Network = stitched
        parameters, frozen = stitched.initial(random)[None], stitched.frozen
    else:
        network = enlarged(model.network, schema, adjacency, settings)
        parameters = without_new_influence(network, model.network, network.initial(random)[None])
        frozen = global_part(network, model.network)
    parameters[:, frozen] = model.parameters
    return _Start(network, parameters, frozen)


def _fit(start: _Start, rows: ClientRows, settings: NGMSettings, seed: int, penalty: Penalty | None = None) -> NGMFit:
    trained = train(
        start.network,
        start.parameters,
        [rows.training],
        [rows.held_out],
        [rows.name],
        settings,
        seed,
        penalty,
        start.frozen,
    )
    return fitted(start.network, trained, [rows.held_out])
