"""Record of the state that nodes keep for their clients between rounds, by which the server notices that it is gone."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import quoted, some
from fedgraph.support.files import State
from fedgraph.training import ClientState

log = logging.getLogger("fedgraph")

_ADVICE = "to go on with that state, stop the run, put back the state folders of these nodes, and resume it"


class KeptStates:
    """The round after which each client's state was last saved, by purpose such as ``personal-layers``.

    A node that was set up anew, or whose state folder was moved, deleted or restored from a backup, has no state of its
    clients or an older one, and works with that: the run goes on, with a warning and a note.

    Parameters
    ----------
    attempts : the attempts at the run so far, see :func:`with_new_attempt`.
    """

    def __init__(self, attempts: Mapping[str, int]) -> None:
        self._attempts, self._reached = attempts, 0
        self._last: dict[str, dict[str, int]] = {}
        self._lost: list[_Loss] = []

    def update(self, server_round: int, replies: Replies) -> None:
        """Record what was saved in an exchange of a round, and warn about what nodes should have found."""
        self._reached = max(self._reached, server_round)
        for purpose, found in replies.found.items():
            last = self._last.get(purpose, {})
            # State after a later round is not for this request.
            lost = [name for name, each in found.items() if each < last.get(name, -1) <= server_round]
            for name in lost:
                last[name] = found[name]
            new = [_Loss(server_round, purpose, found[name], name) for name in sorted(lost)]
            for words in _in_words(new):
                # Of a node that loses its state in every round, the screen shows only the first loss.
                log.warning("%s; %s", words, _ADVICE, extra={"once": f"lost state: {words.partition(':')[2]}"})
            self._lost += new
        for purpose, saved in replies.saved.items():
            self._last.setdefault(purpose, {}).update(saved)

    def notes(self) -> list[str]:
        """Return a sentence for each kind of loss, for the notes of the run."""
        return _in_words(self._lost)

    def state(self) -> State:
        """Return the record for a resumed run."""
        current = list(self._attempts)[-1:]
        return {
            "last": self._last,
            "lost": [list(each) for each in self._lost],
            "attempts": {**self._attempts, **dict.fromkeys(current, self._reached)},
        }

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned; runs of older versions have nothing."""
        self._last = dict(state.get("last", {}))
        self._lost = [_Loss(*each) for each in state.get("lost", ())]


def with_new_attempt(saved: State | None) -> dict[str, int]:
    """Return the attempts at a run with another one, which begins now.

    Nodes are told which rounds count of each, as a client that is away while the rounds after the checkpoint are
    repeated may still have its state after them.

    Parameters
    ----------
    saved : the record of the checkpoint, :meth:`KeptStates.state`; None without one. Versions without attempts saved
        state under the empty name.
    """
    earlier: dict[str, int] = {} if saved is None else saved.get("attempts", {"": ClientState.LAST})
    return {**earlier, secrets.token_hex(4): ClientState.LAST}


class _Loss(NamedTuple):
    """State of a client that its node lacked in a round; ``found`` is the round of an older one, -1 for none."""

    round: int
    purpose: str
    found: int
    client: str


def _in_words(lost: Sequence[_Loss]) -> list[str]:
    """Return a sentence for the same loss of the same clients, with its rounds: a node may lose its state in each."""
    clients: dict[tuple[int, str, int], list[str]] = {}
    for each in lost:
        clients.setdefault(each[:3], []).append(each.client)
    rounds: dict[tuple[str, int, tuple[str, ...]], list[int]] = {}
    for (server_round, purpose, found), names in clients.items():
        rounds.setdefault((purpose, found, tuple(sorted(names))), []).append(server_round)
    return [
        f"round{'s' * (len(numbers) > 1)} {some(numbers)}: the nodes of {quoted(names)} "
        + (f"had an older state, of round {found} " if found >= 0 else "no longer had their state ")
        + f"('{purpose}'), and went on {'from' if found >= 0 else 'without'} it"
        for (purpose, found, names), numbers in rounds.items()
    ]
