"""Run an app through Flower itself on this machine: a private SuperLink, simulated nodes on Ray, and no traces left."""

from __future__ import annotations

import ctypes
import os
import re
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

from fedgraph.federation.grids.programs import flower_environment, program
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
    """Find a port of the loopback interface that is not in use.

    It is not reserved: another program may take it before it is used.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def offered(name: str, *options: str) -> list[str]:
    """Return those options that a program of the installed version of Flower has, according to its ``--help``.

    Flower takes options away from one minor version to the next, and a program ends at one that it does not know.
    """
    help_text = subprocess.run(
        [program(name), "--help"], env=flower_environment(), capture_output=True, text=True, check=False
    ).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", help_text))
    return [option for option in options if option in known]


@contextmanager
def process(
    command: list[str], environment: Mapping[str, str], log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a background process that ends, with all its children, at the end of the block or when this process is
    killed.
    """
    started = start(command, environment, log, cwd)
    try:
        yield started
    finally:
        end_group(started)


def start(
    command: list[str], environment: Mapping[str, str], log: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a background process, which ends when this process is killed (on Linux); end it with :func:`end_group`.

    Returns the process, the leader of its own session.

    Parameters
    ----------
    command : list of str
        Program and arguments.
    environment : mapping of str to str
        All its environment variables.
    log : Path
        File that its output and errors are appended to.
    cwd : Path, optional
        Working folder.
    """
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
    """Have Linux kill this process when its parent ends; does nothing on other systems.

    For ``preexec_fn`` of :class:`subprocess.Popen`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_group(started: subprocess.Popen[bytes]) -> None:
    """End a process of :func:`start` with all its children: terminated first, and killed after ten seconds."""
    # Some of Flower's programs have sessions of their own, and outlive their parents.
    processes = _family(started)
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        started.wait(_END_SECONDS)
    kill_all(started, processes)


def kill_all(started: subprocess.Popen[bytes], everybody: Sequence[psutil.Process] | None = None) -> None:
    """Kill a process of :func:`start` and all its children at once, as a power cut would.

    Parameters
    ----------
    started : subprocess.Popen
        The process.
    everybody : sequence of psutil.Process, optional
        Its children, if they are known already; those that have ended are ignored.
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
    """Wait until the SuperLink on this machine answers.

    Raises RunError when it ends, or does not answer within 180 seconds.

    Parameters
    ----------
    port : int
        Its port, which also answers health checks.
    started : subprocess.Popen
        Its process.
    log : Path
        Its log; an error contains the last 2,000 characters of it.
    encrypted : bool, default False
        Whether it uses TLS.
    """
    if not superlink_answers(port, started, encrypted):
        raise RunError(f"the SuperLink did not start:\n{log.read_text(errors='replace')[-2000:]}")


def superlink_answers(port: int, started: subprocess.Popen[bytes], encrypted: bool = False) -> bool:
    """Wait until the SuperLink on this machine answers.

    The certificate is not verified here: that is up to the programs that connect from elsewhere. Returns False if the
    process ends, or does not answer within 180 seconds.
    """
    # The certificate is checked by the programs that connect from elsewhere.
    context = ssl._create_unverified_context() if encrypted else None
    # No proxy leads to this machine.
    direct = urllib.request.ProxyHandler({})
    opener = urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=context))
    deadline = time.monotonic() + _START_SECONDS
    address = f"{'https' if encrypted else 'http'}://127.0.0.1:{port}/health"
    while time.monotonic() < deadline and started.poll() is None:
        try:
            with opener.open(address, timeout=1) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def write_app(folder: Path) -> None:
    """Write a Flower app folder whose components are those of the installed fedgraph."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_APP)
    (folder / "fedgraph_server.py").write_text('from fedgraph.strategies.app import app\n\n__all__ = ["app"]\n')
    (folder / "fedgraph_client.py").write_text('from fedgraph.clients.app import app\n\n__all__ = ["app"]\n')


def connection_file(home: Path, address: str, authority: Path | None = None) -> None:
    """Write the ``config.toml`` where ``flwr`` looks up the address of the SuperLink.

    Parameters
    ----------
    home : Path
        Flower's folder for settings, created if missing.
    address : str
        ``host:port`` of the SuperLink.
    authority : Path, optional
        Certificate of the authority that signed the SuperLink's; by default the connection is not encrypted.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{connection("here", address, authority)}')


def connection(name: str, address: str, authority: Path | None) -> str:
    """Return the table of ``config.toml`` that describes a SuperLink, as TOML text.

    Parameters
    ----------
    name : str
        Name of the SuperLink in ``flwr run``.
    address : str
        ``host:port``.
    authority : Path or None
        Certificate of the authority that signed the SuperLink's; None for a connection that is not encrypted.
    """
    how = {"insecure": True} if authority is None else {"root-certificates": str(authority)}
    return tomli_w.dumps({"superlink": {name: {"address": address, **how}}})


def run_on_flower(
    run_config: Mapping[str, str],
    nodes: int,
    log: Path,
    places: Mapping[str, str],
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Run fedgraph's own app on simulated nodes of Flower, and return when it has ended, successfully or not.

    Raises RunError when the SuperLink does not start.

    Parameters
    ----------
    run_config : mapping of str to str
        Flower run config, such as the experiment file.
    nodes : int
        Number of simulated nodes.
    log : Path
        File that the output of Flower is appended to.
    places : mapping of str to str
        Environment variables with the folders of data, node state and models.
    on_wait : callable, optional
        Called twice a second during the run.
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
    """Run a Flower app on simulated nodes on Ray, and return when it has ended, successfully or not.

    Raises RunError when a program of Flower is not installed, or the SuperLink does not start.

    Parameters
    ----------
    app : Path
        App folder, as for ``flwr run``.
    run_config : mapping
        Flower run config.
    nodes : int
        Number of simulated nodes.
    log : Path
        File that the output of Flower is appended to.
    environment : mapping of str to str
        Environment variables added to those of Flower's programs.
    on_wait : callable, optional
        Called twice a second during the run.
    """
    with tempfile.TemporaryDirectory(prefix="fedgraph-flower-") as scratch:
        home = Path(scratch) / "home"
        port = free_port()
        variables = flower_environment(home, **environment)
        connection_file(home, f"127.0.0.1:{port}")
        command = [
            program("flower-superlink"), "--insecure", "--isolation", "subprocess",
            *offered("flower-superlink", "--simulation"), "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip
        # In another folder, so that Ray's workers do not import a folder called clients in this one instead of ours.
        with process(command, variables, log, cwd=Path(scratch)) as superlink:
            wait_for_superlink(port, superlink, log)
            settings = " ".join(f"{key}={_toml(value)}" for key, value in run_config.items())
            federation = f"num-supernodes={nodes} client-resources-num-cpus=1 {_gpu_resources(nodes)}".rstrip()
            run = [program("flwr"), "run", str(app), "here", "--stream", "-c", settings]
            with process([*run, "--federation-config", federation], variables, log) as started:
                while started.poll() is None:
                    on_wait()
                    time.sleep(_POLL_SECONDS)
                on_wait()


def _gpu_resources(nodes: int) -> str:
    """Return what a node on Ray has of the GPUs here, without which Ray hides them; nothing where there are none.

    As many nodes as have their own core compute at once.
    """
    import torch  # takes a second

    gpus, at_once = torch.cuda.device_count(), min(nodes, os.cpu_count() or 1)
    if not gpus:
        return ""
    # A little less, so that rounding leaves nobody out. Of more than one GPU Ray takes whole ones only.
    share = gpus // at_once if gpus >= 2 * at_once else (10_000 * min(gpus / at_once, 1.0) - 1) // 1 / 10_000
    return f"client-resources-num-gpus={float(share)}"


def _toml(value: str | int | float) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
