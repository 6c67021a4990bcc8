"""``gpu``: all that is measured on a GPU, within a budget, in parts that go on where they were cut off."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from fedgraph.reproduce import ResultLine, merge_into
from fedgraph.runs import environment
from fedgraph.simulations.benchmarks.gpu.found import Found
from fedgraph.simulations.benchmarks.gpu.parts import PARTS, Part
from fedgraph.simulations.benchmarks.gpu.result_file import ResultFile
from fedgraph.simulations.benchmarks.gpu.worker import Worker
from fedgraph.simulations.benchmarks.measure import machine_line, processor
from fedgraph.simulations.scripts import ResultsFile
from fedgraph.support.errors import ExperimentError

_REHEARSAL = "A rehearsal on a CPU: it runs the same code, and no number here says anything about a GPU."


def gpu(
    out: Annotated[Path, typer.Option(help="JSON file of all that is found; parts in it are not run again.")],
    budget: Annotated[float, typer.Option(min=1, help="Seconds for all parts of this call.")] = 480.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a rehearsal.")] = "cuda",
    tiny: Annotated[bool, typer.Option("--tiny", help="Tiny sizes, for a rehearsal in seconds.")] = False,
    chosen: Annotated[
        list[str] | None, typer.Option("--part", help="A part, or all whose names begin so with a slash behind.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only list the parts.")] = False,
    results: ResultsFile = None,
    show: Annotated[
        bool, typer.Option("--show", help="Run nothing: show what the file has. With --results: write it. No GPU.")
    ] = False,
) -> None:
    """Everything that is measured on a GPU, in parts, the cheapest and most telling first; one JSON file.

    A part that fails is noted with its error, and the next one goes on; the next call tries it again, after those that
    were not tried yet. No part needs data or a network; those on Ray need Ray.
    """
    parts = _parts(chosen)
    console = _console()
    if list_:
        for name, part in parts.items():
            _say(console, f"{name}: {part.title}, at most {part.limit} s")
        return
    if show:
        file = ResultFile.there(out)
        _tell(parts, file, console)
        _keep(parts, file, results)
        return
    if device not in ("cuda", "cpu"):
        raise ExperimentError(f"--device {device}: it is cuda or cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ExperimentError(
            "--device cuda: there is no CUDA device that PyTorch can use on this machine; --device cpu --tiny runs the "
            "same code in a rehearsal"
        )
    conditions = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "rehearsal": device == "cpu",
        "tiny": tiny,
    }
    file = ResultFile(out, conditions, {**environment(), "processor": processor()})
    if device == "cpu":
        if results is not None:
            raise ExperimentError("--results: a rehearsal on a CPU says nothing about a GPU")
        _say(console, _REHEARSAL)
    _run(parts, file, device, tiny, budget, console)
    _tell(parts, file, console)
    _keep(parts, file, results)
    _say(console, machine_line("a GPU" if device == "cuda" else "threads as they come"))


def _parts(chosen: list[str] | None) -> dict[str, Part]:
    """Return the parts that are asked for, in their order. Raises ExperimentError for an unknown one."""
    for name in chosen or ():
        if not any(_belongs(part, name) for part in PARTS):
            families = dict.fromkeys(map(_family, PARTS))
            raise ExperimentError(f"--part {name}: there are {', '.join(families)}; --list lists all of them")
    return {name: part for name, part in PARTS.items() if not chosen or any(_belongs(name, each) for each in chosen)}


def _belongs(part: str, chosen: str) -> bool:
    return part == chosen or part.startswith(f"{chosen}/")


def _run(parts: Mapping[str, Part], file: ResultFile, device: str, tiny: bool, budget: float, console: Console) -> None:
    """Run the parts that the file does not have, as far as the budget goes."""
    began = time.monotonic()
    new = [name for name in parts if name not in file.parts]
    again = [name for name in parts if file.failed(name)]
    with Worker(file.path.with_suffix(".log")) as worker, tempfile.TemporaryDirectory(prefix="fedgraph-gpu-") as folder:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        for name in (*new, *again):
            part, left = parts[name], budget - (time.monotonic() - began)
            if left < part.limit / 4:
                continue
            started = time.monotonic()
            arguments: dict[str, Any] = {"device": device, "folder": folder, **(part.tiny if tiny else part.sizes)}
            try:
                outcome = worker.run(part.work, arguments, min(left, part.limit))
            except TimeoutError:
                if left < part.limit:
                    break
                outcome = f"it did not end within {part.limit} seconds"
            seconds = time.monotonic() - started
            file.add(name, part.title, outcome, seconds)
            said = f"failed: {outcome}" if isinstance(outcome, str) else "done"
            _say(console, f"{name} [{seconds:.1f} s]: {said}")


def _tell(parts: Mapping[str, Part], file: ResultFile, console: Console) -> None:
    """Show what the file has of these parts: a table for each family, what is said of them, and which are left."""
    for family in dict.fromkeys(map(_family, parts)):
        members = [name for name in parts if _family(name) == family and file.done(name)]
        found = [Found.read(file.parts[name]) for name in members]
        if found:
            console.print(Found({row: cells for each in found for row, cells in each.rows.items()}).table(family))
            for line in dict.fromkeys(line for each in found for line in each.lines):
                _say(console, line)
    _say(console, f"{sum(map(file.done, parts))} of {len(parts)} parts are in {file.path}.")
    failed = [name for name in parts if file.failed(name)]
    left = [name for name in parts if name not in file.parts]
    if failed:
        _say(console, f"Failed, and tried again by the next call: {', '.join(failed)}.")
    if left:
        _say(console, f"Left for the next call: {', '.join(left)}.")


def _keep(parts: Mapping[str, Part], file: ResultFile, results: Path | None) -> None:
    """Merge what the file has of these parts into a result file, where one is named.

    The family of a part is the column. Raises ExperimentError for a rehearsal.
    """
    if results is None:
        return
    if file.is_rehearsal:
        raise ExperimentError(f"--results: {file.path} is a rehearsal, and its numbers say nothing about a GPU")
    source = f"benchmarks gpu, {file.device}"
    merge_into(
        results,
        [
            ResultLine(row, _family(name), metric, value=f"{value:.4g}", source=source)
            for name in filter(file.done, parts)
            for row, metric, value in Found.read(file.parts[name]).numbers()
        ],
    )


def _family(part: str) -> str:
    return part.partition("/")[0]


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)
