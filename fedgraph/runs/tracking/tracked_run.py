"""Tracking of a run: its parameters, each line of ``metrics.jsonl``, and its results."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tracker import PASSWORD, Tracker, Values, describe, make_trackers

log = logging.getLogger("fedgraph")

_FILES = ("experiment.toml", "environment.json", "summary.json", "graph.json", "learned-graph.json", "metrics.jsonl")
_MOST_BYTES = 16_000_000
_SECRET = re.compile(
    r"(^|[-_])(token|password|passphrase|passwd|secret|credentials?|(api|private|access)[-_]?key)$", re.I
)
_COSTS = ("seconds", "bytes_down", "bytes_up")


@contextmanager
def tracked(experiment: Experiment, folder: RunFolder) -> Iterator[None]:
    """Track the run within a ``with`` block.

    A resumed run logs the rounds after its last checkpoint again. A tracker that fails is dropped with a warning. At
    the end of the block trackers receive the results, or the status ``failed``.

    Raises
    ------
    ExperimentError
        When a tracker cannot be started, for example because its package is not installed.
    """
    trackers = make_trackers(experiment, folder)
    epochs: Counter[str] = Counter()

    def each(job: Callable[[Tracker], None]) -> None:
        for name, tracker in list(trackers.items()):
            try:
                job(tracker)
            except Exception as error:
                del trackers[name]
                log.warning("tracker %s failed, the run goes on without it: %s", name, describe(error))

    def log_line(line: Mapping[str, Any]) -> None:
        values, step = _numbers_of(line, epochs)
        if values:
            each(lambda tracker: tracker.log_metrics(values, step))

    tables = experiment.as_dict()
    each(lambda tracker: tracker.log_params(dict(parameters(tables))))
    folder.on_line = log_line if trackers else None
    try:
        yield
    except BaseException:
        each(lambda tracker: tracker.finalize("failed"))
        raise
    finally:
        folder.on_line = None
    if trackers:
        summary = folder.summary()
        each(lambda tracker: tracker.log_metrics(results(summary), int(summary["rounds"])))
        # environment.json has the command line, which may contain a secret too.
        has_secrets = any(_is_secret(*leaf) for leaf in _leaves(tables))
        for path in (folder.path / name for name in (_FILES[2:] if has_secrets else _FILES)):
            if path.exists() and path.stat().st_size <= _MOST_BYTES:
                each(lambda tracker, path=path: tracker.save(path))  # type: ignore[misc]
    each(lambda tracker: tracker.finalize("finished"))


def parameters(tables: Mapping[str, Any]) -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield the keys of a resolved experiment as ``table.key`` with their values; lists become JSON.

    The tables ``[output]`` and ``[clients]`` are left out, and so are secrets: keys with names such as ``api-token``,
    and addresses with a password.
    """
    for name, value in _leaves({name: table for name, table in tables.items() if name not in ("output", "clients")}):
        if not _is_secret(name, value):
            yield name, value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def _is_secret(name: str, value: Any) -> bool:
    return any(map(_SECRET.search, name.split(".")[1:])) or bool(isinstance(value, str) and PASSWORD.search(value))


def _leaves(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            value = {str(position): entry for position, entry in enumerate(value)}
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def results(summary: Mapping[str, Any]) -> Values:
    """Return the numbers of ``summary.json``: means and deviations of the final models, and the cost of the run."""
    final = {
        f"final/{split}/{metric}/{statistic}": values[statistic]
        for split, metrics in summary["metrics"].items()
        for metric, values in metrics.items()
        for statistic in ("mean", "std")
    }
    return _numbers(final | {f"total/{_dashed(name)}": summary[name] for name in (*_COSTS, "exchanges")})


def _numbers_of(line: Mapping[str, Any], epochs: Counter[str]) -> tuple[Values, int]:
    """Return the numbers of a line of ``metrics.jsonl`` and their step.

    ``epochs`` continues to count when a phase is repeated, for example with another learning rate. The evaluation of
    restored models has no numbers here: they are among the results.
    """
    phase, step = line["phase"], int(line["round"])
    if line.get("restored"):
        return {}, step
    if phase not in ("training", "evaluation"):
        epochs[phase] += 1
        values = {f"{phase}/{_dashed(key)}": value for key, value in line.items() if key != "round"}
        return _numbers(values), step if phase == "fairness" else epochs[phase]
    split = line["split"] if phase == "evaluation" else "training"
    numbers: dict[str, Any] = {f"{split}/absent": len(line["absent"])}
    for metric, statistics in line["metrics"].items():
        numbers |= {f"{split}/{metric}/{statistic}": value for statistic, value in statistics.items()}
        numbers[f"{split}/{metric}"] = _numbers(line["per_client"][metric])
    return _numbers(numbers | {f"{split}/{_dashed(name)}": line[name] for name in _COSTS if name in line}), step


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keep finite numbers and mappings that are not empty."""
    return {
        name: value
        for name, value in values.items()
        if (isinstance(value, Mapping) and value) or (isinstance(value, int | float) and math.isfinite(value))
    }
