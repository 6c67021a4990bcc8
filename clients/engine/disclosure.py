"""Plain descriptions of the data that leave a node in a run of an experiment, and of those that stay, by client
class."""

from __future__ import annotations

from dataclasses import dataclass

from fedgraph.clients.engine.node import Node
from fedgraph.data.series import shares_scales
from fedgraph.experiment import Experiment
from fedgraph.support.plugins import load_object

_ALWAYS = (
    "the names of its clients, how many examples each has for training, validation and test, the names of features and "
    "classes, and what data this is, in a few words",
    "metrics of each client, such as its loss and accuracy",
    "why something failed, without paths of this machine",
)
_NEVER = ("rows, series, images and graphs that are data", "paths of files and folders on this machine")


@dataclass(frozen=True)
class Disclosure:
    """The data of a node that the server sees, and those that stay on the node, in sentences."""

    leaves: tuple[str, ...]
    stays: tuple[str, ...]


def disclosure(experiment: Experiment, client: str, node: Node) -> Disclosure:
    """Describe what leaves a node for an experiment whose client class has the dotted path ``client``.

    A client class declares it with ``sends`` and ``keeps``, texts, or with ``sends_as`` where it depends on settings or
    on the node's consent.
    """
    client_class = load_object(client, "[experiment] client")
    if hasattr(client_class, "sends_as"):
        sends = tuple(client_class.sends_as(experiment, node))
    else:
        unknown = f"what {client} sends, which does not say it: read its source"
        sends = tuple(getattr(client_class, "sends", (unknown,)))
    return Disclosure(
        leaves=(*_ALWAYS, *sends, *_requested(experiment)), stays=(*_NEVER, *getattr(client_class, "keeps", ()))
    )


def _requested(experiment: Experiment) -> list[str]:
    """Return descriptions of the data that nodes send because of other tables of the experiment."""
    sent = []
    if experiment.graph.source == "labels":
        sent.append('how many examples of each class each client has ([graph] source = "labels")')
    if shares_scales(experiment.data):
        sent.append("mean, standard deviation and number of each client's values ([data] cold-scale, scaling)")
    if experiment.evaluation.compare_peers:
        sent.append("the class that each model predicts for each test example, and the true one (compare-peers)")
    return sent
