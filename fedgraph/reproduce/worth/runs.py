"""The runs of a comparison: every row with every seed, with a learning rate tuned on validation data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console

from fedgraph.algorithms.phases import has_phases
from fedgraph.experiment import (
    Experiment,
    Overrides,
    apply_overrides,
    find_experiment,
    load_experiment,
    plugin_folders,
)
from fedgraph.graph import GraphTable
from fedgraph.reproduce.cells import Cell, CellMaker, content_digest, digest
from fedgraph.reproduce.choosing import Choice, plan_cells, plan_choices
from fedgraph.reproduce.execution import Execution, failure, missing_data, run_cells, usual_metric
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.results import Results, read_outcomes
from fedgraph.reproduce.spreads import Spread
from fedgraph.reproduce.sweeps.command import check_ends, quantity_of
from fedgraph.reproduce.table import PublishedTable
from fedgraph.reproduce.worth.verdict import ALONE, AVERAGE, TUNED, Effect, Worth
from fedgraph.starting.given import in_words, named_by_key
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.files import write_atomically
from fedgraph.support.plugins import add_plugin_paths

RATES = (0.3, 1.0, 3.0)
"""Default factors of the experiment's learning rate to try."""


@named_by_key()
def worth(
    experiment: str | Path | Mapping[str, Any],
    *,
    set: Overrides = (),
    seeds: Sequence[int] = (0, 1, 2),
    metric: str | None = None,
    rates: Sequence[float] = RATES,
    nodes: int = 2,
    jobs: int = 1,
    data_dir: str | Path | None = None,
    out: str | Path = "worth",
    progress: bool = True,
) -> Worth:
    """Find out whether a client graph, and the method that uses it, improve on simpler methods.

    Compares training alone, FedAvg, FedAvg with fine-tuning, the method, and the method over a permuted and over a
    complete graph. Each is run with every seed, with its best learning rate for the first seed. Finished runs are not
    repeated.

    Parameters
    ----------
    experiment : str, Path or mapping
        As for :func:`fedgraph.run`, as are ``set``, ``nodes`` and ``data_dir``.
    seeds : sequence of int
        At least two seeds, of training, of the partition of the data, and of the permutation.
    metric : str, optional
        ``validation/<metric>``; by default the experiment's monitored metric, else accuracy or mean absolute error.
    rates : sequence of float
        Factors of the experiment's learning rate to try.
    jobs : int
        Number of processes.
    out : str or Path
        Folder for the runs and results.
    progress : bool
        Whether to show the progress of runs.

    Returns
    -------
    Worth
        The table, the verdict, and the settings of the best row.

    Raises
    ------
    ExperimentError
        For a method of phases, or one that does not fit the data, before anything is run.
    DataError
        When the data are missing, or have no validation split.
    RunError
        When a run fails.
    """
    if len({*seeds}) < 2:
        raise ExperimentError("at least two seeds are needed: differences are judged by their spread over seeds")
    if not rates or any(rate <= 0 for rate in rates):
        raise ExperimentError("rates must be positive factors of the learning rate, at least one")
    experiment, keys, _ = in_words(experiment, set, {}, out)
    name, file = _file(experiment, Path(out))
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in keys.items())
    plugins = tuple(plugin_folders(file))
    add_plugin_paths(plugins)
    data = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
    base = load_experiment(file, list(overrides))
    method = ChosenMethod(base)
    if has_phases(method.strategy_class):
        raise ExperimentError(
            f"method '{base.method.name}' trains in phases, not in rounds with a model per client: compare it with "
            "others by `fedgraph run --compare`"
        )
    problem = missing_data(base, data)
    if problem is not None:
        raise DataError(problem)
    quantity = quantity_of(metric or base.evaluation.monitor or usual_metric(base, data, "accuracy"))
    check_ends(base)
    table = _table(base, method, file, str(quantity), tuple(seeds), tuple(rates))
    target = (Path(out) / f"{base.experiment.name}-{digest(base)}{content_digest(base)}").resolve()
    maker = CellMaker(table, table.profiles["small"], overrides, (Path(out) / "cells").resolve(), file.parent)
    choices = plan_choices(maker, seeds)
    maker.cells_dir.mkdir(parents=True, exist_ok=True)
    how, console = Execution(nodes, data, plugins=plugins), Console(quiet=not progress)
    shared = ["--seeds", ",".join(map(str, seeds)), "--rates", ",".join(map(str, rates)), "--metric", str(quantity)]
    shared += ["--nodes", str(nodes), "--data-dir", str(data), "--out", str(out)]
    shared += [part for override in overrides for part in ("--set", override)]
    with _helpers(jobs - 1, [str(file), *shared]):
        run_cells([cell for choice in choices for cell in choice.missing], how, console)
        cells = plan_cells(maker, seeds, choices)
        run_cells(cells, how, console)
    for cell in cells:
        reason = failure(cell)
        if reason is not None:
            raise RunError(f"'{cell.row}', seed {cell.seed}: {reason}")
    results = Results(
        "worth", table, "small", table.profiles["small"], tuple(seeds), overrides, read_outcomes(cells, data)
    )
    comparison = replace(
        _found(results, choices, base, quantity, name, target), seconds=_seconds([*cells, *_tried(choices)], data)
    )
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / "worth.md", comparison.markdown().encode())
    write_atomically(target / "worth.csv", comparison.frame.to_csv().encode())
    comparison.write_page({cell.row: cell.path for cell in cells if cell.seed == min(seeds)})
    return comparison


