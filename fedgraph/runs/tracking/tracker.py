"""What a tracker is, and what all trackers are given: parameters, lines of ``metrics.jsonl``, results and files."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import a_class, load_object

Params = Mapping[str, bool | int | float | str]
"""Parameters by ``table.key``."""
Values = Mapping[str, float | Mapping[str, float]]
"""Numbers by name, such as ``test/accuracy/mean``; ``test/accuracy`` has one for each client, by its name."""
Status = Literal["finished", "failed"]

MOST_CLIENTS = 50
"""Clients up to which each has metrics of its own; of more there would be too many to look at."""

log = logging.getLogger("fedgraph")

_KEY = "[output] track"
_BUILT_IN = {
    "tensorboard": ("TensorBoardTracker", "tensorboard"),
    "mlflow": ("MLflowTracker", "mlflow-skinny"),
    "wandb": ("WandbTracker", "wandb"),
}
"""Class and what to install, by the name of the package, of our module for it, and of our extra."""
_FILES = ("experiment.toml", "environment.json", "summary.json", "graph.json", "learned-graph.json", "metrics.jsonl")
_MOST_BYTES = 16_000_000
_COSTS = ("seconds", "bytes_down", "bytes_up")
_SECRET = re.compile(
    r"\.([^.]*[-_])?(token|password|passphrase|passwd|secret|credentials?|(api|private|access)[-_]?key)(\.|$)", re.I
)
_PASSWORD = re.compile(r"://[^/\s]*@")
"""The beginning of an address with a name and a password."""


@runtime_checkable
class Tracker(Protocol):
    """A place where a run's parameters and metrics are kept; made by ``Class(folder, experiment)``.

    A run that is resumed makes it anew with the same :class:`~fedgraph.runs.RunFolder`. An error that one of its
    functions raises ends the tracker, not the run.
    """

    def log_params(self, params: Params) -> None:
        """Keep the parameters of the run; a resumed run gives them again."""

    def log_metrics(self, values: Values, step: int) -> None:
        """Keep numbers of a step: a round, or an epoch of a method without rounds. :func:`flat` makes them plain."""

    def save(self, path: Path) -> None:
        """Keep a copy of a file of the run folder."""

    def finalize(self, status: Status) -> None:
        """End the record; nothing is called afterwards."""


def flat(values: Values, most: int = MOST_CLIENTS) -> dict[str, float]:
    """Return plain numbers: those of a client under ``<name>/<client>``, for at most so many clients, else none.

    In the name of a client, characters that trackers refuse are replaced by ``_``; a number follows where two names
    would then be the same.
    """
    found = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    for name, of_clients in values.items():
        if isinstance(of_clients, Mapping) and len(of_clients) <= most:
            for position, (client, number) in enumerate(of_clients.items()):
                key = f"{name}/{re.sub(r'[^A-Za-z0-9_. -]|^[. ]+|[. ]+$', '_', client) or '_'}"
                found[f"{key}-{position}" if key in found else key] = number
    return found


def run_id(folder: Path, new: Callable[[], str]) -> str:
    """Return the id by which a tracker knows a run: a new one, kept in the folder for when the run is resumed."""
    folder.mkdir(exist_ok=True)
    file = folder / "run-id"
    if not file.exists():
        file.write_text(new())
    return file.read_text()


@contextmanager
def tracked(experiment: Experiment, folder: RunFolder) -> Iterator[None]:
    """Track a run that takes place within the block.

    A resumed run logs the rounds after its last checkpoint again. A tracker that fails is dropped for the rest of the
    run, with a warning. At the end of the block trackers get the results, or learn that the run has failed.

    Raises
    ------
    ExperimentError
        When a tracker cannot be started, for example because its package is not installed.
    """
    trackers = make_trackers(experiment, folder)
    tables, epochs = experiment.as_dict(), Counter[str]()

    def tell(function: str, *given: Any) -> None:
        for name, tracker in list(trackers.items()):
            try:
                getattr(tracker, function)(*given)
            except Exception as error:
                del trackers[name]
                log.warning("tracker %s failed, the run goes on without it: %s", name, _described(error))

    def log_line(line: Mapping[str, Any]) -> None:
        values, step = _numbers_of(line, epochs)
        if values:
            tell("log_metrics", values, step)

    tell("log_params", parameters(tables))
    folder.on_line = log_line if trackers else None
    try:
        yield
    except BaseException:
        tell("finalize", "failed")
        raise
    finally:
        folder.on_line = None
    if trackers:
        summary = folder.summary()
        results = dict(_leaves(summary["metrics"], "final/", "/"))
        results |= {f"total/{_dashed(name)}": summary[name] for name in (*_COSTS, "exchanges")}
        tell("log_metrics", _numbers(results), int(summary["rounds"]))
        # The command line, in the environment, may have set a secret too.
        has_secrets = any(_is_secret(*leaf) for leaf in _leaves(tables))
        for path in (folder.path / name for name in (_FILES[2:] if has_secrets else _FILES)):
            if path.exists() and path.stat().st_size <= _MOST_BYTES:
                tell("save", path)
    tell("finalize", "finished")


def make_trackers(experiment: Experiment, folder: RunFolder) -> dict[str, Tracker]:
    """Return the trackers that an experiment names, by name.

    Raises
    ------
    ExperimentError
        When a package is not installed (with what to install), a dotted path leads nowhere or to something that is no
        tracker, or a tracker cannot be made.
    """
    classes = {name: _class_of(name) for name in experiment.output.track}
    found = {}
    for name, kind in classes.items():
        try:
            found[name] = kind(folder, experiment)
        except Exception as error:
            raise ExperimentError(f"{_KEY}: '{name}' cannot be started: {_described(error)}") from None
    return found


def _class_of(name: str) -> Callable[[RunFolder, Experiment], Tracker]:
    path = name
    if name in _BUILT_IN:
        kind, package = _BUILT_IN[name]
        # A folder of that name, such as W&B leaves, looks like a package without a file of its own.
        if getattr(importlib.util.find_spec(name), "origin", None) is None:
            raise ExperimentError(
                f'{_KEY} = ["{name}"] needs a package that is not installed: pip install {package} (or fedgraph with '
                f"its extra [{name}])"
            )
        path = f"fedgraph.runs.tracking.{name}:{kind}"
    demand = a_class("log_params", "log_metrics", "save", "finalize")
    found: Callable[[RunFolder, Experiment], Tracker] = load_object(path, _KEY, demand)
    return found


def _described(error: Exception) -> str:
    """Describe an error of a tracker, without the password that the address of a server may have."""
    return _PASSWORD.sub("://", f"{type(error).__name__}: {error}")


def parameters(tables: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the keys of a resolved experiment as ``table.key`` with their values; lists become JSON.

    Where results go and who takes part are left out, and so are secrets: keys with a name such as ``api-token``, and
    addresses with a password.
    """
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)
        for name, value in _leaves({name: tables[name] for name in tables if name not in ("output", "clients")})
        if not _is_secret(name, value)
    }


