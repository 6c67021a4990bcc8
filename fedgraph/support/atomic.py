"""Write a file in one step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to fill within the block, which then replaces ``path`` in one step.

    A reader, or a kill, sees the old file or the new one. Until then the new one is a hidden file in the same folder;
    an exception removes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        yield Path(temporary)
        os.fsync(descriptor)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step; see :func:`replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
