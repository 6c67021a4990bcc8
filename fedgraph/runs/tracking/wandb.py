"""Weights & Biases tracker: logs offline to the run's folder ``wandb``, unless ``WANDB_MODE`` is set.

``wandb sync RUN/wandb/offline-run-*`` uploads a run, including its resumed parts. W&B's other variables apply, such as
``WANDB_PROJECT`` (by default the name of the experiment) and ``WANDB_DIR``.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import wandb

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tracker import MOST_CLIENTS, Status, Values, flat

_STEP = "step"


class WandbTracker:
    """Tracker that logs to Weights & Biases under the name of the run folder."""

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        id_file = folder.path / "wandb" / "run-id"
        id_file.parent.mkdir(exist_ok=True)
        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex[:12])
        env = os.environ.get
        self._run = wandb.init(
            project=env("WANDB_PROJECT", experiment.experiment.name),
            id=id_file.read_text(),
            name=folder.name,
            dir=env("WANDB_DIR", str(folder.path)),
            mode=env("WANDB_MODE", "offline"),
            resume="allow",
            # The live display uses the terminal.
            settings=wandb.Settings(console=env("WANDB_CONSOLE", "off"), silent=env("WANDB_SILENT", "true")),
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)
        # W&B's own step must increase across the parts of a resumed run.
        self._logged = len(folder.metrics.read_bytes().splitlines()) if folder.metrics.exists() else 0

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Set the configuration of the run."""
        self._run.config.update(dict(params), allow_val_change=True)

    def log_metrics(self, values: Values, step: int) -> None:
        """Log numbers over ``step``: those of up to 50 clients, else a histogram over clients."""
        many = {
            f"{name}/clients": wandb.Histogram(list(value.values()))
            for name, value in values.items()
            if isinstance(value, Mapping) and len(value) > MOST_CLIENTS
        }
        self._run.log({_STEP: step, **flat(values), **many}, step=self._logged)
        self._logged += 1

    def save(self, path: Path) -> None:
        """Copy the file into the files of the run."""
        copy = shutil.copy(path, self._run.dir)
        self._run.save(copy, base_path=self._run.dir, policy="end")

    def finalize(self, status: Status) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
