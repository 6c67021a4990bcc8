"""A SuperNode whose messages are answered by the ClientApp that is installed here, in a process that is kept warm.

Flower starts a process for each message, which imports PyTorch and the files of the app that a run brings along. Here
``flower-supernode`` has an executor of ours beside it (``--isolation process``), which has imported everything and
forks for each task. The fork runs Flower's own code, except that the app of the run is neither unpacked nor imported.
On systems where a process with PyTorch cannot be forked, it is a new process, to the same effect::

    python -P -m fedgraph.commands.deployment.resident flower-supernode --insecure --superlink 127.0.0.1:8000

The parts of Flower that this relies on are checked by :func:`unknown_part` before it starts.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from inspect import signature
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any, NoReturn

from fedgraph.support.pause import GrowingPause, ask_sooner

log = logging.getLogger("fedgraph")

COMMAND = (sys.executable, "-P", "-m", "fedgraph.commands.deployment.resident")
"""Before the name of a program of Flower and its arguments, ours takes its place."""

NODE, _EXECUTOR, _TASK = "flower-supernode", "flower-superexec", "flwr-clientapp"
_NODE_LOOP, _EXECUTOR_LOOP = "flwr.supernode.start_client_internal", "flwr.supercore.superexec.run_superexec"
_RUNTIME, _TASK_PROGRAM = "flwr.supernode.runtime.run_clientapp", "flwr.supernode.cli.flwr_clientapp"

_CLIENT = "RuntimeHttpClient"

_LONGEST_LOOK = 1.0
"""Seconds between two looks of the executor at its SuperNode, on the same machine; Flower's own number."""
_PATIENCE_SECONDS = 10.0
_MOST_TASKS = 4
"""Tasks at once; a SuperNode passes on one message after the other, but a task may outlive its message."""
_PR_SET_NAME = 15

_USES = {
    (_RUNTIME, "run_clientapp"): ("install_from_fab", "get_project_dir", "get_load_client_app_fn", _CLIENT),
    (_EXECUTOR_LOOP, "run_superexec"): ("get_executor", "reconcile", "get_eligible_capacity", "launch_task"),
    (_TASK_PROGRAM, "flwr_clientapp"): ("run_clientapp",),
}
"""Functions of Flower, and what is replaced or provided within them."""
_PAUSES = {(_NODE_LOOP, "start_client_internal"): ("time", "sleep"), (_NODE_LOOP, "_push_messages"): ("time", "sleep")}


def unknown_part(uses: Mapping[tuple[str, str], tuple[str, ...]] = _USES) -> str:
    """Return the first part of the installed Flower that is not as known here; empty if all are."""
    for (module, function), names in uses.items():
        try:
            found = getattr(import_module(module), function)
            missing = [name for name in names if name not in found.__code__.co_names]
        except (ImportError, AttributeError):
            return f"{module}.{function}"
        if missing:
            return f"{missing[0]} in {module}.{function}"
    try:
        signature(import_module(_EXECUTOR_LOOP).run_superexec).bind(runtime_api_address="", insecure=True)
    except TypeError:
        return f"the arguments of {_EXECUTOR_LOOP}.run_superexec"
    return ""


def run_node(arguments: list[str]) -> None:
    """Run Flower's SuperNode in this process, with an executor of ours as a child; with Flower's own if it must be."""
    if unknown := unknown_part():
        log.warning(
            "the code that a run brings along runs on this node, because this version of Flower has another %s than "
            "fedgraph knows: install a version that `pip show fedgraph-flower` asks for",
            unknown,
        )
    else:
        _start_executor(arguments)
        _look_sooner()
        arguments = [*arguments, "--isolation", "process"]
    sys.argv = [NODE, *arguments]
    import_module("flwr.supernode.cli").flower_supernode()


def _start_executor(arguments: list[str]) -> None:
    """Start the executor of a SuperNode with these arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="9094")
    parser.add_argument("--ssl-ca-certfile")
    own, _ = parser.parse_known_args(arguments)
    host = f"[{own.host}]" if ":" in own.host else own.host
    trust = ["--root-certificates", own.ssl_ca_certfile] if own.ssl_ca_certfile else ["--insecure"]
    subprocess.Popen([*COMMAND, _EXECUTOR, str(os.getpid()), f"{host}:{own.port}", *trust])


def _look_sooner() -> None:
    """Replace Flower's fixed pauses between two looks for messages and replies by growing ones of at most as long."""
    if unknown := unknown_part(_PAUSES):
        log.warning("messages are found every 3 s, as this version of Flower waits in another way (%s)", unknown)
        return
    pause, before = GrowingPause(0.0), 0.0

    def sleep(seconds: float) -> None:
        # Each loop of Flower's has a pause of its own.
        nonlocal pause, before
        if seconds != before:
            pause, before = GrowingPause(seconds), seconds
        pause.sleep()

    vars(import_module(_NODE_LOOP))["time"] = SimpleNamespace(sleep=sleep)
    ask_sooner(_NODE_LOOP)


