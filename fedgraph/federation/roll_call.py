"""Clients that a run waits for, and the nodes that may host them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import Field, field_validator

from fedgraph.federation.identity import PublicKeys, read_public_keys
from fedgraph.support.errors import ExperimentError, IdentityError, some
from fedgraph.support.settings import Settings


class ClientsTable(Settings):
    """``[clients]``: the participants, by name.

    Attributes
    ----------
    expect : the clients of the run. It starts when nodes host them all, at most [experiment] wait seconds after it was
             submitted; other clients that nodes host are left out. Every node that is asked learns these names. By
             default all connected clients take part, at least [experiment] min-clients.
    public_keys : a folder with the public key of every client as NAME.pub, as ``ssh-keygen -t ecdsa`` makes it; looked
             for next to the experiment, and in the current folder. Only a node that proves that it has the private key
             (node config ``private-key``) may then host the client.
    """

    expect: tuple[str, ...] | None = Field(default=None, min_length=1)
    public_keys: str | None = None

    @field_validator("expect")
    @classmethod
    def _each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (len(set(value)) < len(value) or not all(value)):
            raise ValueError("names must be non-empty and unique")
        return value


class Answer(Protocol):
    """Answer of a node to a query of all nodes, which names its clients."""

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients of the node."""

    @property
    def partition(self) -> tuple[int, int] | None:
        """``(partition-id, num-partitions)`` of a node that clients are assigned to by number, else None."""

    @property
    def alike(self) -> Hashable:
        """The part of the answers that must be equal for all nodes with clients."""


@dataclass(frozen=True)
class RollCall:
    """Clients that a run waits for, and the timeout.

    Attributes
    ----------
    min_clients : int
        Minimum number of clients.
    wait : float
        Seconds to wait for nodes.
    expect : tuple of str or None
        Required clients; None for all that nodes host.
    keys : mapping of str to EllipticCurvePublicKey or None
        Public keys by client; None if no proof is required.
    before : tuple of str
        Clients of a resumed run before it was stopped, who are waited for too; nodes may also host others.
    """

    min_clients: int = 1
    wait: float = 60.0
    expect: tuple[str, ...] | None = None
    keys: PublicKeys | None = field(default=None, repr=False)
    before: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: ClientsTable, min_clients: int, wait: float) -> RollCall:
        """Build the roll call of an experiment.

        Raises ExperimentError when the public keys cannot be read, or lack that of an expected client.

        Parameters
        ----------
        table : ClientsTable
            The table ``[clients]``.
        min_clients, wait : int, float
            The keys of ``[experiment]``; ``wait`` in seconds.
        """
        keys = None if table.public_keys is None else read_public_keys(Path(table.public_keys))
        without = [name for name in table.expect or () if keys is not None and name not in keys]
        if without:
            raise ExperimentError(
                f"[clients] public-keys: {table.public_keys} lacks the public key {some(without)}.pub"
            )
        return cls(min_clients, wait, table.expect, keys)

    def check_expected(self, clients: Iterable[str]) -> None:
        """Raise IdentityError when a node hosts clients that are not expected."""
        unknown_names = sorted(set(clients) - set(self.expect)) if self.expect is not None else []
        if unknown_names:
            raise IdentityError(f"it answers for {some(unknown_names)}, whom [clients] expect does not name")

    def missing(self, answers: Iterable[Answer], silent: Iterable[int], refused: Collection[int] = ()) -> str | None:
        """Return in words which clients are still missing, or None when all are there.

        Raises IdentityError when waiting cannot help, because nodes disagree on ``num-partitions``.

        Parameters
        ----------
        answers : iterable of Answer
            Usable answers so far.
        silent : iterable of int
            Ids of the nodes that are connected and have not answered.
        refused : collection of int
            Ids of the nodes that are connected and cannot take part.
        """
        known = list(answers)
        hosted = {name for answer in known for name in answer.clients}
        if self.expect is not None:
            absent = [name for name in self.expect if name not in hosted]
            if not absent:
                return None
            present = [name for name in self.expect if name in hosted]
            mute = sorted(silent)
            unsaid = f"; node {some(mute)} is connected but has not said whom it hosts" if mute else ""
            return (
                f"{len(present)} of {len(self.expect)} clients are here ({some(present) or 'nobody'}); "
                f"nobody hosts {some(absent)}{unsaid}"
            )
        if silent:
            return f"node {some(sorted(silent))} is connected but has not said whom it hosts"
        if not known:
            return f"none of {len(refused)} connected nodes can take part" if refused else "no node is connected"
        divided = [answer.partition for answer in known if answer.partition is not None]
        counts = {count for _, count in divided}
        if len(counts) > 1:
            raise IdentityError(
                f"nodes disagree on 'num-partitions': {sorted(counts)}; give every node the same number"
            )
        expected = {part for count in counts for part in range(count)}
        idle = sorted(expected - {part for part, _ in divided})
        if idle:
            return f"'partition-id' {some(idle)} of {len(expected)} is hosted by nobody"
        clients = sum(len(answer.clients) for answer in known)
        if clients < self.min_clients:
            return f"only {clients} of at least {self.min_clients} clients are hosted"
        if gone := [name for name in self.before if name not in hosted]:
            return f"of the clients that took part before the run was stopped, nobody hosts {some(gone)}"
        return None
