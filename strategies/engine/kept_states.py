"""Record of the state that nodes keep for their clients between rounds, by which the server notices that it is gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import quoted
from fedgraph.support.files import State

log = logging.getLogger("fedgraph")

_ADVICE = "to go on with that state, stop the run, put back the state folders of these nodes, and resume it"


class KeptStates:
    """The round after which each client's state was last saved, by purpose such as ``personal-layers``.

    A node that was set up anew, or whose state folder was moved, deleted or restored from a backup, has no state of its
    clients or an older one, and works with that: the run goes on, with a warning and a note.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, int]] = {}
        self._lost: list[str] = []

    def update(self, server_round: int, replies: Replies) -> None:
        """Record what was saved in an exchange of a round, and warn about what nodes should have found."""
        for purpose, found in replies.found.items():
            last = self._last.get(purpose, {})
            # State after a later round is not for this request.
            lost = [name for name, each in found.items() if each < last.get(name, -1) <= server_round]
            for name in lost:
                last[name] = found[name]
            if lost:
                self._lost.append(_words(purpose, sorted(lost), found, server_round))
                log.warning("%s; %s", self._lost[-1], _ADVICE)
        for purpose, saved in replies.saved.items():
            self._last.setdefault(purpose, {}).update(saved)

    def notes(self) -> list[str]:
        """Return a sentence for each loss, for the notes of the run."""
        return list(self._lost)

    def state(self) -> State:
        """Return the record for a resumed run."""
        return {"last": self._last, "lost": self._lost}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned; runs of older versions have nothing."""
        self._last, self._lost = dict(state.get("last", {})), list(state.get("lost", ()))


def _words(purpose: str, lost: Sequence[str], found: Mapping[str, int], server_round: int) -> str:
    whose, older = f"round {server_round}: the nodes of {quoted(lost)}", {found[name] for name in lost} - {-1}
    if older:
        return f"{whose} had an older state, of round {min(older)} ('{purpose}'), and went on from it"
    return f"{whose} no longer had their state ('{purpose}'), and went on without it"
