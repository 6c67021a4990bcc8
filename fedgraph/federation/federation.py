"""The federation of a run: its clients, sorted by name, and their nodes."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedgraph.data import OWN_TITLE, SPLITS, SplitName
from fedgraph.defence import bounded_counts
from fedgraph.graph import ClientGraph
from fedgraph.messages import Identity
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, IdentityError

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class Present:
    """Participants: clients, sorted by name, and their nodes.

    Attributes
    ----------
    names : tuple of str
        Names of the clients, sorted.
    hosts : mapping of int to Tensor
        Positions of the clients in ``names`` by node id, int64.
    positions : mapping of str to int
        Position of each client in ``names``.
    """

    names: tuple[str, ...]
    hosts: Mapping[int, Tensor]
    positions: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", {name: index for index, name in enumerate(self.names)})

    @classmethod
    def on(cls, node_of: Mapping[str, int]) -> Present:
        """Return the participants, given the node of each client."""
        names = tuple(sorted(node_of))
        return cls(names, hosts_of(names, node_of))

    def clients_of(self, node: int) -> tuple[str, ...]:
        """Return the names of the clients of a node."""
        return tuple(self.names[position] for position in self.hosts[node].tolist())

    def without(self, lost: Container[str]) -> Present:
        """Return the remaining participants."""
        return Present.on({name: node for node in self.hosts for name in self.clients_of(node) if name not in lost})


@dataclass(frozen=True)
class Federation(Present):
    """Clients of a run with information on their data, in the order of ``names``.

    Attributes
    ----------
    task : TaskSpec
        The common task.
    data : str
        Description of the data.
    num_examples : mapping of str to Tensor
        Number of examples by split, int64 ``[clients]``.
    label_counts : Tensor or None
        Examples per class, int64 ``[clients, classes]``; None unless requested.
    graph : ClientGraph or None
        The given client graph over ``names``, or None.
    groups : tuple of str or None
        The group of each client, if the data of all nodes defines groups.
    moments : Tensor or None
        float64 ``[clients, 5]`` as in :class:`fedgraph.data.base.CohortData`, if all nodes send them.
    computed : str
        Description of the way nodes compute the model; may be empty.
    most_examples : float or None
        ``[defence] most-examples``.
    """

    task: TaskSpec
    data: str
    num_examples: Mapping[str, Tensor]
    label_counts: Tensor | None = None
    graph: ClientGraph | None = None
    groups: tuple[str, ...] | None = None
    moments: Tensor | None = None
    computed: str = ""
    most_examples: float | None = None

    @cached_property
    def weights(self) -> Tensor:
        """Training examples that clients count in weighted means, int64 ``[clients]``; see ``most_examples``."""
        return bounded_counts(self.num_examples["train"], self.most_examples)

    @classmethod
    def of(cls, identities: Mapping[int, Identity]) -> Federation:
        """Build the federation from the nodes' answers to the opening query.

        Raises IdentityError for duplicate clients, or without any client. Raises DataError when clients disagree on the
        task, or a client unexpectedly has no training examples.
        """
        node_of = nodes_of({node: identity.clients for node, identity in identities.items()})
        if not node_of:
            raise IdentityError("no connected node hosts a client of this experiment's data")
        names = tuple(sorted(node_of))
        rows = {(node, name): row for node, identity in identities.items() for row, name in enumerate(identity.clients)}
        located = [(node_of[name], rows[node_of[name], name]) for name in names]
        num_examples: dict[str, Tensor] = {
            split: torch.stack([identities[node].num_examples[split][row] for node, row in located]) for split in SPLITS
        }
        meant = {name for identity in identities.values() for name in identity.untrained}
        empty = [name for name, count in zip(names, num_examples["train"].tolist(), strict=True) if count == 0]
        refused = [name for name in empty if name not in meant]
        if refused:
            raise DataError(f"no training examples at client {', '.join(refused)}: leave it out or give it data")
        if len(empty) == len(names):
            raise DataError("no client has training examples: all are meant to be without")
        return cls(
            names=names,
            hosts=hosts_of(names, node_of),
            task=_common_task(identities),
            data=data_of(identity.data for identity in identities.values() if identity.clients),
            num_examples=num_examples,
            label_counts=_stacked([(identities[node].label_counts, row) for node, row in located]),
            groups=_groups([(identities[node].groups, row) for node, row in located]),
            moments=_stacked([(identities[node].moments, row) for node, row in located]),
            computed="; ".join(sorted({each.computed for each in identities.values() if each.computed})),
        )

    def room(self, split: SplitName, tolerant: bool) -> int:
        """Return how many examples of a split tensors over all clients have room for, each client being padded to it.

        As many as the largest client has, but no more than ten times as many as the median of clients: otherwise one
        client that says that it has billions would fill the memory of all. Raises DataError naming a client that has
        more, unless ``tolerant``.

        Parameters
        ----------
        split : str
            The split.
        tolerant : bool
            Whether to go on where a client has more; its own tensors then do not fit, and it is absent.
        """
        counts = self.num_examples[split]
        most, bound = int(counts.max()), 10 * max(1, int(counts.median()))
        if most <= bound:
            return most
        text = (
            f"client '{self.names[int(counts.argmax())]}' has {most:,} examples ({split}), more than ten times as many "
            "as most clients; all would be padded to that length"
        )
        if not tolerant:
            raise DataError(f"{text}: leave it out, or give it less data")
        log.warning("%s: going on as if it had %d", text, bound)
        return bound


def nodes_of(hosted: Mapping[int, Sequence[str]], word: str = "client") -> dict[str, int]:
    """Return the node of every client.

    Node id by client name. Raises IdentityError when a client is hosted twice.

    Parameters
    ----------
    hosted : mapping of int to sequence of str
        Names of the clients that each node hosts, by node id.
    word : str, default "client"
        Name for a client in error messages, for example "owner".
    """
    node_of: dict[str, int] = {}
    for node, names in hosted.items():
        for name in names:
            if name in node_of:
                raise IdentityError(
                    f"{word} '{name}' is hosted twice, by node {node_of[name]} and by node {node}: "
                    "give each node its own 'clients' or 'partition-id' in its node config"
                )
            node_of[name] = node
    return node_of


def data_of(descriptions: Iterable[str]) -> str:
    """Join the nodes' descriptions of their data; of data of their own, say how many nodes describe it alike."""
    return "; ".join(
        f"{count} nodes, each with {text}" if count > 1 and text.startswith(OWN_TITLE) else text
        for text, count in sorted(Counter(descriptions).items())
    )


