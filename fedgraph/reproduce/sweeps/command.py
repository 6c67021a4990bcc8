"""The command ``fedgraph sweep``: run the missing trials, show all, and evaluate the chosen one on test data."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from fedgraph.experiment import Experiment, find_experiment, plugin_folders
from fedgraph.reproduce.cells import digest, text_digest
from fedgraph.reproduce.execution import Execution, missing_data
from fedgraph.reproduce.quantity import Quantity, validation_quantity
from fedgraph.runs import RunFolder
from fedgraph.strategies.engine.chosen import has_phases
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.files import locked, write_atomically
from fedgraph.support.plugins import add_plugin_paths
from fedgraph.support.terminal import GOES_ON, ended_by_hand, messages_for_people, seeds_given

if TYPE_CHECKING:
    from fedgraph.reproduce.sweeps.search import Search


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
    """Run the command; see :mod:`fedgraph.commands.sweep` for its options."""
    console, progress = Console(), Console(quiet=quiet)
    with messages_for_people():
        if importlib.util.find_spec("optuna") is None:
            raise ExperimentError(
                "fedgraph sweep needs Optuna: pip install optuna (or fedgraph with its extra [sweep])"
            )
        from fedgraph.reproduce.sweeps.axes import axis, first_of
        from fedgraph.reproduce.sweeps.search import Search, experiment_with

        file = find_experiment(experiment)
        plugins = tuple(plugin_folders(experiment))
        add_plugin_paths(plugins)
        axes = dict(map(axis, over))
        if not axes or len(axes) < len(over):
            raise ExperimentError("--over must name each key once: --over sfl.alpha=0,0.3,1")
        base = experiment_with(file, overrides, first_of(axes))
        monitored = base.evaluation.monitor or ""
        usual = monitored if monitored.startswith("validation/") else "validation/loss"
        quantity, chosen_seeds = quantity_of(metric or usual), seeds_given(seeds) or (base.experiment.seed,)
        check(base, quantity, prune)
        data = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
        missing = missing_data(base, data)
        if missing is not None:
            raise DataError(missing)
        about = (digest(base), str(axes), str(quantity), str(chosen_seeds))
        folder = (out / f"{base.experiment.name}-{text_digest(*about)}").resolve()
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExperimentError(f"--out: cannot write to {out}: {error}") from None
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder / ".lock", wait=0))
            except TimeoutError:
                raise RunError(f"another process is working on {folder}") from None
            rounds = base.experiment.rounds
            search = Search(file, tuple(overrides), axes, chosen_seeds, quantity, folder, rounds, prune)
            how = Execution(nodes, data, keep_models, plugins)
            with ended_by_hand(console, GOES_ON):
                search.run(trials, how, progress, on_end=lambda: _write(search))
            _conclude(console, search)


def quantity_of(metric: str) -> Quantity:
    """Parse the criterion of trials. Raises ExperimentError if it is not on validation data."""
    try:
        return validation_quantity(metric)
    except ValueError as error:
        raise ExperimentError(f"--metric {error}") from None


def check(base: Experiment, quantity: Quantity, prune: bool) -> None:
    """Raise ExperimentError for an experiment that cannot be swept."""
    if "validation" not in base.evaluation.splits:
        splits = ", ".join(f'"{split}"' for split in ("validation", *base.evaluation.splits))
        raise ExperimentError(
            "settings are chosen on validation data, which this experiment does not evaluate: set [evaluation] splits "
            f"= [{splits}]"
        )
    if prune and has_phases(base.method.strategy_class):
        raise ExperimentError(f"--prune needs a method with rounds, and '{base.method.name}' has none")
    if prune and (quantity.group or not quantity.has_course):
        raise ExperimentError(f"--prune needs a metric with a value after every evaluation, unlike {quantity}")


def _write(search: Search) -> None:
    from fedgraph.reproduce.sweeps.report import trials

    write_atomically(search.folder / "sweep.csv", trials(search).to_csv(index=False).encode())


def _conclude(console: Console, search: Search) -> None:
    """Show the trials, write the files, and report the chosen settings on test data."""
    from fedgraph.reproduce.sweeps.axes import in_words
    from fedgraph.reproduce.sweeps.report import draw, mean_in_words, trials_table
    from fedgraph.reproduce.sweeps.search import experiment_with

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True, highlight=False)

    _write(search)
    console.print(trials_table(search))
    best = next((each for each in search.tried() if "values" in each.user_attrs), None)
    if best is None:
        console.print("No trial has finished: nothing is chosen.", style="red")
        raise typer.Exit(1)
    folder, seeds = search.folder, ", ".join(map(str, search.seeds))
    words = "; ".join(in_words(key, kind, best.params[key]) for key, kind in search.axes.items())
    about = f"Chosen by {search.quantity}, seed{'s' if len(search.seeds) > 1 else ''} {seeds}: {words}"
    say(about)
    chosen = experiment_with(search.file, search.overrides, best.params)
    if "test" in chosen.evaluation.splits:
        quantity = search.quantity._replace(split="test")
        summaries = [RunFolder(folder / "runs" / name).summary() for name in best.user_attrs["runs"]]
        values = [value for summary in summaries if (value := quantity.value(summary)) is not None]
        say(f"{quantity} of the chosen settings: {mean_in_words(values)}")
    else:
        say('Not evaluated on test data: "test" is not among [evaluation] splits.')
    write_atomically(folder / "best.toml", f"# {about}\n\n{chosen.as_toml()}".encode())
    draw(search, folder / "sweep.png")
    for name in ("sweep.csv", "sweep.png", "best.toml"):
        say(f"{folder / name}")
    say(f"To run the chosen settings: fedgraph run {shlex.quote(str(folder / 'best.toml'))}")
