"""What leaves a node in a run, and what stays, by client class; and what a method with noise must not let out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.node import Node
from fedgraph.data.series import shares_scales
from fedgraph.experiment import Experiment
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import a_client, load_object

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
    node's limits.
    """
    client_class = load_object(client, "[experiment] client", a_client)
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


def check_noise(client_class: Any, assignment: Assignment, epsilon: float | None) -> None:
    """Raise ExperimentError for a method that releases numbers without noise, if a site has agreed to an epsilon."""
    if epsilon is None or _noise_of(client_class, assignment):
        return
    name = getattr(client_class, "noise", "")
    with_noise = f"set the table `{name}` of the method" if name else "use a method that has noise, such as ipa or f3"
    raise ExperimentError(
        f"this site has agreed to an epsilon of {epsilon:g} ([agreement] epsilon), and the run releases without noise: "
        f"{with_noise}, or let the site leave out the key"
    )


def _noise_of(client_class: Any, assignment: Assignment) -> str:
    """Return the key of the method's noise if it is set, else an empty text."""
    name: str = getattr(client_class, "noise", "")
    return name if name and assignment.method.get(name) is not None else ""


def check_covered(client_class: Any, assignment: Assignment, label_counts: bool, moments: bool) -> None:
    """Check that no statistics of clients' data leave beside a method's noise, which is to cover all that they release.

    Raises ExperimentError for numbers of labels and moments of readings in the answer to the opening query, and for
    metrics that tell which classes a client has.
    """
    if not (name := _noise_of(client_class, assignment)):
        return
    without_noise = {
        'the numbers of their labels, for [graph] source = "labels": use another source': label_counts,
        "means and deviations of their readings, for common scales: let every client have its own ([data] scaling = "
        '"client", cold-scale = "own")': moments,
        "accuracies on classes that a client lacks, which tell what it has: set [evaluation] unseen-classes = "
        "false": assignment.unseen_classes,
    }
    for what, leaves in without_noise.items():
        if leaves:
            raise ExperimentError(
                f"the table `{name}` of the method is to cover all that clients release, and does not cover {what}"
            )
