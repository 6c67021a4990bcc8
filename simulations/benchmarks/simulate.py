"""``simulate``: one Flower app by ``fedgraph simulate`` and by ``flwr run`` on Ray, a client per node."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.table import Table

from fedgraph.federation.grids import flower_environment, run_app_on_flower
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Repeats,
    Timing,
    in_turn,
    median,
    number,
    print_report,
    ratio,
    write_raw,
)
from fedgraph.simulations.benchmarks.processes import ProcessWatch
from fedgraph.starting.flower_app import FlowerApp
from fedgraph.support.errors import RunError

OURS, RAY = "fedgraph simulate", "flwr run, Ray"
_APPS = Path(__file__).resolve().parents[1] / "apps"

_TIMED = '''"""The app's own ServerApp, with the time at which each exchange begins."""

import json
import time
from pathlib import Path

import {module}
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    began, send_and_receive = [], grid.send_and_receive

    def noted(*given, **named):
        began.append(time.time())
        return send_and_receive(*given, **named)

    grid.send_and_receive = noted
    {module}.main(grid, context)
    Path(context.run_config["times"]).write_text(json.dumps([*began, time.time()]))
'''


@dataclass(frozen=True)
class _Run:
    """A whole run: its later rounds, and all of it from the command to its end."""

    rounds: list[Timing]
    whole: Timing


def simulate(
    app: Annotated[str, typer.Argument(help="Name of an app of simulations/apps, or the folder of one.")] = "pytorch",
    nodes: Annotated[list[int] | None, typer.Option(help="Numbers of nodes; several make several tables.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of a run; the first one is not counted.")] = 6,
    repeats: Repeats = 3,
    json_: JsonFile = None,
) -> None:
    """Seconds and core-seconds of a round, and of a whole command, of one Flower app: in one process, and on Ray."""
    chosen = nodes or [10, 100]
    folder = _APPS / app if (_APPS / app).is_dir() else Path(app)
    tables, raw = [], {}
    with tempfile.TemporaryDirectory(prefix="fedgraph-simulate-") as scratch:
        timed = _with_times(folder, Path(scratch) / "app")
        for count in chosen:
            runs: dict[str, list[_Run]] = {OURS: [], RAY: []}
            by_round = in_turn({name: _measured(name, timed, count, rounds, runs[name]) for name in runs}, repeats)
            whole = {name: [run.whole for run in runs[name]] for name in runs}
            tables.append(_table(f"{folder.name}, {count} nodes", by_round, whole))
            raw[str(count)] = {"round": by_round, "command": whole}
    lines = [
        f"A round is the mean of all but the first of {rounds} in a run, from the beginning of its first exchange to "
        f"that of the next round's; medians over {repeats} runs of each, in turn. A command is all of it, with "
        "starting Python and, on Ray, the SuperLink and the workers. Core-seconds are those of all processes of it.",
        "The machine may be shared: what else runs slows both down, and ratios say more than seconds.",
    ]
    print_report(tables, lines, "one intra-op thread if OMP_NUM_THREADS=1 is set; on Ray one core per simulated node")
    write_raw(json_, "simulate", {"app": folder.name, "rounds": rounds, "repeats": repeats}, raw)


def _table(title: str, by_round: dict[str, list[Timing]], whole: dict[str, list[Timing]]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("", "round [s]", "core-s", "command [s]", "core-s"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    kinds = [(results, kind) for results in (by_round, whole) for kind in ("wall", "core")]
    for name in by_round:
        cells = [median(getattr(timing, kind) for timing in results[name]) for results, kind in kinds]
        table.add_row(name, *map(number, cells))
    table.add_row(f"{RAY} / {OURS}", *(number(ratio(results, RAY, OURS, kind)) for results, kind in kinds))
    return table


def _with_times(folder: Path, copy: Path) -> Path:
    """Copy an app so that it writes the times of its exchanges to the file that the run config names."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    project: dict[str, Any] = tomllib.loads((copy / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    module = app["components"]["serverapp"].partition(":")[0]
    (copy / "timed_server.py").write_text(_TIMED.format(module=module))
    app["components"]["serverapp"] = "timed_server:app"
    app.setdefault("config", {})["times"] = ""
    (copy / "pyproject.toml").write_text(tomli_w.dumps(project))
    return copy


def _measured(name: str, app: Path, nodes: int, rounds: int, runs: list[_Run]) -> Callable[[], list[Timing]]:
    """Return what runs the app once, adds the run to ``runs`` and returns its mean round."""

    def measure() -> list[Timing]:
        runs.append(_run(name, app, nodes, rounds))
        found = runs[-1].rounds
        return [Timing(*(sum(getattr(each, kind) for each in found) / len(found) for kind in ("wall", "core")))]

    return measure


def _run(name: str, app: Path, nodes: int, rounds: int) -> _Run:
    with tempfile.TemporaryDirectory(prefix="fedgraph-simulate-run-") as scratch:
        times, log = Path(scratch) / "times.json", Path(scratch) / "log"
        config: dict[str, str | int | float] = {"num-server-rounds": rounds, "times": str(times)}
        if "num-clients" in FlowerApp.open(app).defaults:
            config["num-clients"] = nodes
        with ProcessWatch(interval=0.05) as watch:
            began = time.time()
            if name == OURS:
                _simulate(app, nodes, config, log)
            else:
                run_app_on_flower(app, config, nodes, log, {})
            ended = time.time()
        if not times.is_file():
            raise RunError(f"'{name}' did not finish; the end of its log:\n{log.read_text(errors='replace')[-3000:]}")
        exchanges: list[float] = json.loads(times.read_text())
    core = watch.core_until
    return _Run(
        [Timing(end - start, core(end) - core(start)) for start, end in pairwise(_starts(exchanges, rounds)[1:])],
        Timing(ended - began, core(ended) - core(began)),
    )


def _starts(times: list[float], rounds: int) -> list[float]:
    """Return when rounds begin, and when the last one ends, of the times of exchanges and of the end.

    All rounds have as many exchanges; those before the first round, which ask who is there, are no part of one.
    """
    exchanges, end = times[:-1], times[-1]
    each = len(exchanges) // rounds
    return [*exchanges[len(exchanges) - each * rounds :: each], end]


def _simulate(app: Path, nodes: int, config: dict[str, str | int | float], log: Path) -> None:
    pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    command = [sys.executable, "-m", "fedgraph", "simulate", str(app), "--nodes", str(nodes), "-c", pairs]
    with log.open("wb") as stream:
        subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=flower_environment(), check=False)
