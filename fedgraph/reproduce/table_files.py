"""Files of tables for ``fedgraph reproduce``: the project's by name, others by path."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgraph.reproduce.table import ColumnTable, MetricTable, ProfileTable, PublishedTable, RowTable, TableTable
from fedgraph.support.errors import ExperimentError, similar
from fedgraph.support.settings import Settings, parse

_PARTS: dict[str, type[Settings]] = {"table": TableTable, "columns": ColumnTable, "rows": RowTable}

EXPLAINED: dict[str, tuple[str, type[Settings]]] = {
    "reproduce.table": ("[table] of a table for `fedgraph reproduce`", TableTable),
    "reproduce.metrics": ("an entry of `metrics` there", MetricTable),
    "reproduce.columns": ("[[columns]] there", ColumnTable),
    "reproduce.rows": ("[[rows]] there", RowTable),
    "reproduce.profiles": ("[profiles.small] and [profiles.full] there", ProfileTable),
}
"""Heading and settings class of every part of a table file, for ``fedgraph keys``."""


def files_that_come_along() -> dict[str, Path]:
    """Return the project's tables by name: ``sfl-table1`` is ``simulations/sfl/tables/table1.toml``."""
    paths = sorted(Path(str(files("fedgraph.simulations"))).glob("*/tables/*.toml"))
    return {f"{path.parent.parent.name}-{path.stem}": path for path in paths}


def load_table(name: str) -> tuple[str, PublishedTable, Path]:
    """Load a table by name, see :func:`files_that_come_along`, or by path; return its name, content and file.

    Raises
    ------
    ExperimentError
        When the table is unknown or has invalid keys or values.
    """
    known = files_that_come_along()
    path = known.get(name, Path(name))
    if not path.is_file():
        raise ExperimentError(f"unknown table '{name}'; known: {', '.join(known)}{similar([name], list(known))}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} is not a TOML file: {error}") from None
    path = path.resolve()
    try:
        _check_parts(content)
        return name if name in known else path.stem, parse(PublishedTable, content, "the table"), path
    except ExperimentError as error:
        raise ExperimentError(f"{path}:\n{error}") from None


def _check_parts(content: dict[str, Any]) -> None:
    """Parse part by part, so that messages name the row or column and its known keys."""
    for key, kind in _PARTS.items():
        entries = content.get(key, [])
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            if isinstance(entry, dict):
                for metric in entry.get("metrics", ()):
                    if isinstance(metric, dict):
                        parse(MetricTable, metric, f"[{key}] metrics")
                name = entry.get("label", entry.get("key", number + 1))
                parse(kind, entry, f"[[{key}]] '{name}'" if isinstance(entries, list) else f"[{key}]")
    for name, profile in content.get("profiles", {}).items():
        if isinstance(profile, dict):
            parse(ProfileTable, profile, f"[profiles.{name}]")
