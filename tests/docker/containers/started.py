"""Which engine the tests use: the one that runs here, or else one of Debian's packages, which ends with the tests.

That one is unpacked beside the system and not installed on it.

Debian 12 has Compose 1 only, so the packages are those of Debian 13. Their programs run here as they are, except
``runc``, which has to be this system's own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from containers import base_images, debian, firewall
from containers.engine import Engine

KEPT = Path(os.environ.get("FEDGRAPH_ENGINE", "/var/cache/fedgraph-engine"))
SUITE = "trixie"
PACKAGES = ["docker.io", "docker-cli", "docker-compose", "docker-buildx", "containerd", "tini"]
# Name -> where it lies in the packages.
PROGRAMS = {
    "docker": "usr/bin/docker",
    "docker-init": "usr/bin/tini-static",
    "containerd": "usr/bin/containerd",
    "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
    "dockerd": "usr/sbin/dockerd",
    "docker-proxy": "usr/sbin/docker-proxy",
}
PLUGINS = "usr/libexec/docker/cli-plugins"
SECONDS_TO_START = 90
SECONDS_TO_END = 60


class NoEngineError(Exception):
    """There is no container engine, and none can be started; says why."""


@contextmanager
def engine_at_hand() -> Iterator[Engine]:
    """Yield the engine that runs here, or else one that is started, as root on Debian, and ends with the block.

    What such an engine needs and makes, images included, is kept in the folder ``FEDGRAPH_ENGINE``.

    Raises
    ------
    NoEngineError
        When there is none, with what is missing.
    """
    running = Engine(dict(os.environ))
    lacking = running.lacks()
    if not lacking:
        yield running
    elif os.geteuid() != 0 or not debian.is_debian():
        raise NoEngineError(f"{lacking}, and one can be started by root on Debian only")
    else:
        with _engine(KEPT) as started:
            yield started


@contextmanager
def _engine(kept: Path) -> Iterator[Engine]:
    """Start an engine whose programs and images stay in a folder, and end it with the block."""
    kept.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = stack.enter_context((kept / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(f"other tests use the engine in {kept}") from None
        debian.install("iptables", "mmdebstrap", "runc", "ca-certificates")
        programs = _programs(kept)
        stack.enter_context(firewall.restored(kept / "firewall"))
        found = Engine(
            {
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "DOCKER_HOST": f"unix://{kept}/run/docker.sock",
                "DOCKER_CONFIG": str(kept / "client"),
                # Where pip of this machine is told where packages are, PyTorch is there, too.
                **({"TORCH_INDEX": os.environ.get("TORCH_INDEX", "")} if debian.pip_settings() else {}),
            }
        )
        stack.enter_context(_running(found, kept))
        stack.enter_context(base_images.provided(found))
        yield found


def _programs(kept: Path) -> Path:
    """Return a folder with the engine's programs, unpacked when they are not there yet."""
    packages, programs = kept / "packages", kept / "programs"
    if not packages.exists():
        fresh = kept / "packages.new"
        shutil.rmtree(fresh, ignore_errors=True)
        debian.unpack(SUITE, PACKAGES, fresh, variant="extract")
        fresh.rename(packages)
    for folder in (programs, kept / "client" / "cli-plugins"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name, place in PROGRAMS.items():
        (programs / name).symlink_to(packages / place)
    for plugin in (packages / PLUGINS).iterdir():
        (kept / "client" / "cli-plugins" / plugin.name).symlink_to(plugin)
    return programs


@contextmanager
def _running(found: Engine, kept: Path) -> Iterator[None]:
    """Run the daemon; containers and networks that are left at the end are removed."""
    run, log = kept / "run", kept / "dockerd.log"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    command = ["dockerd", "--data-root", f"{kept}/data", "--exec-root", f"{run}/exec"]
    command += ["--pidfile", f"{run}/docker.pid", "--host", found.environment["DOCKER_HOST"]]
    with log.open("w") as stream:
        # Not to be met by Ctrl-C, and not to outlive this process.
        daemon = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            env=found.environment, stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + SECONDS_TO_START
        while lacking := found.lacks():
            said = f"{lacking}\n{log.read_text()[-3000:]}"
            assert daemon.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        _clear(found)
        yield
        _clear(found)
    finally:
        daemon.terminate()
        daemon.wait(SECONDS_TO_END)
        for left in (run / "exec" / "netns").glob("*"):
            subprocess.run(["umount", str(left)], check=False, capture_output=True)
        shutil.rmtree(run, ignore_errors=True)


def _clear(found: Engine) -> None:
    """Remove containers, networks and volumes, and images that no name is left for."""
    for container in found.docker("ps", "--all", "--quiet").split():
        found.docker("rm", "--force", "--volumes", container)
    for what in ("network", "volume", "image"):
        found.docker(what, "prune", "--force", *(["--all"] if what == "volume" else []))
