"""MLflow: a run at the server of ``MLFLOW_TRACKING_URI``, or in a database in the folder ``mlruns`` of the run.

``mlflow ui --backend-store-uri sqlite:///RUN/mlruns/mlflow.db`` shows the latter. MLflow no longer writes plain
files, and making that database takes it some seconds.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tracker import Status, Values, flat
from fedgraph.support.errors import RunError
from fedgraph.support.files import write_atomically

# Read when the package is imported. A server that is gone must not hold up the run for minutes; and a run in a place
# that keeps its data to itself should not report that it took place.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

_PER_BATCH = {"metrics": 1000, "params": 100}
_LONGEST_PARAM = 6000
_REFUSED = re.compile(r"[^\w.:/ -]", re.ASCII)


class MLflowTracker:
    """Tracker that writes to MLflow; see the module.

    ``MLFLOW_EXPERIMENT_NAME`` (by default the name of the experiment), credentials and so on are MLflow's own.

    Parameters
    ----------
    folder : RunFolder
        The run folder; MLflow's run has its name, and ``mlruns/run-id`` in it the number that MLflow gave it.
    experiment : Experiment
        The experiment.

    Raises
    ------
    RunError
        When a resumed run was tracked at another server.
    """

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        own = folder.path / "mlruns"
        own.mkdir(exist_ok=True)
        for noisy in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        at_server = mlflow.tracking.is_tracking_uri_set()
        self._client = MlflowClient(mlflow.get_tracking_uri() if at_server else f"sqlite:///{own / 'mlflow.db'}")
        kept = own / "run-id"
        if kept.exists():
            self._run = kept.read_text()
            self._take_up()
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment.experiment.name
            known = self._client.get_experiment_by_name(name)
            place = None if at_server else (own / "artifacts").as_uri()
            group = known.experiment_id if known else self._client.create_experiment(name, artifact_location=place)
            self._run = self._client.create_run(group, run_name=folder.name).info.run_id
            write_atomically(kept, self._run.encode())

    def _take_up(self) -> None:
        try:
            self._client.set_terminated(self._run, "RUNNING")
        except MlflowException as error:
            raise RunError(
                f"MLflow has no run {self._run} there ({error}): set MLFLOW_TRACKING_URI as it was when the run began"
            ) from None

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Log parameters, long ones cut off; those of a resumed run that were changed since stay as they were."""
        known = self._client.get_run(self._run).data.params
        new = [Param(key, str(value)[:_LONGEST_PARAM]) for key, value in params.items() if key not in known]
        for batch in _batches(new, _PER_BATCH["params"]):
            self._client.log_batch(self._run, params=batch)

    def log_metrics(self, values: Values, step: int) -> None:
        """Log numbers, and up to 50 clients' own as ``test/accuracy/client-3``."""
        now = int(time.time() * 1000)
        metrics = [Metric(_REFUSED.sub("_", name), value, now, step) for name, value in flat(values).items()]
        for batch in _batches(metrics, _PER_BATCH["metrics"]):
            self._client.log_batch(self._run, metrics=batch)

    def save(self, path: Path) -> None:
        """Log the file as an artifact."""
        self._client.log_artifact(self._run, str(path))

    def finalize(self, status: Status) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._run, status.upper())


def _batches(entries: list, size: int) -> list[list]:
    return [entries[start : start + size] for start in range(0, len(entries), size)]
