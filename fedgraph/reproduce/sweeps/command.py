"""The command ``fedgraph sweep``: run the trials that are missing, show all, and report the chosen one on test data."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from fedgraph.experiment import Experiment, find_experiment, plugin_folders
from fedgraph.reproduce.cells import digest, text_digest
from fedgraph.reproduce.execution import Execution, missing_data
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.sweeps.axes import Axis
from fedgraph.runs import RunFolder
from fedgraph.strategies.engine.chosen import has_phases
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.files import locked, write_atomically
from fedgraph.support.plugins import add_plugin_paths
from fedgraph.support.terminal import GOES_ON, ended_by_hand, messages_for_people

if TYPE_CHECKING:
    from fedgraph.reproduce.sweeps.search import Search

_DEFAULT_METRIC = "validation/loss"


def sweep(
    experiment: str,
    *,
    over: Sequence[str],
    trials: int | None,
    seeds: str | None,
    metric: str | None,
    prune: bool,
    overrides: Sequence[str],
    nodes: int,
    out: Path,
    data_dir: Path | None,
    keep_models: bool,
    quiet: bool,
) -> None:
    """Carry out the command; the arguments are its options, which :mod:`fedgraph.commands.sweep` explains."""
    console, progress = Console(), Console(quiet=quiet)
    with messages_for_people():
        if importlib.util.find_spec("optuna") is None:
            raise ExperimentError(
                "fedgraph sweep needs Optuna: pip install optuna (or fedgraph with its extra [sweep])"
            )
        from fedgraph.reproduce.sweeps.search import Search, SweepPlan

        file = find_experiment(experiment)
        plugins = tuple(plugin_folders(experiment))
        add_plugin_paths(plugins)
        axes = tuple(map(Axis.of, over))
        if not axes or len({axis.key for axis in axes}) < len(axes):
            raise ExperimentError("--over names each key to vary once: --over sfl.alpha=0,0.3,1")
        plan = SweepPlan(file, tuple(overrides), axes, _seeds(seeds), Quantity.of(_DEFAULT_METRIC))
        base = plan.example()
        quantity = quantity_of(metric, base)
        check(base, quantity, prune)
        plan = replace(plan, seeds=plan.seeds or (base.experiment.seed,), quantity=quantity)
        data = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
        missing = missing_data(base, data)
        if missing is not None:
            raise DataError(missing)
        about = (digest(base), *map(str, axes), str(quantity), str(plan.seeds))
        folder = (out / f"{base.experiment.name}-{text_digest(*about)}").resolve()
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExperimentError(f"--out: cannot write to {out}: {error}") from None
        with ExitStack() as held:
            try:
                held.enter_context(locked(folder / ".lock", wait=0))
            except TimeoutError:
                raise RunError(f"another process is working on {folder}") from None
            search = Search(plan, folder, prune)
            how = Execution(nodes, data, keep_models, plugins)
            with ended_by_hand(console, GOES_ON):
                search.run(trials, how, progress, on_end=lambda: _write(search, folder))
            _conclude(console, search, folder)


def quantity_of(metric: str | None, base: Experiment) -> Quantity:
    """Return what trials are compared by: ``metric``, else the experiment's monitored metric, else the validation loss.

    Raises
    ------
    ExperimentError
        For a value that is not of validation data, or has no better and worse.
    """
    monitor = base.evaluation.monitor or ""
    text = metric or (monitor if monitor.startswith("validation/") else _DEFAULT_METRIC)
    try:
        quantity = Quantity.of(text)
    except ValueError as error:
        raise ExperimentError(f"--metric {error}") from None
    if quantity.split != "validation":
        raise ExperimentError(
            f"--metric {text}: settings are chosen on validation data alone, or the test data would no longer tell how "
            f"good they are; write --metric validation/{quantity.metric}. The chosen ones are measured on test data at "
            "the end"
        )
    if quantity.better is None:
        raise ExperimentError(f"--metric {text} has no better and no worse value")
    return quantity


def check(base: Experiment, quantity: Quantity, prune: bool) -> None:
    """Raise ExperimentError for an experiment that cannot be swept."""
    if "validation" not in base.evaluation.splits:
        splits = ", ".join(f'"{split}"' for split in ("validation", *base.evaluation.splits))
        raise ExperimentError(
            "settings are chosen on validation data, which this experiment does not measure: set [evaluation] splits = "
            f"[{splits}]"
        )
    if prune and has_phases(base.method.strategy_class):
        raise ExperimentError(f"--prune stops runs between rounds, and method '{base.method.name}' has none")
    if prune and (quantity.group or not quantity.has_course):
        raise ExperimentError(f"--prune needs a value after every evaluation, which {quantity} is not")


def _seeds(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ExperimentError(f"--seeds takes whole numbers with commas between them; got '{text}'")
    return tuple(dict.fromkeys(map(int, parts)))


def _write(search: Search, folder: Path) -> None:
    from fedgraph.reproduce.sweeps.report import trials_csv

    plan = search.plan
    write_atomically(folder / "sweep.csv", trials_csv(search.tried(), plan.axes, plan.quantity).encode())


def _conclude(console: Console, search: Search, folder: Path) -> None:
    """Show the trials, write the files, and the score of the chosen settings on test data, which chose nothing."""
    from fedgraph.reproduce.sweeps.report import mean_in_words, picture, trials_table

    plan, tried = search.plan, search.tried()
    _write(search, folder)
    console.print(trials_table(tried, plan.axes, plan.quantity))
    best = next((each for each in tried if each.mean is not None), None)
    if best is None:
        console.print("No trial has come to its end, so that nothing is chosen.", style="red")
        raise typer.Exit(1)
    words = "; ".join(axis.in_words(value) for axis, (_, value) in zip(plan.axes, best.trial.settings, strict=True))
    seeds = ", ".join(map(str, plan.seeds))
    about = f"Chosen by {plan.quantity}, seed{'s' if len(plan.seeds) > 1 else ''} {seeds}: {words}"
    console.print(about, markup=False, soft_wrap=True, highlight=False)
    chosen = plan.experiment(best.trial.overrides)
    if "test" in chosen.evaluation.splits:
        quantity = plan.quantity._replace(split="test")
        found = [quantity.value(RunFolder(cell.path).summary()) for cell in best.trial.cells]
        values = [value for value in found if value is not None]
        console.print(f"{quantity} of the chosen settings: {mean_in_words(values)}", markup=False, highlight=False)
    else:
        console.print('Nothing was measured on test data: "test" is not among [evaluation] splits.', markup=False)
    write_atomically(folder / "best.toml", f"# {about}\n\n{chosen.as_toml()}".encode())
    picture(tried, plan.axes, plan.quantity).savefig(folder / "sweep.png")
    for name in ("sweep.csv", "sweep.png", "best.toml"):
        console.print(f"{folder / name}", markup=False, soft_wrap=True, highlight=False)
    console.print(
        f"Again, with what was chosen: fedgraph run {shlex.quote(str(folder / 'best.toml'))}",
        markup=False,
        soft_wrap=True,
    )
