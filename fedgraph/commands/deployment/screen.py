"""Output of Flower's long-running programs: progress of runs, warnings and errors; the rest goes to a log file."""

from __future__ import annotations

import logging
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

from rich.console import Console

from fedgraph.support.errors import RunError
from fedgraph.support.status import STATUS_FILE, Line, StatusFile, printable, show
from fedgraph.support.untrusted import EntryFormatter

_INFORMS = re.compile(r"(?:\d{4}-\S+ )?(?:INFO|DEBUG)\b")
"""Beginning of informative lines of Flower and its web server, which are not shown."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_POLL_SECONDS = 0.3
_END_SECONDS = 2.0
_LOG_BYTES, _LOGS_KEPT = 10_000_000, 3

Reaction = Callable[[re.Match[str]], str | None]
"""Returns the line to show instead of one of Flower's, or None."""


class Screen:
    """Shows messages of a Flower program and its processes, and writes their whole output to a log file.

    Lines of Flower at level INFO or DEBUG are not shown.

    Parameters
    ----------
    console : Console
        The screen.
    log : Path
        The log file, rotated at 10 MB; three old ones are kept.
    verbose : bool
        Whether to show the whole output.
    reactions : mapping of str to callable
        Replacements of Flower's lines by regular expression. Flower's wording may change, so nothing must rely on them.
    on_line : callable, optional
        Called before a line of a run's process is shown.

    Raises
    ------
    RunError
        When the log file cannot be written.
    """

    def __init__(
        self,
        console: Console,
        log: Path,
        verbose: bool,
        reactions: Mapping[str, Reaction],
        on_line: Callable[[], None] = lambda: None,
    ) -> None:
        from fedgraph.support.files import private_folder  # which loads PyTorch

        self.log, self.ending = log, False
        self._console, self._verbose = console, verbose
        self._reactions = {re.compile(pattern): reaction for pattern, reaction in reactions.items()}
        self._on_line = on_line
        try:
            private_folder(log.parent)
            self._file = RotatingFileHandler(log, maxBytes=_LOG_BYTES, backupCount=_LOGS_KEPT, encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write the log {log} ({error.strerror}): choose another file with --log") from None
        self._file.setFormatter(EntryFormatter("%(asctime)s %(message)s"))

    def print(self, text: str) -> None:
        """Show and log a line."""
        self._show(Line(text))

    @contextmanager
    def status_file(self) -> Iterator[dict[str, str]]:
        """Show status messages within the block, from processes with the environment variables that it yields."""
        with tempfile.TemporaryDirectory(prefix="fedgraph-status-") as folder:
            status, over = StatusFile(Path(folder) / "status.jsonl"), threading.Event()
            watching = threading.Thread(target=self._watch, args=(status, over), daemon=True)
            watching.start()
            try:
                yield {STATUS_FILE: str(status.path), "PYTHONUNBUFFERED": "1"}
            finally:
                over.set()
                watching.join()

    @contextmanager
    def reading(self, started: subprocess.Popen[bytes]) -> Iterator[None]:
        """Show and log the output of a program, from its pipes, within the block."""
        assert started.stdout is not None
        assert started.stderr is not None
        readers = [
            threading.Thread(target=self._read, args=(started.stdout, False), daemon=True),
            threading.Thread(target=self._read, args=(started.stderr, True), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            yield
        finally:
            for reader in readers:
                # A process that outlives the program may keep its pipes.
                reader.join(_END_SECONDS)

    def _read(self, stream: IO[bytes], may_matter: bool) -> None:
        for raw in stream:
            text = printable(_COLOUR.sub("", raw.decode(errors="replace")).rstrip())
            self._keep(text)
            if self._verbose:
                self._console.print(text, markup=False, soft_wrap=True, highlight=False)
            elif text and not self._replaced(text) and may_matter and not _INFORMS.match(text):
                show(Line(text, logging.WARNING), self._console)

    def _replaced(self, text: str) -> bool:
        """Show the replacement of one of Flower's lines, and return whether it has one."""
        for pattern, reaction in self._reactions.items():
            match = pattern.search(text)
            if match is not None:
                instead = reaction(match)
                if instead is not None:
                    self.print(instead)
                return True
        return False

    def _watch(self, status: StatusFile, over: threading.Event) -> None:
        ended = False
        while not ended:
            ended = over.wait(_POLL_SECONDS)
            for line in status.new_lines():
                self._on_line()
                self._show(line)

    def _show(self, line: Line) -> None:
        self._keep(line.text)
        show(line, self._console)

    def _keep(self, text: str) -> None:
        self._file.emit(logging.LogRecord("fedgraph", logging.INFO, "", 0, "%s", (text,), None))
