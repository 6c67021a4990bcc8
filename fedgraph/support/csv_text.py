"""Lines as the text of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def as_csv(lines: Iterable[Sequence[Any]]) -> str:
    """One line of text per line of entries; None is an empty entry."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue()
