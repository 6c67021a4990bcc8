"""MLflow tracker: logs to the server of ``MLFLOW_TRACKING_URI``, or to a database in the run's folder ``mlruns``.

``mlflow ui --backend-store-uri sqlite:///RUN/mlruns/mlflow.db`` shows the latter. MLflow's other variables apply, such
as ``MLFLOW_EXPERIMENT_NAME`` (by default the name of the experiment).
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

# Read on import. An unreachable server must not delay the run by minutes, and runs on private data send no telemetry.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM = 1000, 100, 6000
"""Limits of MLflow: metrics and parameters per request, characters of a parameter."""
_REFUSED = re.compile(r"[^\w.:/ -]", re.ASCII)


class MLflowTracker:
    """Tracker that logs to MLflow under the name of the run folder."""

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        local = folder.path / "mlruns"
        local.mkdir(exist_ok=True)
        for noisy in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        at_server = mlflow.tracking.is_tracking_uri_set()
        self._client = MlflowClient(mlflow.get_tracking_uri() if at_server else f"sqlite:///{local / 'mlflow.db'}")
        id_file = local / "run-id"
        if not id_file.exists():
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment.experiment.name
            known = self._client.get_experiment_by_name(name)
            place = None if at_server else (local / "artifacts").as_uri()
            group = known.experiment_id if known else self._client.create_experiment(name, artifact_location=place)
            id_file.write_text(self._client.create_run(group, run_name=folder.name).info.run_id)
        self._run = id_file.read_text()
        self._client.set_terminated(self._run, "RUNNING")  # fails if the run is on another server

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Log parameters, truncated if long; a resumed run keeps the first value of a changed parameter."""
        known = self._client.get_run(self._run).data.params
        new = [Param(key, str(value)[:_LONGEST_PARAM]) for key, value in params.items() if key not in known]
        for start in range(0, len(new), _MOST_PARAMS):
            self._client.log_batch(self._run, params=new[start : start + _MOST_PARAMS])

    def log_metrics(self, values: Values, step: int) -> None:
        """Log numbers, and those of up to 50 clients as ``test/accuracy/client-3``."""
        now = int(time.time() * 1000)
        metrics = [Metric(_REFUSED.sub("_", name), value, now, step) for name, value in flat(values).items()]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + _MOST_METRICS])

    def save(self, path: Path) -> None:
        """Log the file as an artifact."""
        self._client.log_artifact(self._run, str(path))

    def finalize(self, status: Status) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._run, status.upper())
