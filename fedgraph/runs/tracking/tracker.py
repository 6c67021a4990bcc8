"""What a tracker is: four functions; and the trackers that an experiment may name."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object

Values = Mapping[str, float | Mapping[str, float]]
"""Numbers by name, such as ``test/accuracy/mean``; ``test/accuracy`` has one for each client, by its name."""

Status = Literal["finished", "failed"]

_KEY = "[output] track"
_BUILT_IN = {
    "tensorboard": ("tensorboard:TensorBoardTracker", "tensorboard"),
    "mlflow": ("mlflow:MLflowTracker", "mlflow-skinny"),
    "wandb": ("wandb:WandbTracker", "wandb"),
}
"""Class in this package and what to install, by the name of the module to import, which is also that of our extra."""

PASSWORD = re.compile(r"://[^/\s]*@")
"""The beginning of an address with a name and a password."""

MOST_CLIENTS = 50
"""Clients up to which each has metrics of its own; of more there would be too many to look at."""


@runtime_checkable
class Tracker(Protocol):
    """A place where a run's parameters and metrics are kept; made by ``Class(folder, experiment)``.

    A run that is resumed makes it anew with the same :class:`~fedgraph.runs.RunFolder`. An error that one of its
    functions raises ends the tracker, not the run.
    """

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Keep the parameters of the run, by ``table.key``; a resumed run gives them again."""

    def log_metrics(self, values: Values, step: int) -> None:
        """Keep numbers of a step: a round, or an epoch of a method without rounds. :func:`flat` makes them plain."""

    def save(self, path: Path) -> None:
        """Keep a copy of a file of the run folder."""

    def finalize(self, status: Status) -> None:
        """End the record; nothing is called afterwards."""


def make_trackers(experiment: Experiment, folder: RunFolder) -> dict[str, Tracker]:
    """Return the trackers that an experiment names, by name.

    Raises
    ------
    ExperimentError
        When a package is not installed (with what to install), a dotted path leads nowhere or to something that is no
        tracker, or a tracker cannot be made.
    """
    classes = {name: _class_of(name) for name in experiment.output.track}
    return {name: _make(name, kind, folder, experiment) for name, kind in classes.items()}


def _class_of(name: str) -> type:
    if name not in _BUILT_IN:
        return load_object(name, _KEY)
    path, package = _BUILT_IN[name]
    # A folder of that name, such as W&B leaves, looks like a package without a file of its own.
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ExperimentError(
            f'{_KEY} = ["{name}"] needs a package that is not installed: pip install {package} (or fedgraph with its '
            f"extra [{name}])"
        )
    return load_object(f"fedgraph.runs.tracking.{path}", _KEY)


def _make(name: str, kind: type, folder: RunFolder, experiment: Experiment) -> Tracker:
    try:
        tracker = kind(folder, experiment)
    except Exception as error:
        raise ExperimentError(f"{_KEY}: '{name}' cannot be started: {describe(error)}") from None
    if not isinstance(tracker, Tracker):
        wanted = ("log_params", "log_metrics", "save", "finalize")
        missing = [function for function in wanted if not hasattr(tracker, function)]
        raise ExperimentError(f"{_KEY}: '{name}' is no tracker: it has no function {', '.join(missing)}")
    return tracker


def describe(error: Exception) -> str:
    """Describe an error of a tracker, without the password that the address of a server may have."""
    return PASSWORD.sub("://", f"{type(error).__name__}: {error}")


def flat(values: Values, most: int = MOST_CLIENTS) -> dict[str, float]:
    """Return plain numbers: those of a client under ``<name>/<client>``, for at most so many clients, else none.

    In the name of a client, characters that trackers refuse are replaced by ``_``; a number follows where two names
    would then be the same.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if not isinstance(value, Mapping):
            found[name] = value
        elif len(value) <= most:
            taken = {"mean", "std", "best5", "worst5"}
            for position, (client, number) in enumerate(value.items()):
                safe = re.sub(r"[^A-Za-z0-9_. -]|^[. ]+|[. ]+$", "_", client) or "_"
                safe = f"{safe}-{position}" if safe in taken else safe
                taken.add(safe)
                found[f"{name}/{safe}"] = number
    return found
