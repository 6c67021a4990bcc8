"""Flower's long-running programs in the foreground: printed as a command, and ended with this one."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from rich.console import Console

_GRACE_SECONDS = 15.0


def show(command: list[str], console: Console) -> None:
    """Print a command as it can be typed."""
    console.print(f"\n{shlex.join(command)}\n", style="bold", markup=False, soft_wrap=True, highlight=False)


def run_to_the_end(
    command: list[str],
    environment: Mapping[str, str],
    once_started: Callable[[subprocess.Popen[bytes]], None] = lambda started: None,
) -> int:
    """Run a program of Flower with this terminal until it ends, by itself or by a signal to this process.

    ``once_started`` is called while it runs; the program is ended if that fails.

    Returns
    -------
    int
        Its exit status.
    """
    from fedgraph.federation.grids import die_with_parent, program

    started = subprocess.Popen([program(command[0]), *command[1:]], env=dict(environment), preexec_fn=die_with_parent)
    with _passing_on_signals(started):
        try:
            once_started(started)
        except BaseException:
            started.terminate()
            started.wait(_GRACE_SECONDS)
            raise
        return started.wait()


@contextmanager
def _passing_on_signals(started: subprocess.Popen[bytes]) -> Iterator[None]:
    def passed_on(number: int, frame: FrameType | None) -> None:
        started.send_signal(number)

    before = {number: signal.signal(number, passed_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
