"""MLflow: a run at the server of ``MLFLOW_TRACKING_URI``, or in a database in the folder ``mlruns`` of the run.

``mlflow ui --backend-store-uri sqlite:///RUN/mlruns/mlflow.db`` shows the latter. ``MLFLOW_EXPERIMENT_NAME`` (by
default the name of the experiment), credentials and so on are MLflow's own.
"""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tracker import Params, Status, Values, flat, run_id

# Read when the package is imported. A server that is gone must not hold up the run for minutes; and a run in a place
# that keeps its data to itself should not report that it took place.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

_REFUSED = re.compile(r"[^\w.:/ -]", re.ASCII)


class MLflowTracker:
    """Tracker that writes to MLflow, where the run has the name of the run folder; see the module."""

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        own, at_server = folder.path / "mlruns", mlflow.tracking.is_tracking_uri_set()
        for noisy in ("alembic", "mlflow.store.db.utils"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        client = self._client = MlflowClient(mlflow.get_tracking_uri() if at_server else f"sqlite:///{own}/mlflow.db")

        def new() -> str:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment.experiment.name
            known, place = client.get_experiment_by_name(name), None if at_server else (own / "artifacts").as_uri()
            group = known.experiment_id if known else client.create_experiment(name, artifact_location=place)
            run: str = client.create_run(group, run_name=folder.name).info.run_id
            return run

        self._run = run_id(own, new)
        client.set_terminated(self._run, "RUNNING")  # fails where another server has the run

    def log_params(self, params: Params) -> None:
        """Log parameters, long ones cut off; those of a resumed run that were changed since stay as they were."""
        known = self._client.get_run(self._run).data.params
        new = [Param(key, str(value)[:6000]) for key, value in params.items() if key not in known]
        self._client.log_batch(self._run, params=new)

    def log_metrics(self, values: Values, step: int) -> None:
        """Log numbers, and up to 50 clients' own as ``test/accuracy/client-3``."""
        now = int(time.time() * 1000)
        metrics = [Metric(_REFUSED.sub("_", name), value, now, step) for name, value in flat(values).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def save(self, path: Path) -> None:
        """Log the file as an artifact."""
        self._client.log_artifact(self._run, str(path))

    def finalize(self, status: Status) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._run, status.upper())
