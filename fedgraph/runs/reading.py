"""Files of a run folder, read with errors that say what to do when one is damaged."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgraph.support.errors import RunError
from fedgraph.support.files import State, json_object, load_json, load_state

log = logging.getLogger("fedgraph")


def read_environment(file: Path) -> dict[str, Any]:
    """Read ``environment.json``. Raises RunError for a file that is missing or broken."""
    try:
        return load_json(file)
    except RunError as error:
        raise RunError(
            f"{error}. If the run had no --site, --model or --node-config, and no code of its own in other folders, "
            "you may also write {} into the file"
        ) from None


def environment_or_nothing(file: Path) -> dict[str, Any]:
    """Read ``environment.json`` of a finished run; empty, with a warning, for a file that is missing or broken."""
    try:
        return load_json(file)
    except RunError as error:
        log.warning("%s; code of its own in other folders may not be found", str(error).partition(": put a copy")[0])
        return {}


def read_digests(file: Path) -> tuple[dict[str, str], list[str]]:
    """Read digests of the user's code, none for a file that is missing; for a broken one, a note in their place."""
    try:
        return load_json(file) if file.is_file() else {}, []
    except RunError:
        return {}, [f"{file.name} is damaged: it is not known whether code has changed since the run began"]


def read_tables(file: Path) -> dict[str, Any]:
    """Read an experiment as unchecked tables. Raises RunError for a file that is missing or broken."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        if "data" not in tables:
            raise ValueError("it has no table [data]")
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {file} ({error}): put a copy of it back, or start a new run") from None
    return tables


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one per line. Raises RunError for a damaged line."""
    content = file.read_bytes() if file.is_file() else b""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            value = json_object(line)
        except ValueError as error:
            raise RunError(f"{file}, line {number}, is damaged ({error}): remove this line") from None
        yield value


def read_summary(file: Path) -> dict[str, Any]:
    """Read ``summary.json``. Raises RunError when it is missing, as the run is not finished, or broken."""
    folder = file.parent
    try:
        return json_object(file.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{folder} is not finished: it has no summary.json") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: summary.json is damaged: {error}; {how_to_write_again(folder)}") from None


def how_to_write_again(folder: Path) -> str:
    """Say how to get a file of the results back that is missing or broken."""
    return f"put a copy of it back, or remove summary.json, and `fedgraph run --resume {folder}` writes it again"


def read_checkpoint(file: Path) -> State:
    """Read the checkpoint of a run. Raises RunError for a file that is broken."""
    try:
        return load_state(file)
    except RunError as error:
        raise RunError(f"{error}; remove this file, and the run begins anew") from None
