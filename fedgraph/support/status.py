"""Status lines and warnings from the processes of a run to the program with the terminal.

ServerApp, ClientApp and the workers of Ray are processes of Flower. They append lines to the file in the environment
variable ``FEDGRAPH_STATUS_FILE``, set by the program that starts Flower and shows them. Without it nothing is written,
and warnings are those of Python's logging.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

STATUS_FILE = "FEDGRAPH_STATUS_FILE"
"""Environment variable with the path of the file."""

ONCE = {"once": "compiler"}
"""``extra`` of warnings about a missing compiler: only one with the same word is shown."""

_log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class Line:
    """A status line of a process.

    Attributes
    ----------
    text : the status or warning.
    level : as in :mod:`logging`: ``INFO`` for progress, ``WARNING`` or more for problems.
    once : only the first of several lines with the same word is shown; empty: all are.
    """

    text: str
    level: int = logging.INFO
    once: str = ""

    @classmethod
    def of(cls, record: logging.LogRecord) -> Line:
        """Convert a record of Python's logging, including its traceback."""
        return cls(logging.Formatter().format(record), record.levelno, getattr(record, "once", ""))


def report_status(text: str) -> None:
    """Append a line to the status file, if there is one."""
    if os.environ.get(STATUS_FILE):
        try:
            _add(Line(text))
        except OSError as error:
            _log.warning("cannot write '%s' to the status file: %s", text, error)


def report_warnings() -> None:
    """Append every warning and error of this process to the status file from now on, if there is one."""
    if os.environ.get(STATUS_FILE) and not any(isinstance(handler, _Reporting) for handler in _log.handlers):
        _log.addHandler(_Reporting(logging.WARNING))


class StatusFile:
    """Reads status lines while processes append them.

    Parameters
    ----------
    path : the file of ``FEDGRAPH_STATUS_FILE``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._shown: set[str] = set()

    def new_lines(self) -> Iterator[Line]:
        """Yield the lines that were appended since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                fresh = Line(**json.loads(line))
                if fresh.once not in self._shown:
                    yield fresh
                self._shown |= {fresh.once} - {""}


@contextmanager
def warnings_on(console: Console) -> Iterator[None]:
    """Print warnings of this process on a console, those about a missing compiler once."""
    handler = _OnScreen(console)
    _log.addHandler(handler)
    try:
        yield
    finally:
        _log.removeHandler(handler)


def show(line: Line, console: Console) -> None:
    """Print a status line: a warning in yellow, an error in red."""
    style = "red" if line.level >= logging.ERROR else "yellow" if line.level >= logging.WARNING else ""
    console.print(printable(line.text), style=style, markup=False, soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    """Remove control sequences, as text may be from a server."""
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def _add(line: Line) -> None:
    # One write to the end of the file: lines of several processes do not mix.
    with open(os.environ[STATUS_FILE], "ab", buffering=0) as stream:
        stream.write(json.dumps(asdict(line)).encode() + b"\n")


class _Reporting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            _add(Line.of(record))
        except OSError:
            if logging.lastResort is not None:
                logging.lastResort.handle(record)


class _OnScreen(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        line = Line.of(record)
        # Errors end the run with the same message.
        if line.level == logging.WARNING and line.once not in self._shown:
            show(line, self._console)
        self._shown |= {line.once} - {""}
