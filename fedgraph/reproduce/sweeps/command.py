"""The command ``fedgraph sweep``: run the trials that are missing, show all, and report the chosen one on test data."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgraph.algorithms.phases import has_phases
from fedgraph.experiment import Experiment, find_experiment, plugin_folders
from fedgraph.reproduce.cells import content_digest, digest, text_digest
from fedgraph.reproduce.execution import Execution, missing_data, usual_metric
from fedgraph.reproduce.quantity import Quantity, validation_quantity
from fedgraph.runs import RunFolder
from fedgraph.support.catalogue import data_folder
from fedgraph.support.csv_text import as_csv
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
    """Carry out the command; the arguments are its options, which :mod:`fedgraph.commands.sweep` explains."""
    console, progress = Console(), Console(quiet=quiet)
    with messages_for_people():
        if importlib.util.find_spec("optuna") is None:
            raise ExperimentError(
                "fedgraph sweep needs Optuna: pip install optuna (or fedgraph with its extra [sweep])"
            )
        from fedgraph.reproduce.sweeps.axes import axis, check_values, first_of
        from fedgraph.reproduce.sweeps.search import Search, experiment_with

        file = find_experiment(experiment)
        plugins = tuple(plugin_folders(experiment))
        add_plugin_paths(plugins)
        axes = dict(map(axis, over))
        if not axes or len(axes) < len(over):
            raise ExperimentError("--over names each key to vary once: --over sfl.alpha=0,0.3,1")
        base = experiment_with(file, overrides, first_of(axes))
        check_values(axes, lambda params: experiment_with(file, overrides, params))
        chosen_seeds = seeds_given(seeds) or (base.experiment.seed,)
        data = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
        missing = missing_data(base, data)
        if missing is not None:
            raise DataError(missing)
        monitored = base.evaluation.monitor or ""
        usual = monitored if monitored.startswith("validation/") else None
        quantity = quantity_of(metric or usual or usual_metric(base, data, "loss"))
        check(base, quantity, prune)
        about = (digest(base) + content_digest(base), str(axes), str(quantity), str(chosen_seeds))
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
            rounds = base.experiment.rounds
            search = Search(file, tuple(overrides), axes, chosen_seeds, quantity, folder, rounds, prune)
            how = Execution(nodes, data, keep_models, plugins)
            with ended_by_hand(console, GOES_ON):
                search.run(trials, how, progress, on_end=lambda: _write(search))
            _conclude(console, search)


def quantity_of(metric: str) -> Quantity:
    """Return what trials are compared by. Raises ExperimentError where it is not of validation data."""
    try:
        return validation_quantity(metric)
    except ValueError as error:
        raise ExperimentError(f"--metric {error}") from None


def check(base: Experiment, quantity: Quantity, prune: bool) -> None:
    """Raise ExperimentError for an experiment that cannot be swept."""
    if "validation" not in base.evaluation.splits:
        splits = ", ".join(f'"{split}"' for split in ("validation", *base.evaluation.splits))
        raise ExperimentError(
            "settings are chosen on validation data, which this experiment does not measure: set [evaluation] splits = "
            f"[{splits}]"
        )
    check_ends(base)
    if prune and has_phases(base.method.strategy_class):
        raise ExperimentError(f"--prune stops runs between rounds, and method '{base.method.name}' has none")
    if prune and (quantity.group or not quantity.has_course):
        raise ExperimentError(f"--prune needs a value after every evaluation, which {quantity} is not")


def check_ends(base: Experiment) -> None:
    """Raise ExperimentError if test data decide when runs end, and with which models, as they are for measuring these.

    Settings would be chosen on validation data among runs that have seen test data.
    """
    evaluation = base.evaluation
    deciding = {"monitor": [evaluation.monitor or ""]}
    if evaluation.stop_at_targets is not None:
        deciding["stop-at-targets"] = list(evaluation.targets)
    for key, names in deciding.items():
        if of_test := [name for name in names if name.startswith("test/")]:
            raise ExperimentError(
                f"[evaluation] {key} ends runs by {of_test[0]}, but test data are for measuring what is chosen: use "
                f"validation/{of_test[0].partition('/')[2]}"
            )


def _rows(search: Search) -> list[dict[str, Any]]:
    """Return the trials, the best first, with the values of their seeds and the names of their runs."""
    rows = []
    for trial in search.tried():
        about, state = trial.user_attrs, trial.state.name.lower()
        values = about.get("values", [])
        rows.append({
            "trial": trial.number,
            "state": "failed" if state == "fail" else state,
            **{key: trial.params[key] for key in search.axes},
            str(search.quantity): fmean(values) if values else None,
            "deviation": stdev(values) if len(values) > 1 else None,
            "seeds": " ".join(map(str, search.seeds)),
            "values": " ".join(map(str, values)),
            "seconds": about.get("seconds", 0.0),
            "runs": " ".join(about.get("runs", ())),
            "problem": about.get("problem", "it was stopped" if state == "fail" else ""),
        })  # fmt: skip
    return rows


def _write(search: Search) -> None:
    rows = _rows(search)
    lines = [list(row.values()) for row in rows]
    write_atomically(search.folder / "sweep.csv", as_csv([*map(list, rows[:1]), *lines]).encode())


def _table(search: Search) -> Table:
    """Return the trials for the terminal, the best first."""
    rows = _rows(search)
    counts = Counter(str(row["state"]) for row in rows).most_common()
    table = Table(title=", ".join(f"{count} {state}" for state, count in counts), title_justify="left")
    for heading in ("trial", *search.axes, str(search.quantity), "seconds", "state"):
        table.add_column(escape(heading), justify="left" if heading == "state" else "right", overflow="fold")
    for row in rows:
        mean = _mean([*map(float, row["values"].split())])
        settings = [f"{row[key]:.4g}" if isinstance(row[key], float) else str(row[key]) for key in search.axes]
        state = ": ".join(filter(None, (row["state"], row["problem"])))
        table.add_row(*map(escape, (str(row["trial"]), *settings, mean, f"{row['seconds']:.1f}", state)))
    return table


def _mean(values: Sequence[float]) -> str:
    """Format the mean over seeds, with the deviation where there are several."""
    deviation = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{deviation}" if values else ""


def _conclude(console: Console, search: Search) -> None:
    """Show the trials, write the files, and evaluate the chosen settings on test data, which was not used before."""
    from fedgraph.reproduce.sweeps.search import experiment_with

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True, highlight=False)

    _write(search)
    console.print(_table(search))
    best, folder = search.best(), search.folder
    if best is None:
        console.print("No trial is complete, so nothing is chosen.", style="red")
        raise typer.Exit(1)
    about, chosen = search.in_words(best), experiment_with(search.file, search.overrides, best.params)
    say(about)
    if "test" in chosen.evaluation.splits:
        quantity = search.quantity._replace(split="test")
        summaries = [RunFolder(folder / "runs" / name).summary() for name in best.user_attrs["runs"]]
        found = [value for summary in summaries if (value := quantity.value(summary)) is not None]
        lacking = len(summaries) - len(found)
        some = f" ({lacking} of {len(summaries)} seeds have no finite value)" if lacking else ""
        say(f"{quantity} of the chosen settings: {_mean(found) or 'none'}{some}")
    else:
        say('Nothing was measured on test data: "test" is not among [evaluation] splits.')
    write_atomically(folder / "best.toml", f"# {about}\n\n{chosen.as_toml()}".encode())
    search.draw(folder / "sweep.png")
    for name in ("sweep.csv", "sweep.png", "best.toml"):
        say(f"{folder / name}")
    say(f"Run it again with: fedgraph run {shlex.quote(str(folder / 'best.toml'))}")