def hosts_of(names: Sequence[str], node_of: Mapping[str, int]) -> dict[int, Tensor]:
    """Group the positions of clients by the node that hosts them.

    Returns by node id the positions of its clients in ``names``, int64.

    Parameters
    ----------
    names : sequence of str
        All clients, in order.
    node_of : mapping of str to int
        Node id by client name; names that are missing here are left out.
    """
    hosts: dict[int, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        if name in node_of:
            hosts[node_of[name]].append(position)
    return {node: torch.tensor(positions) for node, positions in hosts.items()}


def _stacked(located: Sequence[tuple[Tensor | None, int]]) -> Tensor | None:
    """Stack a value per client to ``[clients, ...]``; return None unless all nodes gave it.

    ``located`` has, for each client, the values of its node and the client's row in them.
    """
    known = [values[row] for values, row in located if values is not None]
    return torch.stack(known) if len(known) == len(located) else None


def _groups(located: Sequence[tuple[tuple[str, ...] | None, int]]) -> tuple[str, ...] | None:
    """Return the group of each client, given the groups of its node and its place there; None unless all nodes gave
    them.
    """
    known = [groups[row] for groups, row in located if groups is not None]
    return tuple(known) if len(known) == len(located) else None


def _common_task(identities: Mapping[int, Identity]) -> TaskSpec:
    tasks = [(identity.clients[0], identity.task) for identity in identities.values() if identity.task is not None]
    first_name, first = tasks[0]
    clocks = {task.clock: name for name, task in reversed(tasks) if task.clock}
    if len(clocks) > 1:
        raise DataError(
            f"times of '{clocks['UTC']}' have a zone or count from 1970, and those of '{clocks['local']}' have no "
            "zone, so that they may be hours apart: write all of them with a zone, or all in the same local time"
        )
    for name, task in tasks[1:]:
        if task != first:
            fields = [key for key, value in vars(first).items() if vars(task)[key] != value]
            differences = "; ".join(f"{key}: {vars(first)[key]} against {vars(task)[key]}" for key in fields)
            advice = ""
            if fields == ["features"] and sorted(task.features) == sorted(first.features):
                advice = ": the same features in another order; list the columns in one order, [data] features"
            raise DataError(f"clients '{first_name}' and '{name}' hold different data ({differences}){advice}")
    return replace(first, clock=next(iter(clocks), ""))
