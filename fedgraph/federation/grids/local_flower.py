"""Run an app through Flower itself on this machine: a private SuperLink, simulated nodes on Ray, and no traces left."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import tomli_w

from fedgraph.support.errors import RunError

_START_SECONDS = 180.0
_POLL_SECONDS = 0.5
_END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1

_APP = """\
[project]
name = "fedgraph-run"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "fedgraph"

[tool.flwr.app.components]
serverapp = "fedgraph_server:app"
clientapp = "fedgraph_client:app"

[tool.flwr.app.config]
experiment = ""
set = ""
data-dir = ""
output-dir = ""
seed = -1
"""


def free_port() -> int:
    """A port on the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str:
    """A Flower program of this Python environment. Raises RunError when it is not installed."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise RunError(f"cannot find '{name}' beside {sys.executable}: install flwr[simulation] in this environment")
    return found


def flower_environment(home: Path | None = None, **extra: str) -> dict[str, str]:
    """Environment for Flower's programs: no telemetry, no environment built per run.

    home : Flower's folder for settings and state; by default the user's own, $FLWR_HOME or ~/.flwr.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # This project's own folder comes first, so that no folder called clients or strategies in the way hides it.
    ours = str(Path(__file__).resolve().parents[3])
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": os.pathsep.join([ours, *(entry or os.getcwd() for entry in sys.path)]),
        **({} if home is None else {"FLWR_HOME": str(home)}),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_DEDUP_LOGS": "1",
        **extra,
    }


@contextmanager
def process(
    command: list[str], environment: Mapping[str, str], log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A background process with all its children, ended with the block, or with this process if that is killed."""
    started = start(command, environment, log, cwd)
    try:
        yield started
    finally:
        end_group(started)


def start(
    command: list[str], environment: Mapping[str, str], log: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """A background process, for ``end_group`` to end; it ends with this process if that is killed."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            command,
            env=dict(environment),
            cwd=cwd,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def die_with_parent() -> None:
    """Ask Linux to end the child when its parent is gone; elsewhere a killed parent leaves it behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_group(started: subprocess.Popen[bytes]) -> None:
    """End a process of ``start`` with all its children: asked first, then killed."""
    # Some of Flower's programs have sessions of their own, and outlive those that started them.
    everybody = _family(started)
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        started.wait(_END_SECONDS)
    kill_all(started, everybody)


def kill_all(started: subprocess.Popen[bytes], everybody: Sequence[psutil.Process] | None = None) -> None:
    """End a process of ``start`` with all its children at once, as a power cut would.

    everybody : its children, where they were found before; those that have ended count for nothing.
    """
    for each in _family(started) if everybody is None else everybody:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def _family(started: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return list(psutil.Process(started.pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def wait_for_superlink(port: int, started: subprocess.Popen[bytes], log: Path, encrypted: bool = False) -> None:
    """Return when the SuperLink answers. Raises RunError with the end of its log when it does not."""
    if not superlink_answers(port, started, encrypted):
        raise RunError(f"the SuperLink did not start:\n{log.read_text(errors='replace')[-2000:]}")


def superlink_answers(port: int, started: subprocess.Popen[bytes], encrypted: bool = False) -> bool:
    """Wait until the SuperLink on this machine answers; False when it ends, or takes too long."""
    # Whose certificate it is, is for those to check who come from elsewhere.
    context = ssl._create_unverified_context() if encrypted else None
    deadline = time.monotonic() + _START_SECONDS
    address = f"{'https' if encrypted else 'http'}://127.0.0.1:{port}/health"
    while time.monotonic() < deadline and started.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=1, context=context) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def write_app(folder: Path) -> None:
    """An app folder whose components are this project's, wherever it is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_APP)
    (folder / "fedgraph_server.py").write_text('from strategies.app import app\n\n__all__ = ["app"]\n')
    (folder / "fedgraph_client.py").write_text('from clients.app import app\n\n__all__ = ["app"]\n')


def connection_file(home: Path, address: str, authority: Path | None = None) -> None:
    """Tell ``flwr`` where the SuperLink answers, ``host:port``, and of which authority its certificate must be."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{connection("here", address, authority)}')


def connection(name: str, address: str, authority: Path | None) -> str:
    """The table of ``config.toml`` by which ``flwr`` knows a SuperLink; without an authority it is not encrypted."""
    how = {"insecure": True} if authority is None else {"root-certificates": str(authority)}
    return tomli_w.dumps({"superlink": {name: {"address": address, **how}}})


def run_on_flower(
    run_config: Mapping[str, str],
    nodes: int,
    log: Path,
    places: Mapping[str, str],
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """This project's app on ``nodes`` simulated nodes; see ``run_app_on_flower``.

    ``places`` are the variables that tell nodes where data, state and models lie.
    """
    with tempfile.TemporaryDirectory(prefix="fedgraph-app-") as scratch:
        app = Path(scratch) / "app"
        write_app(app)
        run_app_on_flower(app, run_config, nodes, log, places, on_wait)


def run_app_on_flower(
    app: Path,
    run_config: Mapping[str, str | int | float],
    nodes: int,
    log: Path,
    environment: Mapping[str, str],
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """``flwr run`` of any app folder with ``nodes`` simulated nodes on Ray; returns when it has ended, well or not.

    The output of Flower goes to ``log``; ``environment`` is added to that of its programs; ``on_wait`` is called
    twice a second meanwhile.

    Raises
    ------
    RunError
        When the SuperLink does not start.
    """
    with tempfile.TemporaryDirectory(prefix="fedgraph-flower-") as scratch:
        home = Path(scratch) / "home"
        port, control = free_port(), free_port()
        variables = flower_environment(home, **environment)
        connection_file(home, f"127.0.0.1:{port}")
        command = [
            program("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
            "--control-api-address", f"127.0.0.1:{control}", "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip
        # Elsewhere than here, or Ray's workers would take a folder called clients in the way for ours.
        with process(command, variables, log, cwd=Path(scratch)) as superlink:
            wait_for_superlink(port, superlink, log)
            settings = " ".join(f"{key}={_toml(value)}" for key, value in run_config.items())
            federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
            run = [program("flwr"), "run", str(app), "here", "--stream", "-c", settings]
            with process([*run, "--federation-config", federation], variables, log) as started:
                while started.poll() is None:
                    on_wait()
                    time.sleep(_POLL_SECONDS)
                on_wait()


def _toml(value: str | int | float) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