def _is_secret(name: str, value: Any) -> bool:
    return bool(_SECRET.search(name) or (isinstance(value, str) and _PASSWORD.search(value)))


def _leaves(table: Mapping[str, Any], before: str = "", between: str = ".") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            value = {str(position): entry for position, entry in enumerate(value)}
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{key}{between}", between)
        else:
            yield f"{before}{key}", value


def _numbers_of(line: Mapping[str, Any], epochs: Counter[str]) -> tuple[Values, int]:
    """Return the numbers of a line of ``metrics.jsonl``, and the step that they belong to.

    ``epochs`` counts on where a phase begins anew, for example with another learning rate. The second evaluation after
    the last round, of restored models, has no numbers here: they are among the results.
    """
    phase, step = line["phase"], int(line["round"])
    if line.get("restored"):
        return {}, step
    if phase not in ("training", "evaluation"):
        epochs[phase] += 1
        own = {f"{phase}/{_dashed(key)}": value for key, value in line.items() if key != "round"}
        return _numbers(own), step if phase == "fairness" else epochs[phase]
    split = line["split"] if phase == "evaluation" else "training"
    found = dict(_leaves(line["metrics"], f"{split}/", "/")) | {f"{split}/absent": len(line["absent"])}
    found |= {f"{split}/{metric}": _numbers(values) for metric, values in line["per_client"].items()}
    return _numbers(found | {f"{split}/{_dashed(name)}": line[name] for name in _COSTS if name in line}), step


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is no finite number, and mappings without any."""
    return {
        name: value
        for name, value in values.items()
        if (isinstance(value, Mapping) and value) or (isinstance(value, int | float) and math.isfinite(value))
    }