def _tried(choices: Sequence[Choice]) -> list[Cell]:
    return [cell for choice in choices for trial in choice.trials for cell in trial.cells]


def _seconds(cells: Sequence[Cell], data: Path) -> float:
    """Return the total seconds of all runs, each counted once."""
    each = {cell.path: cell for cell in cells}.values()
    return sum(
        outcome.summary["seconds"] for outcome in read_outcomes(tuple(each), data) if outcome.summary is not None
    )


def _file(experiment: str | Path | Mapping[str, Any], out: Path) -> tuple[str, Path]:
    """Return name and file of an experiment; one that is given as tables is written to ``out``."""
    if not isinstance(experiment, Mapping):
        return str(experiment), find_experiment(experiment)
    tables = apply_overrides(experiment, ())
    path = out / f"{tables.get('experiment', {}).get('name', 'experiment')}.toml"
    out.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tomli_w.dumps(tables).encode())
    return str(path), path.resolve()


def _table(
    base: Experiment, method: ChosenMethod, file: Path, metric: str, seeds: tuple[int, ...], rates: tuple[float, ...]
) -> PublishedTable:
    """Return the rows as a table for ``fedgraph reproduce``."""
    strategy, name = base.experiment.strategy or base.method.name, base.method.name
    without = ['graph.source="none"']
    rows: list[dict[str, Any]] = [
        {"label": ALONE, "method": "local", "set": without},
        {"label": AVERAGE, "method": "fedavg", "set": without},
        {"label": TUNED, "method": "fedavg-ft", "set": without},
        {"label": name, "method": strategy},
    ]
    if method.uses_graph and base.graph.source not in ("none", "complete"):
        if GraphTable.fits("permute-seed", base.graph.source):
            permuted = {"method": strategy, "set": ["graph.permute-seed={seed}"]}
            rows.append({"label": f"{name} over a permuted graph", **permuted})
        rows.append({"label": f"{name} over a complete graph", "method": strategy, "set": ['graph.source="complete"']})
    if len(rates) > 1:
        tried = [round(base.train.learning_rate * rate, 12) for rate in rates]
        rows = [{**row, "choose": {"train.learning-rate": tried}} for row in rows]
    every = ['evaluation.splits=["validation"]', "evaluation.yardsticks=false"]
    targets = {name: value for name, value in base.evaluation.targets.items() if name.startswith("validation/")}
    if targets != base.evaluation.targets:
        # Of data that are not evaluated.
        every.append(f"evaluation.targets={{{', '.join(f'{json.dumps(name)} = {targets[name]}' for name in targets)}}}")
    if hasattr(base.data, "partition_seed"):
        every.append("data.partition-seed={seed}")
    metrics = [{"title": metric, "value": metric}]
    return PublishedTable.model_validate({
        "table": {"title": "worth", "seeds": seeds, "metrics": metrics, "choose-by": metric, "set": every,
                  "figure": "none"},
        "columns": [{"key": "here", "title": base.experiment.name, "experiment": str(file)}],
        "rows": rows,
        "profiles": {"small": {}},
    })  # fmt: skip


def _found(
    results: Results, choices: Sequence[Choice], base: Experiment, quantity: Quantity, name: str, folder: Path
) -> Worth:
    (column,) = results.columns
    (metric,) = results.table.metrics_of(column)
    spreads: dict[str, Spread] = {}
    for row in results.table.rows:
        spread = results.ours(row, column, metric)
        lacking = [seed for seed in results.seeds if spread is None or seed not in spread.values]
        if spread is None or lacking:
            # Without them, a row that diverges with some seeds would be judged by the others.
            raise RunError(
                f"'{row.label}' has no value of {metric.value} with seed {', '.join(map(str, lacking))}: are there "
                "validation examples ([data] validation-share, shares), and does training converge (--rates)? See its "
                f"runs in {folder.parent}"
            )
        spreads[row.label] = spread
    method, is_error = base.method.name, quantity.better == "lower"
    effects = {
        label: Effect.between(spreads[method], spread, is_error, quantity.is_share)
        for label, spread in spreads.items()
        if label != method
    }
    chosen = {choice.row.label: [] if choice.best is None else choice.best.overrides for choice in choices}
    settings = {
        row.label: [
            *([f'experiment.method="{row.method}"'] if row.method != base.method.name and ":" not in str(row.method)
              else []),
            *(each for each in row.set if "{seed}" not in each and each not in results.table.table.set),
            *chosen.get(row.label, []),
        ]
        for row in results.table.rows
    }  # fmt: skip
    return Worth(method, str(quantity), spreads, effects, settings, name, folder, overrides=results.overrides)


@contextmanager
def _helpers(count: int, arguments: Sequence[str]) -> Iterator[None]:
    """Start further processes that share the runs; each locks the run that it works on."""
    command = [sys.executable, "-m", "fedgraph", "worth", *arguments, "--quiet"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(command, **quiet) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()
