"""The protocol of trackers, and the trackers that an experiment may name."""

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
"""Numbers by name, such as ``test/accuracy/mean``; ``test/accuracy`` has numbers by client."""

Status = Literal["finished", "failed"]

_KEY = "[output] track"
_BUILT_IN = {
    "tensorboard": ("tensorboard:TensorBoardTracker", "tensorboard"),
    "mlflow": ("mlflow:MLflowTracker", "mlflow-skinny"),
    "wandb": ("wandb:WandbTracker", "wandb"),
}
"""Class in this package and distribution to install, by module, which is also the name of the extra."""

PASSWORD = re.compile(r"://[^/\s]*@")
"""Credentials in an address."""

MOST_CLIENTS = 50
"""Maximum number of clients whose metrics are logged one by one."""


@runtime_checkable
class Tracker(Protocol):
    """Protocol of trackers, created by ``Class(folder, experiment)``.

    A resumed run creates it again with the same :class:`~fedgraph.runs.RunFolder`. An error in one of its methods ends
    the tracker, not the run.
    """

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Log the parameters of the run, by ``table.key``; called again when the run is resumed."""

    def log_metrics(self, values: Values, step: int) -> None:
        """Log the numbers of a step: a round, or an epoch of a method without rounds. See :func:`flat`."""

    def save(self, path: Path) -> None:
        """Store a copy of a file of the run folder."""

    def finalize(self, status: Status) -> None:
        """End the record; no method is called afterwards."""


def make_trackers(experiment: Experiment, folder: RunFolder) -> dict[str, Tracker]:
    """Return the trackers that an experiment names, by name.

    Raises
    ------
    ExperimentError
        When a package is not installed, a dotted path cannot be imported or is not a tracker, or a tracker cannot be
        created.
    """
    classes = {name: _class_of(name) for name in experiment.output.track}
    return {name: _make(name, kind, folder, experiment) for name, kind in classes.items()}


def _class_of(name: str) -> type:
    if name not in _BUILT_IN:
        return load_object(name, _KEY)
    path, package = _BUILT_IN[name]
    # A folder of that name, such as W&B's, looks like a namespace package.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
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
        methods = ("log_params", "log_metrics", "save", "finalize")
        missing = [method for method in methods if not hasattr(tracker, method)]
        raise ExperimentError(f"{_KEY}: '{name}' is not a tracker: it lacks {', '.join(missing)}")
    return tracker


def describe(error: Exception) -> str:
    """Describe an error of a tracker, without the credentials of addresses."""
    return PASSWORD.sub("://", f"{type(error).__name__}: {error}")


def flat(values: Values, most: int = MOST_CLIENTS) -> dict[str, float]:
    """Flatten numbers of clients to ``<name>/<client>``, or leave them out for more than ``most`` clients.

    In names of clients, characters that trackers refuse are replaced by ``_``, with a number to keep names distinct.
    """
    numbers: dict[str, float] = {}
    for name, value in values.items():
        if not isinstance(value, Mapping):
            numbers[name] = value
        elif len(value) <= most:
            taken = {"mean", "std", "best5", "worst5"}
            for position, (client, number) in enumerate(value.items()):
                safe = re.sub(r"[^A-Za-z0-9_. -]|^[. ]+|[. ]+$", "_", client) or "_"
                safe = f"{safe}-{position}" if safe in taken else safe
                taken.add(safe)
                numbers[f"{name}/{safe}"] = number
    return numbers
