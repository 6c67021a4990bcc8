"""Flower's long-running programs in the foreground: printed as a command, and ended with this one."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType

from rich.console import Console

from fedgraph.commands.deployment.screen import Screen

_GRACE_SECONDS = 15.0


def show(command: list[str], console: Console) -> None:
    """Print a command as it can be typed."""
    console.print(f"\n{shlex.join(command)}\n", style="bold", markup=False, soft_wrap=True, highlight=False)


def run_to_the_end(
    command: list[str],
    environment: Mapping[str, str],
    once_started: Callable[[subprocess.Popen[bytes]], None] = lambda started: None,
    screen: Screen | None = None,
) -> int:
    """Run a program of Flower until it ends, by itself or by a signal to this process.

    Parameters
    ----------
    command : list of str
        Name of the program, and its arguments.
    environment : mapping of str to str
        All its environment variables.
    once_started : callable, optional
        Called while it runs; the program is ended if that fails.
    screen : Screen, optional
        Shows and keeps what it says; by default the program has this terminal.

    Returns
    -------
    int
        Its exit status.
    """
    from fedgraph.federation.grids import die_with_parent, program

    with ExitStack() as stack:
        told = {} if screen is None else stack.enter_context(screen.told())
        pipe = None if screen is None else subprocess.PIPE
        started = subprocess.Popen(
            [program(command[0]), *command[1:]],
            env={**environment, **told},
            stdout=pipe,
            stderr=pipe,
            preexec_fn=die_with_parent,
        )
        if screen is not None:
            stack.enter_context(screen.reading(started))
        with _passing_on_signals(started, screen):
            try:
                once_started(started)
            except BaseException:
                started.terminate()
                started.wait(_GRACE_SECONDS)
                raise
            return started.wait()


@contextmanager
def _passing_on_signals(started: subprocess.Popen[bytes], screen: Screen | None) -> Iterator[None]:
    def passed_on(number: int, frame: FrameType | None) -> None:
        if screen is not None:
            screen.ending = True
        started.send_signal(number)

    before = {number: signal.signal(number, passed_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
