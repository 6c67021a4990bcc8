"""Running of cells: each once, by any number of processes that share the folder."""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedgraph.clients.engine.node import forget_cohorts
from fedgraph.data import catalogue_entries, open_source
from fedgraph.experiment import Experiment
from fedgraph.reproduce.cells import Cell
from fedgraph.runs import Callback, RunFolder, environment
from fedgraph.starting.running import run_one
from fedgraph.support.catalogue import find
from fedgraph.support.errors import DataError
from fedgraph.support.files import locked, write_atomically

_POLL_SECONDS = 1.0
_FAILURE = "failure.txt"


@dataclass(frozen=True)
class Execution:
    """Settings for running cells.

    Attributes
    ----------
    nodes : int
        Number of nodes of each run, unless its cell sets it.
    data_dir : Path
        The data folder.
    keep_models : bool
        Keep the final models in the run folders.
    plugins : sequence of str
        Folders whose modules experiments may name.
    """

    nodes: int
    data_dir: Path
    keep_models: bool = False
    plugins: tuple[str, ...] = ()


def run_cells(
    cells: Sequence[Cell],
    how: Execution,
    console: Console,
    on_end: Callable[[Cell], None] = lambda cell: None,
    listeners: Sequence[Callback] = (),
) -> None:
    """Run all cells whose data are available, after the cells that they build on.

    ``on_end`` is called for each cell that this process ran; ``listeners`` are callbacks of these runs.

    Finished cells are skipped, killed ones resumed. A cell that fails stores the reason in its folder (see
    :func:`failure`) without stopping the others; the next command tries it again. Cells that another process is
    running, and cells that build on them, come last.
    """
    began = time.time()
    every = _in_order(cells)
    waiting, number = every, 0
    while waiting:
        busy: list[Cell] = []
        for cell in waiting:
            number = min(number + 1, len(every))
            with _lock(cell) as mine:
                if not mine or cell.after in busy:
                    busy.append(cell)
                elif _is_due(cell, how, since=began):
                    minutes, seconds = divmod(int(time.time() - began), 60)
                    label = f"{number}/{len(every)} {minutes}:{seconds:02} {cell.column}, {cell.row}, seed {cell.seed}"
                    _run(cell, how, console, escape(label), listeners)
                    on_end(cell)
        waiting = busy
        if waiting:
            time.sleep(_POLL_SECONDS)


def _in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each after the one that it builds on, which is added if missing."""
    ordered: list[Cell] = []
    for cell in cells:
        chain = [cell]
        while (earlier := chain[-1].after) is not None:
            chain.append(earlier)
        ordered += [each for each in reversed(chain) if each not in ordered]
    return ordered


def failure(cell: Cell) -> str | None:
    """Return why the last attempt to run a cell failed, or None."""
    if cell.experiment is None:
        return cell.problem.splitlines()[-1].partition("; known")[0]  # the lines before name the file
    file = cell.path / _FAILURE
    return file.read_text().splitlines()[0] if file.exists() and not RunFolder(cell.path).is_finished else None


def missing_data(experiment: Experiment, data_dir: Path) -> str | None:
    """Describe the files of an experiment that the data folder lacks; None if it has all."""
    name = getattr(experiment.data, "set", "")
    entry = next((entry for entry in catalogue_entries() if entry.name == name), None)
    if entry is not None and entry.alternatives and find(entry, data_dir) is None:
        return f"no files of {entry.title} in {data_dir}; `fedgraph data {name}` lists them and how to get them"
    try:
        open_source(experiment.data, data_dir).client_names()
    except DataError as error:
        return str(error).splitlines()[0]
    return None


def usual_metric(experiment: Experiment, data_dir: Path, of_classes: str) -> str:
    """Return the metric that runs are compared by if none is named: ``of_classes``, or the mean absolute error.

    Raises DataError where clients have no common target.
    """
    source = open_source(experiment.data, data_dir)
    try:
        task = source.load(source.client_names()[:1]).task
    except DataError as error:
        raise DataError(f"{error}\n(--metric names what runs are compared by: validation/...)") from None
    return f"validation/{of_classes if task.kind == 'classification' else 'mae'}"


def _is_due(cell: Cell, how: Execution, since: float) -> bool:
    """Return whether a locked cell must still be run by a command that began at ``since``."""
    if cell.experiment is None or cell.pending or missing_data(cell.experiment, how.data_dir) is not None:
        return False
    if RunFolder(cell.path).is_finished:
        if RunFolder(cell.path).checkpoint.exists():  # killed before it was tidied up
            _tidy(cell, how)
        return False
    failed = cell.path / _FAILURE
    return not (failed.exists() and failed.stat().st_mtime > since)


def _run(cell: Cell, how: Execution, console: Console, label: str, listeners: Sequence[Callback]) -> None:
    try:
        # Runs share the models that owners train.
        models = cell.path.parent / ".local-models"
        nodes = cell.nodes or how.nodes
        folder = _folder(cell, how.plugins)
        run_one(folder, "local", nodes, how.data_dir, console, label, models, listeners=listeners)
    except Exception as error:
        details = "".join(traceback.format_exception(error))
        write_atomically(cell.path / _FAILURE, f"{_reason(error)}\n\n{details}".encode())
        console.print(f"failed: {_reason(error)}", style="red", markup=False)
    else:
        _tidy(cell, how)
    finally:
        # A node caches the clients of every experiment of its process, but each is run once here.
        forget_cohorts()


def _folder(cell: Cell, plugins: Sequence[str]) -> RunFolder:
    """Return the cell's run folder, created if missing; experiment.toml is written last."""
    assert cell.experiment is not None
    if not (cell.path / "experiment.toml").exists():
        about = {**environment(), "plugins": list(plugins)}
        write_atomically(cell.path / "environment.json", (json.dumps(about, indent=2) + "\n").encode())
        write_atomically(cell.path / "experiment.toml", cell.experiment.as_toml().encode())
    return RunFolder.open(cell.path)


def _tidy(cell: Cell, how: Execution) -> None:
    """Remove files that only a resumed run needs; they can be a thousand times as large as the results."""
    folder = RunFolder(cell.path)
    shutil.rmtree(cell.path / "nodes", ignore_errors=True)
    (cell.path / _FAILURE).unlink(missing_ok=True)
    if not how.keep_models:
        folder.models.unlink(missing_ok=True)
    # Written last: after a kill, the next command tidies up again.
    folder.checkpoint.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    """Return the most informative line of an error: the last one of a node's traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Run folder: ")]
    if not lines:
        return type(error).__name__
    return lines[-1] if any("Traceback" in line for line in lines) else lines[0]


@contextmanager
def _lock(cell: Cell) -> Iterator[bool]:
    """Try to lock a cell for the block; yield whether it succeeded."""
    folder = cell.path.parent / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / cell.path.name, wait=0))
        except TimeoutError:
            yield False
            return
        yield True
