"""Overrides of single keys of an experiment: ``train.learning-rate=0.05``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import dotted_path

Overrides = str | Iterable[str] | Mapping[str, Any]
"""One ``table.key=value``, several, or a mapping from ``table.key`` to the value."""


def apply_overrides(tables: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return ``tables`` with each ``table.key=value`` applied; values that are not TOML are plain text.

    ``table={key = value}`` replaces a whole table. ``tables`` is not changed. Raises ExperimentError when an override
    has no ``=`` or goes through something that is not a table.
    """
    result = json.loads(json.dumps(tables, default=_as_text))
    for path, value in overrides_by_key(overrides).items():
        override = f"{path}={value}"
        keys = path.split(".")
        if not all(keys) or (len(keys) < 2 and not isinstance(value, dict)):
            raise _no_override(override)
        table = result
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ExperimentError(f"override '{override}': '{key}' is not a table")
        table[keys[-1]] = value
    return result


def overrides_by_key(*several: Overrides) -> dict[str, Any]:
    """Return overrides of any form as a mapping from ``table.key`` to the last value.

    Raises ExperimentError when an override has no ``=``.
    """
    found: dict[str, Any] = {}
    for overrides in several:
        for path, value in _pairs(overrides):
            # A replacement of a whole table follows earlier overrides of its keys.
            found.pop(path, None)
            found[path] = value
    return found


def _as_text(value: Any) -> str:
    if hasattr(value, "iloc") or type(value).__name__ in ("ndarray", "Tensor"):
        raise ExperimentError(f"a {type(value).__name__} is no value of an experiment: fedgraph.run takes data frames")
    return dotted_path(value) if callable(value) else str(value)


def _pairs(overrides: Overrides) -> Iterator[tuple[str, Any]]:
    if isinstance(overrides, Mapping):
        for path, value in json.loads(json.dumps(overrides, default=_as_text)).items():
            yield path.strip(), value
        return
    for override in [overrides] if isinstance(overrides, str) else overrides:
        path, equals, text = override.partition("=")
        if not equals:
            raise _no_override(override)
        yield path.strip(), toml_value(text.strip())


def _no_override(override: str) -> ExperimentError:
    return ExperimentError(f"override '{override}' is not of the form table.key=value (or table={{...}})")


def toml_value(text: str) -> Any:
    """Parse a TOML value, or return the text if it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
