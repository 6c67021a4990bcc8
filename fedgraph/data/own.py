"""A node's own data: one file or folder that nobody else knows of, in place of the one that the experiment names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgraph.support.errors import DataError, IdentityError

OWN_TITLE = "own data"
"""What a file of a node's own is called in what leaves the node."""

CLIENT = "{client}"
"""Stands for a client's name in a path that is one for each client."""


@dataclass(frozen=True)
class OwnData:
    """What a node config says of the node's own data.

    path    : of the file or folder, absolute; with ``{client}`` in it, one for each client.
    clients : whose it is, as far as the node config names them.
    """

    path: Path
    clients: tuple[str, ...] = ()

    def only_client(self) -> str:
        """The one client whose all of it is.

        Raises
        ------
        IdentityError
            When the node config names nobody, or several.
        """
        if len(self.clients) != 1:
            named = (
                f"it names {len(self.clients)}, {', '.join(self.clients[:8])}" if self.clients else "it names nobody"
            )
            raise IdentityError(
                f"all of this node's own data is of one client, whom the node config key 'clients' must name; {named}"
            )
        return self.clients[0]


def place_of(path: str | None, data_dir: Path, own: OwnData | None) -> Path:
    """Where data lies: the node's own, else ``path``, absolute or relative to the data folder.

    Raises
    ------
    DataError
        When there is neither, and when there is nothing in the place that the node config names.
    """
    if own is not None:
        if CLIENT not in str(own.path) and not own.path.exists():
            raise DataError(f"there is no {own.path}, which the node config key 'data' names as this node's own data")
        return own.path
    if path is None:
        raise DataError(
            "[data] names no path, so that every node needs data of its own, and here is none: give the node the node "
            "config key 'data', for example --node-config 'clients=\"mercy\" data=\"mercy.csv\"'"
        )
    return data_dir / Path(path).expanduser()


def title_of(path: str | None, own: OwnData | None) -> str:
    """What data is called in messages and reports: the name of the experiment's file, never of a node's own one."""
    return Path(path).name if path is not None and own is None else OWN_TITLE
