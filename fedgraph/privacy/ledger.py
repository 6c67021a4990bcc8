"""Ledgers of what has left a node about rows of its clients, in all runs: budgets, and numbers that are sent again.

Rows are known by their content, and releases by all that determines their numbers. A release that is asked for again is
sent as it was, since averages over new noise would remove it; any other one of the same rows counts.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph.support.errors import ReplyError, RunError
from fedgraph.support.files import file_name, json_digest, load_state, locked, private_folder, save_state

_TOLERANCE = 1 + 1e-9
"""Sums of decimal fractions may be off in the last digit."""

_WITH_NOISE = "ask for statistics that were sent, which are sent again, or for noise"


@dataclass(frozen=True)
class Budget:
    """The privacy loss of a release, and the most that all releases of a row may add up to.

    Attributes
    ----------
    loss : tuple of float
        In numbers that add up over releases, such as epsilon and delta.
    promised : tuple of float
        The limit that is named with the request. Of several that were named for a row, the least holds.
    agreed : tuple of float, optional
        The limit of the site, which takes the place of all that were promised.
    """

    loss: tuple[float, ...] = ()
    promised: tuple[float, ...] = ()
    agreed: tuple[float, ...] | None = None


ONCE = Budget((1.0,), (1.0,))
"""A single release of a row."""


@dataclass(frozen=True)
class Ledger:
    """What has been released of one kind about a client's rows; a private file that is never deleted.

    All methods raise ReplyError, and record nothing, for a release that is not allowed, and RunError for a broken file.

    Parameters
    ----------
    folder : Path
        Folder of ledgers, of all runs.
    client : str
        Name of the client.
    what : str
        Kind of release, in the plural: ``embeddings``. Those of one kind are counted together.
    holder : str, optional
        All clients of a name are counted together; by default each for itself.
    """

    folder: Path
    client: str
    what: str
    holder: str = ""

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{file_name(self.what)}-{json_digest(self.holder or self.client)[:32]}.safetensors"

    def rows(self, rows: Tensor, release: Any, budget: Budget, draw: Callable[[Tensor], Tensor]) -> Tensor:
        """Return released numbers of each of ``rows`` (int64), ``[rows, ...]``; new ones are drawn and stored first.

        Parameters
        ----------
        release : JSON value
            All that determines the numbers besides the row, such as the model and the noise.
        draw : callable
            Returns the numbers to release of some positions in ``rows``, int64 ``[positions]``.
        """
        if not len(rows):
            return draw(rows)
        with self._opened() as book:
            name = json_digest(release)
            self._spend(book, rows, name, budget)
            kept = book.numbers.get(name, {"rows": rows[:0], "numbers": None})
            place = {row: number for number, row in enumerate(kept["rows"].tolist())}
            missing = [number for number, row in enumerate(rows.tolist()) if row not in place]
            drawn, known = draw(torch.tensor(missing, dtype=torch.int64)), kept["numbers"]
            numbers = drawn if known is None else torch.cat([known, drawn])
            for row in rows[missing].tolist():
                place.setdefault(row, len(place))
            if missing:
                book.numbers[name] = {"rows": torch.cat([kept["rows"], rows[missing]]), "numbers": numbers}
            return numbers[torch.tensor([place[row] for row in rows.tolist()], dtype=torch.int64)]

    def once(self, rows: Tensor, release: Any, budget: Budget, draw: Callable[[], Any]) -> Any:
        """Return what was released of ``rows`` together, a tensor or a JSON value; drawn and stored if it is new."""
        with self._opened() as book:
            name = json_digest([release, sorted(rows.tolist())])
            self._spend(book, rows, name, budget)
            if name not in book.numbers:
                book.numbers[name] = draw()
            return book.numbers[name]

    def count(self, budget: Budget, run: str, number: int) -> int:
        """Count a release about all that the client has, with new noise, in a round of a run.

        Returns the round of the run's release before, -1 for none.
        """
        with self._opened() as book:
            before = [name.split(" ", 2) for name in book.releases]
            name = f"{len(before)} {number} {run}"
            if not book.add(torch.zeros(1, dtype=torch.int64), name, budget):
                raise self._refused(
                    "those of all runs, repeated rounds included, are as many as was promised",
                    "set releases to the number of rounds and of those that may be repeated in the first run, or let "
                    "the site set a limit of its own ([agreement] epsilon)",
                )
            return next((int(each[1]) for each in reversed(before) if each[2] == run), -1)

    def exact(self, rows: Tensor, release: Any, least: int) -> None:
        """Record that exact statistics of ``rows`` leave.

        They may be sent again, and the same statistics of other rows if all sets of rows that differences of them can
        tell apart have ``least`` rows; other statistics need rows of which nothing was sent.
        """
        with self._opened() as book:
            kind = json_digest(release)
            name = f"{kind} {json_digest(sorted(rows.tolist()))}"
            if name in book.releases:
                return
            book.add(rows, name, Budget())
            alike = torch.tensor([other.startswith(kind) for other in book.releases])
            if bool((book.holds[~alike] & book.holds[-1]).any()):
                raise self._refused("others of the same rows have been sent", _WITH_NOISE)
            patterns, sizes = book.holds[alike].unique(dim=1, return_counts=True)
            if bool((sizes[patterns.any(0)] < least).any()):
                told = "by themselves" if int(alike.sum()) == 1 else "together with those that have been sent"
                raise self._refused(f"{told} they tell of fewer than {least} rows", _WITH_NOISE)

    @contextmanager
    def _opened(self) -> Iterator[_Book]:
        private_folder(self.folder)
        with locked(self.path.with_suffix(".lock")):
            book = _Book(**load_state(self.path)) if self.path.exists() else _Book()
            before = book.size
            yield book
            if book.size != before:
                save_state(self.path, vars(book))

    def _spend(self, book: _Book, rows: Tensor, name: str, budget: Budget) -> None:
        if not book.add(rows, name, budget):
            own = ", or let the site set a limit of its own ([agreement] epsilon)" if self.what == "embeddings" else ""
            raise self._refused(
                "with what was released before, in any run, more would be known of the same rows than was promised",
                f"ask for a release that was made, which is sent again as it was{own}",
            )

    def _refused(self, why: str, remedy: str) -> ReplyError:
        return ReplyError(f"no such {self.what} are sent of {self.client}: {why}; {remedy}")


@dataclass
class _Book:
    """The content of a ledger.

    Attributes
    ----------
    rows : int64 ``[rows]``, by content.
    releases : names.
    holds : bool ``[releases, rows]``, the rows of each release.
    losses, limits : float64 ``[releases, numbers]``, of each release and as promised with it.
    numbers : what was sent, by release.
    """

    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    releases: list[str] = field(default_factory=list)
    holds: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    losses: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    limits: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        """Grows with everything that is added."""
        return len(self.releases), int(self.holds.sum())

    def add(self, rows: Tensor, name: str, budget: Budget) -> bool:
        """Count a release for those of ``rows`` that it was not yet of; return whether the budget allows it."""
        at = self._places(rows)
        if name not in self.releases:
            self.releases.append(name)
            self.holds = torch.cat([self.holds, torch.zeros(1, len(self.rows), dtype=torch.bool)])
            self.losses, self.limits = (
                torch.cat([known.reshape(len(self.releases) - 1, len(new)), torch.tensor([new], dtype=torch.float64)])
                for known, new in ((self.losses, budget.loss), (self.limits, budget.promised))
            )
        release = self.releases.index(name)
        new = at[~self.holds[release, at]]
        self.holds[release, new] = True
        counted = self.holds[:, new, None]
        spent = torch.where(counted, self.losses[:, None], 0.0).sum(0)
        limit = torch.where(counted, self.limits[:, None], torch.inf).amin(0)
        if budget.agreed is not None:
            limit = torch.tensor(budget.agreed, dtype=torch.float64).expand_as(limit)
        # A loss that is no number is above every limit.
        return bool((spent <= limit * _TOLERANCE).all())

    def _places(self, rows: Tensor) -> Tensor:
        """Return the positions of rows, int64; unknown ones are added."""
        place = {row: number for number, row in enumerate(self.rows.tolist())}
        for row in rows.tolist():
            place.setdefault(row, len(place))
        added = len(place) - len(self.rows)
        self.rows = torch.tensor(list(place), dtype=torch.int64)
        self.holds = torch.cat([self.holds, torch.zeros(len(self.releases), added, dtype=torch.bool)], 1)
        return torch.tensor(sorted({place[row] for row in rows.tolist()}), dtype=torch.int64)


def kept_secret(path: Path, size: int, create: Callable[[], bytes]) -> bytes:
    """Return the ``size`` bytes of a file that only its user can read, created at the first call.

    Raises RunError when the file is damaged.
    """
    private_folder(path.parent)
    if not path.exists():
        # A file of mkstemp is private to its user, and linking fails if another process was faster.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                secret = create()
                stream.write(secret + _checksum(secret))
                stream.flush()
                os.fsync(stream.fileno())
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
    content = path.read_bytes()
    secret, checksum = content[:size], content[size:]
    # Files of older versions have no checksum.
    if checksum not in (b"", _checksum(secret)):
        raise RunError(f"{path} is damaged: put a copy of it back, or remove it, and others agree to the new key")
    return secret


def _checksum(secret: bytes) -> bytes:
    return zlib.crc32(secret).to_bytes(4)
