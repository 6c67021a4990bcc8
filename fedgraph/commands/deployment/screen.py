"""What one sees of Flower's long-running programs: what a run does, warnings, errors; all else is in a log file."""

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

_INFORMS = re.compile(r"(?:\d{4}-\S+ )?(?:INFO|DEBUG)\b")
"""Beginning of the lines that Flower and its web server write for those who look for a fault in them."""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_POLL_SECONDS = 0.3
_END_SECONDS = 2.0
_LOG_BYTES, _LOGS_KEPT = 10_000_000, 3

Reaction = Callable[[re.Match[str]], str | None]
"""Returns the line to show in place of one of Flower's; None for none."""


class Screen:
    """Shows what a program of Flower and its processes tell, and keeps all that they say in a log file.

    Lines of Flower that only inform are kept from the screen; what is not known to be one of those is shown.

    Parameters
    ----------
    console : Console
        The screen.
    log : Path
        The log file, which is begun anew when it has 10 MB; three old ones are kept.
    verbose : bool
        Whether the screen shows everything, as it comes.
    reactions : mapping of str to callable
        Lines to show in place of those of Flower's in which a regular expression is found. Flower's words change: what
        depends on them must not be needed.
    on_line : callable, optional
        Called before a line that a process of the run is shown.

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
        self.log, self.ending = log, False
        self._console, self._verbose = console, verbose
        self._reactions = {re.compile(pattern): reaction for pattern, reaction in reactions.items()}
        self._on_line = on_line
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._file = RotatingFileHandler(log, maxBytes=_LOG_BYTES, backupCount=_LOGS_KEPT, encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write the log {log} ({error.strerror}): name another file with --log") from None
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def print(self, text: str) -> None:
        """Show a line, and keep it."""
        self._show(Line(text))

    @contextmanager
    def status_file(self) -> Iterator[dict[str, str]]:
        """Show what processes tell in this block that have the environment variables that it yields."""
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
        """Show and keep what a program writes in this block, whose output and errors are pipes."""
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
        """Show another line in place of one of Flower's, where there is one."""
        for pattern, reaction in self._reactions.items():
            found = pattern.search(text)
            if found is not None:
                instead = reaction(found)
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
