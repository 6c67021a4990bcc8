"""Flower's programs: where they are, and the environment that they run in."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from pathlib import Path

from fedgraph.support.errors import RunError

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_HERE = ("127.0.0.1", "localhost", "::1")

_SCRIPT = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from {module} import {function}

sys.exit({function}())
"""
"""A program for the shell, which starts it, and for Python; a first line with the path of Python may be too long."""


def program(name: str) -> str:
    """Find a program of Flower, in this Python environment or else on the ``PATH``.

    Where the scripts of ``flwr`` are missing beside Python, or name a Python that is not there, as after a move to
    another machine, it is one that was written for this Python.

    Raises RunError when it is not installed.
    """
    beside = [folder / name for folder in _folders() if (folder / name).exists()]
    found = str(beside[0]) if beside else shutil.which(name)
    if found is None:
        raise RunError(f"cannot find '{name}' beside {sys.executable}: install flwr[simulation] in this environment")
    return found


def flower_environment(home: Path | None = None, **extra: str) -> dict[str, str]:
    """Build the environment variables of Flower's programs: no telemetry, and no environment built for each run.

    Returns all variables of this process, with those of Flower.

    Parameters
    ----------
    home : Path, optional
        Flower's folder for settings and state; by default the user's own, ``$FLWR_HOME`` or ``~/.flwr``.
    **extra : str
        Further variables.
    """
    # Flower's programs start one another by name.
    path = os.pathsep.join([*map(str, _folders()), os.environ.get("PATH", "")])
    proxied = any(name.lower() in _PROXIES and value for name, value in os.environ.items())
    # This project's own folder comes first, so that no other checkout of it runs in its place.
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
        **({"no_proxy": past_proxies(os.environ)} if proxied else {}),
        **extra,
    }


def past_proxies(environment: Mapping[str, str]) -> str:
    """Return ``no_proxy`` of an environment with this machine added: Flower's processes on it talk to one another."""
    hosts = [host for host in (environment.get("no_proxy") or environment.get("NO_PROXY", "")).split(",") if host]
    return ",".join([*hosts, *(host for host in _HERE if host not in hosts)])


def _folders() -> list[Path]:
    """Return where programs are looked for first: beside Python, and before it where Flower's do not run there."""
    beside, scripts = Path(sys.executable).parent, _scripts()
    if all(_runs(beside / each.name) for each in scripts):
        return [beside]
    return [_written(scripts), beside]


def _scripts() -> list[EntryPoint]:
    try:
        return [each for each in distribution("flwr").entry_points if each.group == "console_scripts"]
    except PackageNotFoundError:
        return []


def _runs(path: Path) -> bool:
    """Return whether there is such a script, and the program that its first line names."""
    if not os.access(path, os.X_OK):
        return False
    with path.open("rb") as stream:
        first = stream.readline()
    words = first[2:].split() if first.startswith(b"#!") else []
    return not words or os.access(words[0], os.X_OK)


def _written(scripts: list[EntryPoint]) -> Path:
    """Return a folder with these scripts for this Python, in the user's cache; they are written once."""
    texts = {
        each.name: _SCRIPT.format(python=sys.executable, module=each.module, function=each.attr) for each in scripts
    }
    digest = hashlib.sha256("".join(sorted(texts.values())).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgraph" / "programs" / digest
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            begun = Path(scratch) / digest
            begun.mkdir()
            for name, text in texts.items():
                (begun / name).write_text(text)
                (begun / name).chmod(0o755)
            # Another process may have been faster.
            if not folder.is_dir():
                begun.rename(folder)
    except OSError as error:
        if folder.is_dir():
            return folder
        raise RunError(
            f"Flower's programs beside {sys.executable} are missing or start a Python that is not there, and others "
            f"cannot be written to {folder}: {error}; install flwr again with this Python, or let XDG_CACHE_HOME name "
            "a folder that can be written"
        ) from error
    return folder
