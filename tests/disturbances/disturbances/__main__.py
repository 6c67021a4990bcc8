"""Runs that are disturbed. From the folder of the project, with ``PYTHONPATH=tests/disturbances``:

    python -m disturbances replies 10000          # methods with mutated replies
    python -m disturbances requests 2000          # nodes with mutated requests
    python -m disturbances messages               # each kind of message lost, as request and as reply
    python -m disturbances writes                 # the n-th write fails, for n = 1, 2, ... until none does
    python -m disturbances kills 100              # SIGKILL at random moments, on all grids
    python -m disturbances scenario FILE.toml ... # what files describe, or all files of a folder

print what does not hold, and end with status 1 if there is anything. ``--only NAME`` chooses experiments, ``--seed``
what is drawn, ``--grid`` where processes are killed; ``--keep FILE`` adds failing examples of mutations to a file.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from disturbances import suites
from disturbances.experiments import NAMES
from disturbances.fuzz import fuzz
from disturbances.system import is_preloaded, preloaded

GRIDS = ["local", "ray", "nodes"]


def main() -> None:
    """Parse the command line, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["replies", "requests", "messages", "writes", "kills", "scenario"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--only", action="append")
    parser.add_argument("--grid", action="append", choices=GRIDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    names = given.only or list(NAMES)
    if given.what in ("replies", "requests"):
        count = -(-int(given.arguments[0]) // len(names))
        sys.exit(not fuzz(given.what, names, count, given.seed, given.keep))
    if given.what == "writes" and not is_preloaded():
        os.execve(sys.executable, [sys.executable, "-m", "disturbances", *sys.argv[1:]], {**os.environ, **preloaded()})
    for logger in ("fedgraph", "flwr"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    if given.what == "kills":
        lines = suites.kills(int(given.arguments[0]), given.only, given.grid or GRIDS, given.seed)
    elif given.what == "scenario":
        lines = suites.scenarios([Path(each) for each in given.arguments])
    else:
        lines = {"messages": suites.messages, "writes": suites.writes}[given.what](names)
    failed = 0
    for line in lines:
        failed += line.startswith("FAILED")
        print(line, flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
