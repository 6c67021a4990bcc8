"""Names, words, JSON and folders of other parties, which are not trusted."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedgraph.support.errors import ReplyError, RunError

LONGEST_NAME = 200
"""Most letters of the name of a client, of an array, of a metric."""

LONGEST_DESCRIPTION = 1_000
"""Most letters of a description of data that are kept."""

LARGEST = 1e15
"""Largest number of a client that is computed with: sums of squares of larger ones overflow in float32."""

_DEEPEST = 40
"""Levels of lists and tables within each other; an experiment has about five."""

_LONGEST_WORDS = 2_000

_NOT_READ = {("wandb", name) for name in ("latest-run", "debug.log", "debug-internal.log")}
"""Links that Weights & Biases makes in its folder."""


def check_name(name: Any, whose: str) -> None:
    """Raise ReplyError unless a name that another party tells can be shown; ``whose`` says of what: "a client"."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ReplyError(
            f"the name of {whose} is not text of 1 to {LONGEST_NAME} letters that can be shown: "
            f"{in_short(repr(name), 60)}"
        )


def read_json(text: Any, what: str) -> Any:
    """Parse JSON of another party; ``what`` names it in messages.

    Raises ReplyError when it is no JSON, or nested deeper than 40 levels, which code that walks through it could not
    take.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ReplyError(f"{what} is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ReplyError(f"{what} is malformed ({in_short(str(error), 200)})") from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return value
    raise ReplyError(f"{what} is nested too deeply: lists and tables within each other on more than {_DEEPEST} levels")


def in_short(text: str, most: int = _LONGEST_WORDS) -> str:
    """Return the words of another party as they can be shown: :func:`indented`, and cut to ``most`` letters."""
    return indented(text if len(text) <= most else f"{text[: most - 20]} ... ({len(text):,} letters)")


def indented(text: str) -> str:
    """Return a text without control characters whose further lines are indented: none looks like one of its own."""
    shown = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
    return shown.replace("\n", "\n    ")


class EntryFormatter(logging.Formatter):
    """Formats an entry of a log with other parties' words, so that nothing in it looks like another entry."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry, :func:`indented`."""
        return indented(super().format(record))


def check_files(folder: Path) -> None:
    """Raise RunError if a run folder, which others may have made, has more than files and folders.

    Links lead to other files of this machine, and the content of pipes may have no end.
    """
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        with suppress(FileNotFoundError), os.scandir(place) as entries:  # a run may be going on
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False) and (place.name, entry.name) not in _NOT_READ:
                    raise RunError(
                        f"{entry.path} is a link, a pipe or a device, which are not read in a run folder: remove it, "
                        "or put a copy of the file in its place"
                    )


def _within(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
