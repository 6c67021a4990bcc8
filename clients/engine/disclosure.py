"""What leaves a node in a run, and what stays, by client class; and what a method with noise must not let out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgraph.algorithms import own_splits
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.node import Node
from fedgraph.data import DataSource, SplitName
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


def described(source: DataSource, node: Node, *classes: tuple[str, ...]) -> str:
    """Return the description of data for the server: the text before its notes, unless it may read full errors.

    Notes on columns that may have been misread quote cells: categories of few rows, numbers far from all others. Raises
    DataError for names of classes and categories in fewer rows than the site requires, which would leave beside it.
    """
    if node.agreement is not None and (check := getattr(source, "check_listed", None)):
        check(node.least_rows)
    description = source.describe(*classes)
    return description if node.sends_full_errors else description.partition("; ")[0]


def check_covered(
    client_class: Any,
    assignment: Assignment,
    label_counts: bool = False,
    moments: bool = False,
    evaluated: Sequence[SplitName] = (),
) -> None:
    """Check that no statistics of clients' data leave beside a method's noise, which is to cover all that they release.

    Raises ExperimentError for numbers of labels and moments of readings in the answer to the opening query, and for
    metrics of ``evaluated`` splits that depend on a client's own data or tell which classes it has.
    """
    if not (name := _noise_of(client_class, assignment)):
        return
    own = own_splits(assignment.data.model_dump(), evaluated)
    without_noise = {
        f"metrics of clients' own data ({', '.join(own)}): evaluate on data that all share ([evaluation] splits = "
        '["test"], [data] test = "shared", and for tables scaling = "none"), or not at all (splits = [])': bool(own),
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
