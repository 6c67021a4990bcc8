"""Weights & Biases: offline, in the folder ``wandb`` of the run, unless ``WANDB_MODE`` says otherwise.

``wandb sync RUN/wandb/offline-run-*`` uploads such a run, all parts of a resumed one together. ``WANDB_PROJECT`` (by
default the name of the experiment), ``WANDB_DIR``, credentials and so on are W&B's own.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from os import environ
from pathlib import Path

import wandb

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tracker import MOST_CLIENTS, Params, Status, Values, flat, run_id


class WandbTracker:
    """Tracker that writes to Weights & Biases, where the run has the name of the run folder; see the module."""

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        env = environ.get
        self._run = wandb.init(
            project=env("WANDB_PROJECT", experiment.experiment.name),
            id=run_id(folder.path / "wandb", lambda: uuid.uuid4().hex[:12]),
            name=folder.name,
            dir=env("WANDB_DIR", str(folder.path)),
            mode=env("WANDB_MODE", "offline"),
            resume="allow",
            # The terminal is the live display's.
            settings=wandb.Settings(console=env("WANDB_CONSOLE", "off"), silent=env("WANDB_SILENT", "true")),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        # W&B's own count of steps must only rise, also from one part of a resumed run to the next.
        self._logged = len(folder.metrics.read_bytes().splitlines()) if folder.metrics.exists() else 0

    def log_params(self, params: Params) -> None:
        """Make parameters the configuration of the run."""
        self._run.config.update(dict(params), allow_val_change=True)

    def log_metrics(self, values: Values, step: int) -> None:
        """Log numbers over ``step``: up to 50 clients' own, and of more a histogram over clients."""
        many = {
            f"{name}/clients": wandb.Histogram(list(value.values()))
            for name, value in values.items()
            if isinstance(value, Mapping) and len(value) > MOST_CLIENTS
        }
        self._run.log({"step": step, **flat(values), **many}, step=self._logged)
        self._logged += 1

    def save(self, path: Path) -> None:
        """Copy the file into the files of the run."""
        copy = shutil.copy(path, self._run.dir)
        self._run.save(copy, base_path=self._run.dir, policy="end")

    def finalize(self, status: Status) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
