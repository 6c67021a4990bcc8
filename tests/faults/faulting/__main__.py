"""Runs with faults. From the folder of the project, with ``PYTHONPATH=tests/fuzz:tests/faults``:

    python -m faulting scenario FILE.toml ...     # what files describe, or all files of a folder
    python -m faulting messages                   # each kind of message lost, as request and as reply
    python -m faulting writes                     # the n-th write fails, for n = 1, 2, ... until none does
    python -m faulting kills 100                  # SIGKILL at random moments, on all grids

print a line for each with what does not hold, and end with status 1 if there is any. ``--only NAME`` chooses
experiments, ``--seed`` what is drawn.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from faulting import suites
from faulting.small import NAMES
from faulting.system import is_preloaded, preloaded


def main() -> None:
    """Parse the command line, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scenario", "messages", "writes", "kills"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--only", action="append")
    parser.add_argument("--grid", action="append", choices=["local", "ray", "nodes"])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.what == "writes" and not is_preloaded():
        os.execve(sys.executable, [sys.executable, "-m", "faulting", *sys.argv[1:]], {**os.environ, **preloaded()})
    names = given.only or list(NAMES)
    for logger in ("fedgraph", "flwr"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    failed = 0
    for line in _lines(given, names):
        failed += line.startswith("FAILED")
        print(line, flush=True)
    sys.exit(failed > 0)


def _lines(given: argparse.Namespace, names: list[str]) -> Iterator[str]:
    if given.what == "scenario":
        return suites.scenarios([Path(each) for each in given.arguments])
    if given.what == "messages":
        return suites.messages(names)
    if given.what == "writes":
        return suites.writes(names)
    return suites.kills(int(given.arguments[0]), given.only, given.grid or ["local", "ray", "nodes"], given.seed)


if __name__ == "__main__":
    main()
