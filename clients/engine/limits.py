"""A node's limits on requests of the server: allowed code, minimum noise, and number of messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.node import Node
from fedgraph.data import is_custom_class
from fedgraph.federation import listed
from fedgraph.privacy.noise import NoiseSettings
from fedgraph.support.errors import ExperimentError, IdentityError, similar
from fedgraph.support.files import locked, private_folder, write_atomically
from fedgraph.support.settings import parse
from fedgraph.support.untrusted import in_short, read_json

_COUNTED = "answered"

_NUMBERS = ("least-noise", "most-messages")
_LIMITS = (
    *_NUMBERS, "aggregator-fingerprints", "allow", "consent", "consent-delta", "consent-epsilon", "consent-rows"
)  # fmt: skip
"""Keys of a node config that keep something from the server."""


def check_limits(node: Node) -> None:
    """Raise IdentityError for a misspelt limit in the node config, which would not hold, and for one that is no number.

    Other unknown keys may be for client classes and data sets that users plug in.
    """
    for key in node.config:
        if key not in _LIMITS and (meant := similar([key], _LIMITS)):
            raise IdentityError(f"node config has the key '{key}', which limits nothing{meant}")
    for key in _NUMBERS:
        _number(node, key)


def check_allowed(node: Node, client: str, assignment: Assignment) -> None:
    """Check that the node allows the classes that the server names, before importing them.

    Node config ``allow`` lists dotted paths, or patterns such as ``fedgraph.clients.*``; by default all are allowed.
    Raises IdentityError for a client class, model or training function that is not allowed.
    """
    patterns = listed(str(node.config.get("allow", "")))
    tables = [assignment.model, *assignment.model.get("variants", ())]
    models = [str(table.get("name", "")) for table in tables if isinstance(table, dict)]
    named = {
        "[experiment] client": [client],
        "[model] name": [name for name in models if ":" in name],
        "[train] function": [assignment.train.function] if assignment.train.function else [],
    }
    for key, paths in named.items():
        for path in paths:
            _check_listed(key, path, patterns)


def check_data_allowed(node: Node, experiment: str) -> None:
    """Check that the node config allows the class of a data set that the server names, before importing it.

    Raises IdentityError if node config ``allow`` excludes it.
    """
    patterns = listed(str(node.config.get("allow", "")))
    tables = read_json(experiment, "the experiment of the request")
    data = tables.get("data") if isinstance(tables, dict) else None
    named = data.get("set") if isinstance(data, dict) else None
    if is_custom_class(named):
        _check_listed("[data] set", str(named), patterns)


def _check_listed(key: str, path: str, patterns: Sequence[str]) -> None:
    """Raise IdentityError for code that does not match ``patterns``; without any, all is allowed."""
    if patterns and not any(fnmatchcase(path, pattern) for pattern in patterns):
        raise IdentityError(
            f"this node does not run {key} = '{in_short(path, 100)}': its node config allows {', '.join(patterns)}"
        )


def check_noise(node: Node, client_class: Any, assignment: Assignment) -> None:
    """Check that releases of clients have at least the noise of the node config (``least-noise``).

    The limit is a noise multiplier over all releases of a run; for n releases, each has noise larger by the square root
    of n. Metrics, numbers of examples and, in ``f3``, labels have no noise. Raises IdentityError for less noise, and
    for client classes that release data without noise.
    """
    least = _number(node, "least-noise")
    if least is None:
        return
    name = getattr(client_class, "noise", "")
    table = assignment.method.get(name) if name else None
    if not isinstance(table, dict):
        where = f"set the table `{name}` of its method" if name else "its method has none"
        raise IdentityError(
            f"this node requires noise on everything its clients release (node config least-noise): {where}"
        )
    settings = parse(NoiseSettings, table, f"the table `{name}` of the method")
    found = settings.multiplier() / math.sqrt(settings.releases)
    if found < least:
        raise IdentityError(
            f"this node requires a noise multiplier of at least {least:g} over all releases of a run (node config "
            f"least-noise), but the run has {found:.3g}: raise noise-multiplier, or lower epsilon or releases"
        )


def check_statistics(client_class: Any, assignment: Assignment, label_counts: bool, moments: bool) -> None:
    """Check that no statistics of clients' data leave beside a method's noise, which is to cover all that they release.

    Raises ExperimentError for numbers of labels and moments of readings in the answer to the opening query, and for
    metrics that tell which classes a client has.
    """
    name = getattr(client_class, "noise", "")
    if not name or assignment.method.get(name) is None:
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


def count_message(node: Node) -> None:
    """Count an answered message of any run, up to node config ``most-messages``.

    Raises IdentityError at the limit. The count is in the state folder, where its operator may remove it.
    """
    most = _number(node, "most-messages")
    if most is None:
        return
    path = private_folder(node.state_dir) / _COUNTED
    with locked(node.state_dir / f"{_COUNTED}.lock"):
        answered = int(path.read_text()) if path.exists() else 0
        if answered >= most:
            raise IdentityError(
                f"this node has answered {answered} messages, the limit of its node config (most-messages): its "
                f"operator may raise it, or remove the file '{_COUNTED}' in its state folder to reset the count"
            )
        write_atomically(path, str(answered + 1).encode(), private=True)


def _number(node: Node, key: str) -> float | None:
    """Return a number of the node config; raise IdentityError for anything else."""
    given = node.config.get(key)
    if given is None or given == "":
        return None
    try:
        value = float(str(given))
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise IdentityError(f"node config {key} must be a number of at least 0; got '{given}'")
    return value
