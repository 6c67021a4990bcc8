"""The errors that this project raises on purpose: each message contains what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

FULL_ERRORS = "FEDGRAPH_FULL_ERRORS"
"""Environment variable by which nodes send errors to the server in full; with ``raise`` they raise them as they are."""


class FedgraphError(Exception):
    """Base of all errors meant to be read by the person who started the run.

    Parameters
    ----------
    message : str
        The whole message.
    quoted : str
        The part of the message that is values of a client's data, to be shown only to its owner.
    """

    def __init__(self, message: str = "", quoted: str = "") -> None:
        super().__init__(message)
        self.quoted = quoted

    @property
    def without_values(self) -> str:
        """The message without the quoted values, for all others."""
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
    """A node does not know, or claims wrongly, which clients it hosts."""


class ReplyError(FedgraphError):
    """A reply from a node cannot be used."""


class RunError(FedgraphError):
    """A run cannot continue."""


class ContractError(FedgraphError):
    """A strategy or client class does not do what every such class must."""


def quoted(names: Sequence[str], limit: int = 5) -> str:
    """Quote the first ``limit`` names for a message: ``'a', 'b' and 3 more``."""
    text = ", ".join(f"'{name}'" for name in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"


def some(names: Sequence[object]) -> str:
    """Join the first few names, and the number of those left out."""
    more = len(names) - 8
    return ", ".join(map(str, names[:8])) + (f" and {more} more" if more > 0 else "")


def by_reason(absent: Mapping[str, str]) -> list[str]:
    """Group clients by the reason why they are missing.

    Returns a text for each reason, such as ``a, b: the disk is full``; of many clients the first few are named.

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
    """Return ``; did you mean 'x' for 'y'?`` for the first wanted name that has a close match, else nothing."""
    for name in wanted[:5]:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        if close:
            return f"; did you mean '{close[0]}' for '{name}'?"
    return ""


def closest_first(wanted: Sequence[str], names: Sequence[str], limit: int = 8) -> str:
    """List the first ``limit`` names for a message, those before the others that a wanted name is close to."""
    close = [match for name in wanted[:5] for match in difflib.get_close_matches(name, names, n=3, cutoff=0.6)]
    listed = list(dict.fromkeys([*close, *names]))
    return ", ".join(listed[:limit]) + (", ..." if len(listed) > limit else "")
