"""Flower's long-running programs in the foreground, restarted when their executor has ended."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from fedgraph.commands.deployment import resident
from fedgraph.commands.deployment.screen import Screen
from fedgraph.support.terminal import messages_for_people

_GRACE_SECONDS = 15.0
_LOOK_SECONDS = 1.0
_SOON_SECONDS = 30.0
_EXECUTOR = "flower-superexec"
"""Process in which SuperLink and SuperNode start apps, ours too; they do not notice when it ends."""


def show(command: list[str], console: Console) -> None:
    """Print a command as typed in a shell."""
    console.print(f"\n{shlex.join(command)}\n", style="bold", markup=False, soft_wrap=True, highlight=False)


def run_to_the_end(
    command: list[str],
    environment: Mapping[str, str],
    once_started: Callable[[subprocess.Popen[bytes]], None] = lambda started: None,
    screen: Screen | None = None,
    app_code: bool = False,
) -> int:
    """Run a program of Flower until it ends, by itself or by a signal to this process.

    Without its executor the program cannot start apps: it is restarted, unless it has run for less than half a minute.
    The messages of a SuperNode are answered by the ClientApp that is installed here
    (:mod:`fedgraph.commands.deployment.resident`), unless it is given ``--trusted-entities``.

    Parameters
    ----------
    command : list of str
        Name of the program, and its arguments.
    environment : mapping of str to str
        All its environment variables.
    once_started : callable, optional
        Called after each start; the program is ended if it raises.
    screen : Screen, optional
        Shows and logs the output; by default the program writes to this terminal.
    app_code : bool, optional
        Whether the app that a run brings along answers the messages of a SuperNode, as is Flower's way.

    Returns
    -------
    int
        Exit status.
    """
    name = command[0]
    if name == resident.NODE and not (app_code or any(word.startswith("--trusted-entities") for word in command)):
        command = [*resident.COMMAND, *command]
    while True:
        began = time.monotonic()
        status = _run_once(command, environment, once_started, screen)
        if status is not None:
            return status
        soon = time.monotonic() - began < _SOON_SECONDS
        text = f"the executor of {name} has ended, without which no app runs here"
        _say(text if soon else f"{text}: starting it again", screen)
        if soon:
            return 1


def supervise(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="flower-supernode or flower-superlink.")],
    app_code: Annotated[
        bool, typer.Option("--app-code", help="Run the code that a run brings along, as Flower does.")
    ] = False,
) -> None:
    """Run a program of Flower with the given options, and restart it when its executor has ended.

    flower-supernode answers with the ClientApp that is installed here, unless --app-code or --trusted-entities is
    given: with those, by the files of the app that a run brings along.
    """
    from fedgraph.federation.grids import flower_environment

    with messages_for_people():
        raise typer.Exit(run_to_the_end([program, *context.args], flower_environment(), app_code=app_code))


def _say(text: str, screen: Screen | None) -> None:
    if screen is not None:
        screen.print(text)
    else:
        Console(stderr=True).print(text, markup=False, soft_wrap=True, highlight=False)


def _run_once(
    command: list[str],
    environment: Mapping[str, str],
    once_started: Callable[[subprocess.Popen[bytes]], None],
    screen: Screen | None,
) -> int | None:
    """Run the program, and return its status; None if it was ended because its executor had ended."""
    from fedgraph.federation.grids import die_with_parent, program

    with ExitStack() as stack:
        variables = {} if screen is None else stack.enter_context(screen.status_file())
        pipe = None if screen is None else subprocess.PIPE
        started = subprocess.Popen(
            [program(command[0]), *command[1:]],
            env={**environment, **variables},
            stdout=pipe,
            stderr=pipe,
            # Otherwise a signal to the terminal's process group reaches it twice, and the second ends it at once.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        if screen is not None:
            stack.enter_context(screen.reading(started))
        stack.callback(_end_left_behind, started.pid)
        ending = stack.enter_context(_passing_on_signals(started, screen))
        try:
            once_started(started)
        except BaseException:
            _end(started)
            raise
        return _wait(started, ending)


def _wait(started: subprocess.Popen[bytes], ending: threading.Event) -> int | None:
    """Wait for a program to end, or end it once its executor has ended."""
    import psutil

    executor: psutil.Process | None = None
    while True:
        with suppress(subprocess.TimeoutExpired):
            return started.wait(_LOOK_SECONDS)
        with suppress(psutil.Error):
            if executor is None:
                children = psutil.Process(started.pid).children()
                executor = next((each for each in children if _EXECUTOR in " ".join(each.cmdline()[:5])), None)
            elif not (ending.is_set() or (executor.is_running() and executor.status() != psutil.STATUS_ZOMBIE)):
                _end(started)
                return None


def _end(started: subprocess.Popen[bytes]) -> None:
    started.terminate()
    try:
        started.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()


def _end_left_behind(group: int) -> None:
    """End the processes that a program has started and left behind, as an app that waits for an ended server."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_SECONDS
        with suppress(ProcessLookupError):
            os.killpg(group, number)
            while number != signal.SIGKILL and time.monotonic() < deadline:
                time.sleep(0.02)
                with suppress(ChildProcessError):  # the first process of a container inherits them
                    os.waitpid(-group, os.WNOHANG)
                os.killpg(group, 0)  # whether one is left


@contextmanager
def _passing_on_signals(started: subprocess.Popen[bytes], screen: Screen | None) -> Iterator[threading.Event]:
    """Forward signals to the program within the block; yield an event that the first one sets."""
    ending = threading.Event()

    def passed_on(number: int, frame: FrameType | None) -> None:
        ending.set()
        if screen is not None:
            screen.ending = True
        started.send_signal(number)

    before = {number: signal.signal(number, passed_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
