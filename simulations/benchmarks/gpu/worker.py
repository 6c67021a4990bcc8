"""The process in which parts run: one after the other, so that Python and CUDA start once, apart from what may fail."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from fedgraph.federation.grids import die_with_parent
from fedgraph.simulations.benchmarks.gpu.found import Found


class Worker:
    """Runs parts in a process of its own, which is started when needed and anew after a part that failed.

    What parts print goes to ``log``.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def run(self, work: str, arguments: dict[str, Any], seconds: float) -> Found | str:
        """Call ``package.module:function`` with arguments by name; return what it finds, or what went wrong.

        Raises
        ------
        TimeoutError
            When it takes longer than ``seconds``; the process is ended then, with all that it started.
        """
        if self._process is None:
            self._start()
        self._pipe.send((work, arguments))
        if not self._pipe.poll(seconds):
            self.end()
            raise TimeoutError
        try:
            outcome: Found | str = self._pipe.recv()
        except EOFError:
            self._process.join(10)
            outcome = f"the process ended with exit code {self._process.exitcode}; see {self._log}"
        if isinstance(outcome, str):
            self.end()
        return outcome

    def end(self) -> None:
        """End the process, and all that it started."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._process = None

    def _start(self) -> None:
        # A forked process cannot use CUDA where this one has.
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, str(self._log), os.getpid()))
        self._process.start()
        other.close()


def serve(pipe: Connection, log: str, parent: int) -> None:
    """Run what is asked for until the other end is closed."""
    die_with_parent()
    if os.getppid() != parent:
        return
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for each in (1, 2):
        os.dup2(stream, each)
    with suppress(EOFError):
        while True:
            work, arguments = pipe.recv()
            print(f"\n{work} {arguments}", flush=True)
            try:
                module, _, function = work.partition(":")
                outcome: Found | str = getattr(importlib.import_module(module), function)(**arguments)
            except Exception as error:
                traceback.print_exc()
                outcome = f"{type(error).__name__}: {error}"
            sys.stdout.flush()
            pipe.send(outcome)
