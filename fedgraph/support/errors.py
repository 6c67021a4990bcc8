"""Exceptions of this project, and parts of their messages, which have the problem, its place and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Self

FULL_ERRORS = "FEDGRAPH_FULL_ERRORS"
"""Environment variable by which nodes send full errors to the server, or raise them with the value ``raise``."""


class FedgraphError(Exception):
    """Base class of all errors for the user who started the run.

    Parameters
    ----------
    message : str
        The whole message.
    quoted : str
        The part of the message with values of a client's data, or with an error of a library, which may have them; for
        its owner only.
    """

    def __init__(self, message: str = "", quoted: str = "") -> None:
        super().__init__(message)
        self.quoted = quoted

    def at(self, place: str) -> Self:
        """Return the same error with a place in front of its message."""
        return type(self)(f"{place}: {self}", self.quoted)

    @property
    def without_values(self) -> str:
        """The message without the quoted values."""
        return str(self).replace(self.quoted, "(its node's log says which)") if self.quoted else str(self)


class ExperimentError(FedgraphError):
    """The experiment file, or an override of it, cannot be used."""


class AppError(FedgraphError):
    """The folder of a Flower app, one of its components or its run config cannot be used."""


class DataError(FedgraphError):
    """A data set, a data file or a client's share of it cannot be used."""


class GraphError(FedgraphError):
    """A graph of clients or of features cannot be built, read or matched to them."""


class IdentityError(FedgraphError):
    """The clients of a node are unknown or claimed wrongly."""


class ReplyError(FedgraphError):
    """A reply from a node cannot be used."""


class RunError(FedgraphError):
    """A run cannot continue."""


class DiskError(RunError, OSError):
    """A file cannot be written, as its disk is full, over its quota, read-only or failing."""


class ContractError(FedgraphError):
    """A strategy or client class violates its contract."""


def quoted(names: Sequence[str], limit: int = 5) -> str:
    """Quote the first ``limit`` names for a message: ``'a', 'b' and 3 more``."""
    text = ", ".join(f"'{name}'" for name in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"


def some(names: Sequence[object]) -> str:
    """Join the first few names, and the number of others."""
    more = len(names) - 8
    return ", ".join(map(str, names[:8])) + (f" and {more} more" if more > 0 else "")


def counted(count: int, word: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 row``, ``1,200 rows``; ``plural`` is for other endings than s."""
    return f"{count:,} {word if count == 1 else plural or f'{word}s'}"


def if_any(before: str, text: str) -> str:
    """Return ``before`` and ``text``, as in ``; known: a, b``, or nothing if there is no text."""
    return f"{before}{text}" if text else ""


def by_reason(absent: Mapping[str, str]) -> list[str]:
    """Group missing clients by reason.

    Returns a text for each reason, such as ``a, b: the disk is full``, with the first few of many clients.

    Parameters
    ----------
    absent : mapping of str to str
        Reasons by client.
    """
    groups: dict[str, list[str]] = {}
    for name, reason in absent.items():
        groups.setdefault(reason, []).append(name)
    return [f"{some(names)}: {reason}" for reason, names in groups.items()]


def similar(wanted: Sequence[str], names: Sequence[str]) -> str:
    """Return ``; did you mean 'x' for 'y'?`` for the first wanted name that has a close match, else nothing.

    Names that only differ in case or leading zeros come first.
    """
    for name in wanted[:5]:
        alike = [other for other in names if _plain(other) == _plain(name)]
        close = alike or difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        if close:
            return f"; did you mean '{close[0]}' for '{name}'?"
    return ""


def _plain(name: str) -> str:
    return name.casefold().lstrip("0")


def closest_first(wanted: Sequence[str], names: Sequence[str], limit: int = 8) -> str:
    """List the first ``limit`` names for a message, starting with those similar to a wanted name."""
    close = [match for name in wanted[:5] for match in difflib.get_close_matches(name, names, n=3, cutoff=0.6)]
    listed = list(dict.fromkeys([*close, *names]))
    return ", ".join(listed[:limit]) + (", ..." if len(listed) > limit else "")