def run_executor(arguments: list[str]) -> None:
    """Answer the tasks of the SuperNode at an address until that process ends."""
    node, address, *trust = arguments
    forking = sys.platform == "linux"
    if forking:
        from fedgraph.federation.grids import die_with_parent

        die_with_parent()
        if os.getppid() != int(node):
            return
        _import_all()
        _use_installed_app()
    loop = import_module(_EXECUTOR_LOOP)
    vars(loop)["get_executor"] = lambda *given, **named: _Executor(forking)
    # It waits in `reconcile`.
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.01"
    loop.run_superexec(
        runtime_api_address=address,
        insecure=trust == ["--insecure"],
        root_certificates_path=None if trust == ["--insecure"] else trust[1],
        # Flower would look for the parent in a thread; a process that forks has one only.
        parent_pid=None if forking else int(node),
    )


def answer_task(arguments: list[str]) -> None:
    """Answer one message as ``flwr-clientapp`` with these arguments does, by the installed ClientApp."""
    sys.argv = [_TASK, *arguments]
    import_module(_TASK_PROGRAM).flwr_clientapp()


def _use_installed_app() -> None:
    """Have Flower load the ClientApp that is installed here, whatever app a run brings along."""
    import_module(_TASK_PROGRAM)
    runtime, app = import_module(_RUNTIME), import_module("fedgraph.clients.app").app

    class Client(vars(runtime)[_CLIENT]):  # type: ignore[misc]
        """Waits for what the SuperNode is still receiving, which a fork may ask for before it is there."""

        def PullMessages(self, request: Any) -> Any:  # noqa: N802
            return _soon(super().PullMessages, request, lambda found: found.messages_list)

        def PullObject(self, request: Any) -> Any:  # noqa: N802
            return _soon(super().PullObject, request, lambda found: found.object_available or not found.object_found)

    vars(runtime).update(
        {_CLIENT: Client},
        install_from_fab=lambda *given, **named: None,
        get_project_dir=lambda *given: os.curdir,
        get_load_client_app_fn=lambda **given: lambda *run: app,
    )


def _soon(ask: Callable[[Any], Any], request: Any, is_there: Callable[[Any], Any]) -> Any:
    """Ask until something is there, for some seconds; return the last answer."""
    pause, ends = GrowingPause(_LONGEST_LOOK), time.monotonic() + _PATIENCE_SECONDS
    while not is_there(found := ask(request)) and time.monotonic() < ends:
        pause.sleep()
    return found


def _import_all() -> None:
    """Import what answers any request: what is imported before the fork takes no time after it."""
    for package in ("fedgraph.clients", "fedgraph.data"):
        for found in walk_packages(import_module(package).__path__, f"{package}."):
            with suppress(ImportError):  # of an optional package
                import_module(found.name)


class _Executor:
    """Flower's executor protocol: where tasks are started, how many at once, and their end.

    Every kind of task is answered by the installed ClientApp, so that a run cannot choose another program.
    """

    def __init__(self, forking: bool) -> None:
        self._forking, self._owner = forking, os.getpid()
        self._pause = GrowingPause(_LONGEST_LOOK)
        self._running: list[int] = []

    def reconcile(self) -> None:
        """Wait until the next look for a task; forget tasks that have ended."""
        self._pause.sleep()
        self._running = [pid for pid in self._running if not _ended(pid)]

    def get_eligible_capacity(self, types: set[Any], **connection: Any) -> tuple[set[Any], set[str]]:
        """Return the kinds of tasks that may be started now."""
        return (types if len(self._running) < _MOST_TASKS else set()), set()

    def wait_for_capacity(self, *given: Any, **named: Any) -> None:
        """Return at once: no task is asked for where there is no capacity."""

    def launch(self, spec: Any) -> Any:
        """Start a task; ``spec`` is Flower's description of it."""
        trust = ["--insecure"] if spec.insecure else ["--root-certificates", spec.root_certificates_path]
        arguments = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token, *trust]
        arguments += ["--parent-pid", str(self._owner)]
        if not self._forking:
            self._running.append(subprocess.Popen([*COMMAND, _TASK, *arguments]).pid)
        elif pid := os.fork():
            self._running.append(pid)
        else:
            _answer_and_exit(arguments)
        self._pause.restart()
        return import_module("flwr.supercore.superexec.executor").LaunchResult.accepted()

    def close(self) -> None:
        """End the tasks, unless this is one of them."""
        if os.getpid() == self._owner:
            for pid in self._running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


def _answer_and_exit(arguments: list[str]) -> NoReturn:
    """Answer a task in a fork, of which nothing returns to the executor's loop."""
    import numpy as np
    import torch

    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, _TASK.encode())
        # All forks would draw the same numbers from the generators that they have inherited.
        torch.seed()
        np.random.seed()
        answer_task(arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        log.exception("a task has failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def main() -> None:
    """Take the place of one of Flower's programs, which the first argument names."""
    name, *arguments = sys.argv[1:]
    if name == _TASK:
        _use_installed_app()
    {NODE: run_node, _EXECUTOR: run_executor, _TASK: answer_task}[name](arguments)


if __name__ == "__main__":
    main()
