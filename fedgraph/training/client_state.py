"""State of clients between rounds, kept by their node: one file per round for the clients saved together.

    state folder / runs / run / purpose / digest of the client names / round-<round>-save-<number>-<attempt>.safetensors

Clients may be saved in different groups later (a resumed run assigns them to other nodes, a request is for some of a
node's clients), and nodes of one machine may share the folder. The number of a save exceeds those of all earlier saves
of its clients, and thus determines which of two files is newer, without a clock. A run that is stopped and resumed has
another attempt: state that the first one saved in rounds after the checkpoint does not count any more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedgraph.support.errors import RunError, if_any
from fedgraph.support.files import is_unfinished, json_digest, run_state
from fedgraph.training.row_file import read_clients, read_rows, rows_digest, write_rows

_DIGEST = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"round-(\d+)-save-(\d+)(?:-([0-9a-f]{8}))?\.safetensors")
_ATTEMPTS = 20

Result = TypeVar("Result")


def state_folder(config: Mapping[str, Any] | None = None) -> Path:
    """Return the state folder of a node: node config ``state-dir``, else ``FEDGRAPH_STATE``, else one in the home."""
    state = (config or {}).get("state-dir") or os.environ.get("FEDGRAPH_STATE") or Path.home() / ".fedgraph" / "state"
    return Path(str(state)).expanduser()


class _Kept(NamedTuple):
    """A file in the folder ``digest``; files compare by the order in which they were saved."""

    save: int
    round: int
    digest: str
    name: str
    attempt: str

    def replaces(self, other: _Kept, keep_from: int) -> bool:
        """Return whether no request for round ``keep_from`` or later needs ``other``, for a client in both files.

        Such a request sees both files, and the newer one takes precedence.
        """
        return self.save > other.save and self.round <= max(other.round, keep_from - 1)


class ClientState:
    """State folder of one run on one node, for one ``purpose``.

    A request for round r sees the state after an earlier round, never that of an interrupted round r, so a resumed run
    finds the state of its last finished round. A client that was away when these rounds were repeated finds its state
    at the checkpoint. All methods raise RunError for a file that is broken, has another format or does not fit the
    request.

    Parameters
    ----------
    folder : Path
        State folder of the node.
    run : str
        Name of the run.
    purpose : str
        Name of the state among those of the run.
    attempts : mapping of str to int, optional
        The last round that counts of each attempt at the run, by its identifier of 8 hexadecimal digits; the last one
        is that which saves. Without attempts, all state counts.

    Attributes
    ----------
    found : dict of str to int
        Of clients whose state was loaded, the round after which it was saved; -1 for clients without state.
    saved : int or None
        The round after which state was saved; None if none was.
    """

    MEASURED: ClassVar[str] = "measured"
    """Purpose of the models evaluated last, if the server does not have them."""
    LAST: ClassVar[int] = 1 << 40
    """A round after all others, to load what was saved last, whatever its round and attempt."""

    def __init__(self, folder: Path, run: str, purpose: str, attempts: Mapping[str, int] | None = None) -> None:
        self._folder = run_state(folder, run) / purpose
        self._attempts = dict(attempts or {})
        self.found: dict[str, int] = {}
        self.saved: int | None = None

    def load(self, clients: Sequence[str], before: int, empty: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors last saved after a round below ``before``.

        Returns ``[clients, ...]`` in main memory.

        Parameters
        ----------
        clients : sequence of str
            Names of the clients.
        before : int
            Round of the request.
        empty : mapping of str to Tensor
            Names, shapes and types of the tensors to read, without client axis, and the values of clients without
            state.
        """
        if not empty:
            return {}
        return _repeated(lambda: self._load(clients, before, empty), self._folder)

    def identities(self, clients: Sequence[str], before: int) -> list[tuple[str, str]]:
        """Return each client with state last saved after a round below ``before``, and a digest of that state."""

        def read() -> list[tuple[str, str]]:
            found = self._latest(clients, before, self._packings_with(clients))
            return [(name, rows_digest(self._path(kept))) for name, (kept, _) in sorted(found.items())]

        return _repeated(read, self._folder)

    def save(self, clients: Sequence[str], after: int, stacked: Mapping[str, Tensor], keep_from: int) -> None:
        """Save tensors as the state after a round, and delete files that no resumed run can need.

        State of these clients after round ``after`` or later, from an interrupted run, is superseded. Raises ValueError
        for a tensor without one row per client.

        Parameters
        ----------
        clients : sequence of str
            Names of the clients.
        after : int
            Round after which the state is saved.
        stacked : mapping of str to Tensor
            ``[clients, ...]``.
        keep_from : int
            No later request is for an earlier round.
        """
        if not clients or not stacked:
            return
        lengths = {name: len(tensor) for name, tensor in stacked.items()}
        if set(lengths.values()) != {len(clients)}:
            raise ValueError(f"the state of {len(clients)} clients must have as many rows, got {lengths}")
        names, rows = _sorted(clients, stacked)
        packings = self._packings_with(names)
        number = 1 + max((kept.save for digest in packings for kept in self._files(digest)), default=0)
        attempt = next(reversed(self._attempts), "")
        name = f"round-{after}-save-{number}{if_any('-', attempt)}.safetensors"
        saved = _Kept(number, after, _digest(names), name, attempt)
        present = _entries(self._folder / saved.digest)
        _repeated(lambda: write_rows(self._path(saved), names, rows), self._folder)
        self._drop_own(saved, present, keep_from)
        for digest, others in packings.items():
            # The node with the first client of a file of another packing is responsible for it.
            if digest != saved.digest and others[0] in names:
                self._drop_foreign(digest, others, keep_from)
        self.saved = after

    def _latest(
        self, clients: Sequence[str], before: int, packings: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[_Kept, int]]:
        """Return the file with the last state of each client, and its row there."""
        latest: dict[str, tuple[_Kept, int]] = {}
        for digest, names in packings.items():
            files = self._files(digest) if before == self.LAST else self._counted(self._files(digest))
            kept = max((kept for kept in files if kept.round < before), default=None)
            if kept is not None:
                for position, name in enumerate(names):
                    if name not in latest or latest[name][0] < kept:
                        latest[name] = kept, position
        return {name: latest[name] for name in clients if name in latest}

    def _load(self, clients: Sequence[str], before: int, empty: Mapping[str, Tensor]) -> dict[str, Tensor]:
        packings = self._packings_with(clients)
        latest = self._latest(clients, before, packings)
        self.found.update((client, latest[client][0].round if client in latest else -1) for client in clients)
        sources: dict[_Kept, list[tuple[int, int]]] = {}
        for row, client in enumerate(clients):
            if client in latest:
                kept, position = latest[client]
                sources.setdefault(kept, []).append((row, position))
        parts = []
        for kept, places in sources.items():
            positions = [position for _, position in places]
            part = read_rows(self._path(kept), packings[kept.digest], positions, empty)
            if len(places) == len(clients):
                return part
            parts.append(([row for row, _ in places], part))
        result = {name: row.cpu().expand(len(clients), *row.shape).clone() for name, row in empty.items()}
        for rows, part in parts:
            for name, values in part.items():
                result[name][rows] = values
        return result

    def _drop_own(self, saved: _Kept, there: list[str], keep_from: int) -> None:
        """Delete files ``there`` of exactly these clients that are no longer needed, and temporary files."""
        self._drop_temporary(saved.digest, there)
        files = [*_parsed(saved.digest, there), saved]
        counted = self._counted(files)
        for kept in files:
            if any(later.replaces(kept, keep_from) for later in counted):
                self._path(kept).unlink(missing_ok=True)

    def _drop_foreign(self, digest: str, names: tuple[str, ...], keep_from: int) -> None:
        """Delete files of another packing that newer files replace for each client."""
        files = self._files(digest)
        packings = {
            other: (set(found), self._counted(self._files(other)))
            for other, found in self._packings_with(names).items()
        }
        remaining = len(files)
        for kept in files:
            uncovered = set(names)
            for found, others in packings.values():
                if any(later.replaces(kept, keep_from) for later in others):
                    uncovered -= found
            if not uncovered:
                self._path(kept).unlink(missing_ok=True)
                remaining -= 1
        if not remaining:
            self._drop_temporary(digest, _entries(self._folder / digest))
            with suppress(OSError):
                (self._folder / digest).rmdir()

    def _drop_temporary(self, digest: str, entries: Iterable[str]) -> None:
        for name in entries:
            if is_unfinished(name):
                (self._folder / digest / name).unlink(missing_ok=True)

    def _packings_with(self, clients: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Return digest -> client names of all packings in the folder that share a client with ``clients``.

        The names of a digest never change, and are cached by the process.
        """
        wanted = set(clients)
        own = tuple(sorted(wanted))
        packings = {_digest(own): own}
        folder = str(self._folder)
        for digest in _entries(self._folder):
            if digest in packings:
                continue
            try:
                names = _names(folder, digest)
            except FileNotFoundError:  # another node dropped its last file
                continue
            if not wanted.isdisjoint(names):
                packings[digest] = names
        return packings

    def _counted(self, files: Iterable[_Kept]) -> list[_Kept]:
        """Return the files that were not saved in rounds of an attempt which a later one has repeated."""
        if not self._attempts:
            return list(files)
        return [kept for kept in files if kept.round <= self._attempts.get(kept.attempt, -1)]

    def _files(self, digest: str) -> list[_Kept]:
        return _parsed(digest, _entries(self._folder / digest))

    def _path(self, kept: _Kept) -> Path:
        return self._folder / kept.digest / kept.name


def _sorted(clients: Sequence[str], stacked: Mapping[str, Tensor]) -> tuple[tuple[str, ...], dict[str, Tensor]]:
    """Return clients and their rows sorted by name, the order of the file."""
    position = {client: row for row, client in enumerate(clients)}
    names = tuple(sorted(position))
    if names == tuple(clients):
        return names, dict(stacked)
    order = torch.tensor([position[name] for name in names])
    return names, {name: tensor.detach().cpu()[order] for name, tensor in stacked.items()}


@lru_cache(maxsize=1024)
def _digest(names: tuple[str, ...]) -> str:
    return json_digest(names)[:32]


@lru_cache(maxsize=4096)
def _names(folder: str, digest: str) -> tuple[str, ...]:
    """Return the clients of a packing, empty for other folders. Raises FileNotFoundError for one without a file."""
    if not _DIGEST.fullmatch(digest):
        return ()
    packing = Path(folder) / digest

    def read() -> tuple[str, ...] | None:
        files = _parsed(digest, _entries(packing))
        return read_clients(packing / files[0].name) if files else None

    names = _repeated(read, packing)
    if names is None:
        raise FileNotFoundError(packing)
    if _digest(names) != digest:
        raise RunError(f"the state in {packing} is not that of the clients it is named for; was it moved there?")
    return names


def _parsed(digest: str, entries: Iterable[str]) -> list[_Kept]:
    matches = (_FILE.fullmatch(name) for name in entries)
    return [_Kept(int(match[2]), int(match[1]), digest, match[0], match[3] or "") for match in matches if match]


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _repeated(step: Callable[[], Result], folder: Path) -> Result:
    """Return the result of ``step``, repeated if another node has deleted a listed file in favour of a newer one."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return step()
    raise RunError(f"files in {folder} vanish while they are read; is another run of that name going on?")
