"""The errors this project raises on purpose: each says what was wrong, where it came from and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class FedgraphError(Exception):
    """Base of all errors meant to be read by the person who started the run.

    quoted : the part of the message that is values of a client's data, for its owner alone.
    """

    def __init__(self, message: str = "", quoted: str = "") -> None:
        super().__init__(message)
        self.quoted = quoted

    @property
    def without_values(self) -> str:
        """The message as others may read it."""
        return str(self).replace(self.quoted, "(its node's log says which)") if self.quoted else str(self)


class ExperimentError(FedgraphError):
    """The experiment file, or an override of it, cannot be used."""


class DataError(FedgraphError):
    """A data set, a data file or a client's share of it cannot be used."""


class GraphError(FedgraphError):
    """A graph of clients or of features cannot be built, read or matched to them."""


class IdentityError(FedgraphError):
    """A node does not know, or wrongly claims, which clients it hosts."""


class ReplyError(FedgraphError):
    """A reply from a node cannot be used."""


class RunError(FedgraphError):
    """A run cannot go on."""


def quoted(names: Sequence[str], limit: int = 5) -> str:
    """``'a', 'b' and 3 more``: names for a message, the first ``limit`` of them."""
    text = ", ".join(f"'{name}'" for name in names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"
