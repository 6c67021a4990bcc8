"""Names of files and folders made from what users and data call things."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote


def file_name(name: str) -> str:
    """``name`` as that of one file or folder: different for different names, and none leads out of its folder."""
    return quote(name, safe="").replace(".", "%2E")


def json_digest(known: Any, default: Callable[[Any], Any] | None = None) -> str:
    """64 hexadecimal digits (SHA-256) that stand for a JSON value; the order of its keys does not matter.

    default : turns what is no JSON value into one, as for ``json.dumps``; without it such a value is a TypeError.
    """
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=default).encode()).hexdigest()
