"""Neural graph revealers (NGR): networks whose graph is read after training.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.learning.dependence import dependencies, derivatives, read_graph
from fedgraph.graphical.learning.ngm import SAMPLE, NGMFit, fitted
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.penalties import PathPenalty, SparsePaths
from fedgraph.graphical.network.rows import stack_rows
from fedgraph.graphical.network.settings import NGRSettings
from fedgraph.graphical.network.training import Penalty, train
from fedgraph.support.randomness import generator


@dataclass(frozen=True)
class NGRFit:
    """Trained models and their dependencies.

    Attributes
    ----------
    dependencies : ``[clients, features, features]``, row: the predicted feature, before the last training; see
        :func:`fedgraph.graphical.learning.dependence.dependencies`.
    adjacency : the graph read from them, bool ``[clients, features, features]``, symmetric.
    fit : the models; ``masked`` ones are trained over this graph.
    """

    dependencies: Tensor
    adjacency: Tensor
    fit: NGMFit


def fit_ngr(
    schema: Schema,
    training: Sequence[Tensor],
    held_out: Sequence[Tensor],
    names: Sequence[str],
    settings: NGRSettings,
    seed: int,
) -> NGRFit:
    """Fit a neural graph revealer to each client's rows, and read its graph.

    Returns models and graphs of the clients, in their order. Raises DataError or RunError as
    :func:`fedgraph.graphical.network.training.train` does.

    Parameters
    ----------
    schema : Schema
        Schema of all clients.
    training, held_out : sequence of Tensor
        Rows of each client, ``[rows, units]`` in [0, 1], NaN for missing; the best epochs are chosen by the held-out
        ones.
    names : sequence of str
        Names of the clients; they seed the random numbers, with ``seed``.
    settings : NGRSettings
        Architecture, training, and which dependencies become edges.
    seed : int
        Seed of the experiment.
    """
    features = len(schema.features)
    network = Network(schema, torch.ones(features, features, dtype=torch.bool), settings)
    start = torch.stack([network.initial(generator(seed, "ngm", name)) for name in names])
    penalty: Penalty = SparsePaths(settings.gamma) if network.masked else PathPenalty(settings, settings.gamma)
    trained = train(network, start, training, held_out, names, settings, seed, penalty)
    found = derivatives(network, trained.parameters, stack_rows(held_out)[:, :SAMPLE, : len(schema.unit_feature)])
    strengths = dependencies(network, trained.parameters, found)
    graph = read_graph(strengths, settings.threshold)
    if network.masked:
        network = Network(schema, graph, settings)
        trained = train(network, trained.parameters, training, held_out, names, settings, seed)
    return NGRFit(strengths, graph, fitted(network, trained, held_out))
