"""What all benchmarks share: time and memory of a piece of work, repetitions taken in turn, tables, and the machine."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from fedgraph.runs import environment

MIB = 2**20

Repeats = Annotated[int, typer.Option(min=1, help="How often everything is measured, in turn.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every single number to this file.")]


@dataclass(frozen=True)
class Timing:
    """Seconds on the clock, and core-seconds: the processor time of all threads (and processes) that took part."""

    wall: float
    core: float


def timed(work: Callable[[], object]) -> Timing:
    """Time a piece of work in this process, on a GPU too: until all that was begun there is done."""
    settle()
    wall, core = time.perf_counter(), time.process_time()
    work()
    settle()
    return Timing(time.perf_counter() - wall, time.process_time() - core)


def settle() -> None:
    """Wait for the GPU, if this process uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def in_turn(candidates: Mapping[str, Callable[[], list[Timing]]], repeats: int) -> dict[str, list[Timing]]:
    """Measure every candidate once, then every one again: what disturbs a shared machine disturbs all of them.

    A candidate returns one or more timings per call and warms itself up.
    """
    results: dict[str, list[Timing]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, measure in candidates.items():
            results[name] += measure()
    return results


def warmed(work: Callable[[], object], in_a_row: int = 1) -> Callable[[], list[Timing]]:
    """A candidate for ``in_turn`` that does its work once unmeasured, before its first measurement.

    A measurement is the mean of doing it so many times ``in_a_row``: work of milliseconds depends on what is in the
    cache, which is otherwise what the candidate before it left there.
    """
    cold = True

    def repeated() -> None:
        for _ in range(in_a_row):
            work()

    def measure() -> list[Timing]:
        nonlocal cold
        if cold:
            work()
            cold = False
        whole = timed(repeated)
        return [Timing(whole.wall / in_a_row, whole.core / in_a_row)]

    return measure


def median(values: Iterable[float]) -> float:
    """The median of some numbers."""
    return statistics.median(values)


def number(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    digits = 3 if value == 0 else max(0, 2 - int(f"{abs(value):e}".partition("e")[2]))
    return f"{value:,.{digits}f}"


def timing_table(title: str, results: Mapping[str, Sequence[Timing]], baselines: Sequence[str]) -> Table:
    """Minimum, median and maximum seconds of every row, median core-seconds, and medians in units of each baseline's.

    The ratios are given in seconds on the clock and in core-seconds.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    headings = ["min [s]", "median [s]", "max [s]", "core-s"]
    headings += [f"{kind} / {name}" for name in baselines for kind in ("s", "core-s")]
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, timings in results.items():
        wall, core = [each.wall for each in timings], median(each.core for each in timings)
        cells = [number(value) for value in (min(wall), median(wall), max(wall), core)]
        cells += [number(ratio(results, name, other, kind)) for other in baselines for kind in ("wall", "core")]
        table.add_row(name, *cells)
    return table


def ratio(results: Mapping[str, Sequence[Timing]], name: str, baseline: str, kind: str = "wall") -> float:
    """Median of ``name`` over the median of ``baseline``; ``kind`` is ``wall`` or ``core``."""
    ours, theirs = (median(getattr(each, kind) for each in results[key]) for key in (name, baseline))
    return ours / theirs if theirs else float("nan")


def turn_ratios(results: Mapping[str, Sequence[Timing]], name: str, baseline: str, kind: str = "wall") -> list[float]:
    """Of every turn, ``name`` over ``baseline``, of which one turn may have several timings: their median counts."""

    def of_turns(key: str) -> list[float]:
        own = [getattr(each, kind) for each in results[key]]
        return [median(own[at : at + len(own) // turns]) for at in range(0, len(own), len(own) // turns)]

    turns = min(len(timings) for timings in results.values())
    return [mine / theirs for mine, theirs in zip(of_turns(name), of_turns(baseline), strict=True)]


def target_line(what: str, measured: float, limit: float, unit: str = "") -> str:
    """One line that says what was aimed at, what was measured, and whether that is enough."""
    verdict = "met" if measured <= limit else "missed"
    return f"Target: {what} <= {number(limit)}{unit}; measured {number(measured)}{unit}: {verdict}."


def machine_line(threads: str) -> str:
    """Processor, cores, versions, and the threads that were used (in words)."""
    here = environment()
    versions = ", ".join(f"{name} {version}" for name, version in here["packages"].items() if version)
    gpu = f", {here['cuda']}" if here["cuda"] else ""
    return f"{processor()}, {here['cores']} cores{gpu}; Python {here['python']}, {versions}; {threads}."


def processor() -> str:
    """The processor's model name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_report(tables: Iterable[Table], lines: Iterable[str], threads: str) -> None:
    """The tables, what there is to say about them, and the machine."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    for table in tables:
        console.print(table)
    for line in (*lines, machine_line(threads)):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def write_raw(path: Path | None, command: str, settings: Mapping[str, Any], results: Mapping[str, Any]) -> None:
    """Every single number as JSON; timings become ``{"wall": ..., "core": ...}``."""
    if path is None:
        return
    content = {
        "benchmark": command,
        "settings": settings,
        "machine": {**environment(), "processor": processor()},
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, default=_plain) + "\n")


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Timing) else str(value)


def resident_bytes() -> int:
    """Memory of this process that is in RAM now."""
    status = _status("VmRSS")
    return status if status is not None else peak_bytes()


def peak_bytes() -> int:
    """The most memory of this process that ever was in RAM."""
    # On Linux, ru_maxrss of a fresh program starts from what the process that started it had; VmHWM does not.
    status = _status("VmHWM")
    if status is not None:
        return status
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage if sys.platform == "darwin" else usage * 1024


def forget_peak() -> None:
    """Let ``peak_bytes`` count from now on, where the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status(key: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


def in_fresh_process(function: str, **arguments: Any) -> Any:
    """Call ``package.module:function`` in a Python of its own, so that its memory is its own; arguments and result
    are JSON. The function prints nothing to standard output.
    """
    module, _, name = function.partition(":")
    code = (
        "import importlib, json, sys; "
        f"function = getattr(importlib.import_module({module!r}), {name!r}); "
        "print(json.dumps(function(**json.loads(sys.argv[1]))))"
    )
    ours = str(Path(__file__).resolve().parents[2])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([ours, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)], env=variables, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)
