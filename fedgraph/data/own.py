"""A node's own data: a local file or folder instead of the one that the experiment names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from fedgraph.support.csv_text import composed
from fedgraph.support.errors import DataError, IdentityError

OWN_TITLE = "own data"
"""Replaces the name of a node's own file in everything that leaves the node."""

CLIENT = "{client}"
"""Placeholder for a client's name in the path of its own file."""

UNNAMED = "new data"
"""The client of rows without a client column."""

LOOKED_FOR = (
    "a relative [data] path is looked for beside the experiment file and from the current folder of whoever starts the "
    "run, then in the data folder of the node (node config key data-dir, or FEDGRAPH_DATA); a node on another machine "
    "names a file of its own by the node config key data"
)
"""Hint for messages about missing files."""

GIVEN = ".given"
"""Folder next to the run folders, with the Python objects of their experiments in files, by key and content."""

_GIVEN_FILE = re.compile(rf"(?:[^\s'\"(][^\s'\"]*[/\\]|[/\\])?{re.escape(GIVEN)}[/\\]([\w.-]+)-[0-9a-f]{{16}}\.\w+")

Name = Annotated[str, AfterValidator(composed)]
"""Name of a client, a column, a class or a category, as settings give it."""


@dataclass(frozen=True)
class OwnData:
    """A node's own data, as its node config names it.

    Attributes
    ----------
    path : Path
        Absolute path of the file or folder; if it contains ``{client}``, there is one for each client.
    clients : tuple of str
        The clients that the node config names.
    site : str
        In a rehearsal, the name of the site, and of its client where neither the file nor the node config names any.
    """

    path: Path
    clients: tuple[str, ...] = ()
    site: str = ""

    def only_client(self) -> str:
        """Return the only client of the data.

        Raises IdentityError when the node config names no client, or several.
        """
        if self.site and not self.clients:
            return self.site
        if len(self.clients) != 1:
            named = f"it names {len(self.clients)}, {', '.join(self.clients[:8])}" if self.clients else "it names none"
            raise IdentityError(
                f"this node's own data belongs to one client, which the node config key 'clients' must name; {named}"
            )
        return self.clients[0]


def data_path(path: str | None, data_dir: Path, own: OwnData | None) -> Path:
    """Return the path of the data: the node's own, else ``path``, absolute or relative to the data folder.

    Raises DataError when there is neither, or when the node's own path does not exist.
    """
    if own is not None:
        if CLIENT not in str(own.path) and not own.path.exists():
            raise DataError(f"there is no {own.path}, which the node config key 'data' names as this node's own data")
        return own.path
    if path is None:
        raise DataError(
            "[data] names no path, so every node needs its own data, and this node has none: give it the node config "
            "key 'data' (`fedgraph node --client mercy --data mercy.csv`), or in `fedgraph run` --site "
            "mercy=mercy.csv (in Python sites); where all nodes read the same file, set path in [data] "
            "(--set data.path=all.csv)"
        )
    return data_dir / Path(path).expanduser()


def data_title(path: str | None, own: OwnData | None) -> str:
    """Return the title of the data for messages and reports; the file name of a node's own data stays hidden."""
    if path is None or own is not None:
        return OWN_TITLE
    place = Path(path)
    return name_given_files(f"{GIVEN}/{place.name}") if place.parent.name == GIVEN else place.name


def name_given_files(message: str) -> str:
    """Return a message in which data frames and graphs are named by the key that has them, not by their hidden file."""
    return _GIVEN_FILE.sub(r"the data given as \1", message)


def with_notes(description: str, notes: Iterable[str]) -> str:
    """Add notes to the description of data."""
    return "; ".join((description, *notes))
