"""The files of named data sets: their sources, and their presence in a data folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedgraph.support.errors import DataError

_DEFAULT_FOLDER = Path.home() / ".cache" / "fedgraph" / "data"


@dataclass(frozen=True)
class DataFile:
    """A file of a data set.

    Attributes
    ----------
    path : its path, relative to the data folder.
    url : its source; empty if it is not published separately.
    download : whether ``url`` is a direct download.
    sha256 : checksum of the published file; None if it is unknown.
    size_bytes : size of the published file, if known.
    """

    path: Path
    url: str
    download: bool = False
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True)
class CatalogueEntry:
    """A named data set as ``fedgraph data`` prints it.

    Attributes
    ----------
    name : the value of ``[data] set``.
    alternatives : each is a complete set of files to read the data from, in the order of search.
    """

    name: str
    title: str
    licence: str
    size: str
    alternatives: tuple[tuple[DataFile, ...], ...] = ()
    notes: str = ""


def data_folder(given: str | None) -> Path:
    """Return the folder in which data sets are looked for.

    ``given``, with ``~`` expanded; ``~/.cache/fedgraph/data`` if it is None or empty.
    """
    return Path(given).expanduser() if given else _DEFAULT_FOLDER


def find(entry: CatalogueEntry, data_dir: Path) -> tuple[Path, ...] | None:
    """Find the files of a data set in a data folder.

    Returns paths of the first alternative whose files are all in ``data_dir``, in the entry's order, or None.
    """
    for files in entry.alternatives:
        if files and all((data_dir / file.path).is_file() for file in files):
            return tuple(data_dir / file.path for file in files)
    return None


def require(entry: CatalogueEntry, data_dir: Path) -> tuple[Path, ...]:
    """Find files as :func:`find`. Raises DataError with :func:`missing_message` if they are missing."""
    paths = find(entry, data_dir)
    if paths is None:
        raise DataError(missing_message(entry, data_dir))
    return paths


def downloads(entry: CatalogueEntry) -> tuple[DataFile, ...]:
    """List the files of a data set that can be downloaded.

    Returns the first alternative whose files can all be downloaded; if there is none, every file that can be
    downloaded.
    """
    for files in entry.alternatives:
        if files and all(file.download for file in files):
            return files
    served = [file for files in entry.alternatives for file in files if file.download]
    return tuple(dict.fromkeys(served))


def missing_message(entry: CatalogueEntry, data_dir: Path) -> str:
    """Describe missing files, their sources and their places; published alternatives first."""
    folder = data_dir.absolute()
    published = [files for files in entry.alternatives if all(file.url for file in files)]
    lines = [f"{entry.title}: the data folder {folder} does not hold the files of the data set '{entry.name}'."]
    for number, files in enumerate(published or entry.alternatives):
        lines.append("Or, instead:" if number else "Missing:")
        lines += [line for file in files if not (folder / file.path).is_file() for line in _facts(file, folder)]
    others = [files for files in entry.alternatives if files not in published]
    if published and others:
        sets = "; ".join(" with ".join(str(file.path) for file in files) for files in others)
        lines.append(f"Prepared subsets are read too when they are there: {sets}.")
    served = [file.path.name for file in downloads(entry) if not (folder / file.path).is_file()]
    if served:
        lines.append(f"Or run `fedgraph data --download {entry.name}`, which fetches {' and '.join(served)}.")
    lines.append(
        "The data folder is named by the node config key `data-dir` or the environment variable FEDGRAPH_DATA."
    )
    return "\n".join(lines)


def _facts(file: DataFile, folder: Path) -> list[str]:
    address = f"published at {file.url}" if file.url else "not published as a file of its own"
    checksum = f"its SHA-256 is {file.sha256}" if file.sha256 else "its checksum is not known, so it is not verified"
    return [f"  {file.path.name}: {address}", f"    put it at {folder / file.path} ({checksum})"]
