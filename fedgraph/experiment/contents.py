"""The content of the files that an experiment names, by which runs on changed files are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from fedgraph.experiment.experiment import Experiment


def file_contents(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each of the user's own files, by the key that names it: ``data.path``, ``graph.path``.

    Files of the data folder are not among them, as all nodes have the same. Of a folder, names, sizes and times of its
    files count.
    """
    tables = experiment.as_dict()
    if tables.get("graph", {}).get("source") == "run":
        del tables["graph"]
    return {
        f"{table}.{key}": _digest(Path(value))
        for table in ("data", "graph")
        for key, value in sorted(tables.get(table, {}).items())
        if isinstance(value, str) and Path(value).is_absolute() and Path(value).exists()
    }


def _digest(path: Path) -> str:
    if path.is_file():
        status = path.stat()
        return _of_file(path, status.st_size, status.st_mtime_ns)
    return hashlib.sha256("\0".join(_entries(path)).encode()).hexdigest()[:16]


def _entries(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            yield f"{path.relative_to(folder)} {status.st_size} {status.st_mtime_ns}"


@lru_cache(maxsize=256)
def _of_file(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
