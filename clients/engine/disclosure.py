"""Descriptions of the data that leave a node in a run, and of those that stay, by client class."""

from __future__ import annotations

from dataclasses import dataclass

from fedgraph.clients.engine.node import Node
from fedgraph.data.series import shares_scales
from fedgraph.experiment import Experiment
from fedgraph.support.plugins import load_object

_ALWAYS = (
    "the names of its clients, their numbers of training, validation and test examples, the names of features and "
    "classes, and a short description of the data",
    "metrics of each client, such as its loss and accuracy",
    "error messages, without paths of this machine",
)
_NEVER = ("rows, series, images and graphs of the data", "paths of files and folders on this machine")


@dataclass(frozen=True)
class Disclosure:
    """Sentences about the data of a node that the server receives, and those that stay on the node."""

    leaves: tuple[str, ...]
    stays: tuple[str, ...]


def disclosure(experiment: Experiment, client: str, node: Node) -> Disclosure:
    """Describe what leaves a node for an experiment and the client class with the dotted path ``client``.

    A client class declares it by the texts ``sends`` and ``keeps``, or by ``sends_as`` if it depends on settings or the
    node's consent.
    """
    client_class = load_object(client, "[experiment] client")
    if hasattr(client_class, "sends_as"):
        sends = tuple(client_class.sends_as(experiment, node))
    else:
        unknown = f"undeclared data of {client}: read its source"
        sends = tuple(getattr(client_class, "sends", (unknown,)))
    return Disclosure(
        leaves=(*_ALWAYS, *sends, *_requested(experiment)), stays=(*_NEVER, *getattr(client_class, "keeps", ()))
    )


def _requested(experiment: Experiment) -> list[str]:
    """Describe the data that nodes send because of other tables of the experiment."""
    sent = []
    if experiment.graph.source == "labels":
        sent.append('the number of examples of each class of each client ([graph] source = "labels")')
    if shares_scales(experiment.data):
        sent.append("mean, standard deviation and number of each client's values ([data] cold-scale, scaling)")
    if experiment.evaluation.compare_peers:
        sent.append("the predicted class of each test example by each model, and the true class (compare-peers)")
    return sent
