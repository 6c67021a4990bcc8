"""Values that take seconds to compute and change with the program alone, kept on disk between commands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOLDER = Path.home() / ".cache" / "fedgraph" / "listings"
_PACKAGES = ("fedgraph", "fedgraph.strategies", "fedgraph.clients")


def cached_listing(name: str, compute: Callable[[], Any]) -> Any:
    """Return what ``compute`` returns, from a file if it has been called before by the same program.

    A listing of all methods or keys needs every module, and with them PyTorch and Flower: seconds for a page of text.

    Parameters
    ----------
    name : str
        Name of the file.
    compute : callable
        Returns a JSON value that depends on nothing but the source files and the version of Flower. It is called anew
        after any of these has changed, or when the file cannot be read; a file that cannot be written is left out.
    """
    path, program = FOLDER / f"{name}.json", _program()
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(path.read_text())
        if kept["program"] == program:
            return kept["value"]
    value = compute()
    from fedgraph.support.files import write_atomically  # which loads PyTorch

    with suppress(OSError):
        write_atomically(path, json.dumps({"program": program, "value": value}).encode())
    return value


def _program() -> str:
    """Return a digest of where the source files lie, their sizes and times."""
    digest = hashlib.sha256(version("flwr").encode())
    for package in _PACKAGES:
        found = find_spec(package)
        for folder in (found.submodule_search_locations or []) if found else []:
            for path in sorted(Path(folder).rglob("*.py")):
                state = path.stat()
                digest.update(f"{path} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()
