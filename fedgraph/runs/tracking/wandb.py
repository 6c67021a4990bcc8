"""Weights & Biases: offline, in the folder ``wandb`` of the run, unless ``WANDB_MODE`` says otherwise.

``wandb sync RUN/wandb/offline-run-*`` uploads such a run, all parts of a resumed one together.
"""

from __future__ import annotations

import json
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
    """Tracker that writes to Weights & Biases; see the module.

    ``WANDB_PROJECT`` (by default the name of the experiment), ``WANDB_DIR``, credentials and so on are W&B's own.

    Parameters
    ----------
    folder : RunFolder
        The run folder; the run of W&B has its name.
    experiment : Experiment
        The experiment.
    """

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        own = folder.path / "wandb"
        own.mkdir(exist_ok=True)
        self._kept = own / "run.json"
        saved = json.loads(self._kept.read_text()) if self._kept.exists() else {}
        self._id, self._logged = saved.get("id") or uuid.uuid4().hex[:12], saved.get("logged", 0)
        self._note()
        # The terminal is the live display's.
        quiet = {"console": "off", "silent": True}
        quiet = {key: value for key, value in quiet.items() if f"WANDB_{key.upper()}" not in os.environ}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or experiment.experiment.name,
            id=self._id,
            name=folder.name,
            dir=None if "WANDB_DIR" in os.environ else str(folder.path),
            mode=None if "WANDB_MODE" in os.environ else "offline",
            resume="allow",
            settings=wandb.Settings(**quiet),
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Make parameters the configuration of the run."""
        self._run.config.update(dict(params), allow_val_change=True)

    def log_metrics(self, values: Values, step: int) -> None:
        """Log numbers over ``step``: up to 50 clients' own, and of more a histogram over clients."""
        many = {
            name: value for name, value in values.items() if isinstance(value, Mapping) and len(value) > MOST_CLIENTS
        }
        histograms = {f"{name}/clients": wandb.Histogram(list(value.values())) for name, value in many.items()}
        # W&B's own count of steps must only rise, also from one part of a resumed run to the next.
        self._run.log({_STEP: step, **flat(values), **histograms}, step=self._logged)
        self._logged += 1
        self._note()

    def save(self, path: Path) -> None:
        """Copy the file into the files of the run; a picture is logged as an image as well."""
        copy = shutil.copy(path, self._run.dir)
        self._run.save(copy, base_path=self._run.dir, policy="end")
        if path.suffix == ".png":
            self._run.log({path.stem: wandb.Image(str(path))}, step=self._logged)

    def finalize(self, status: Status) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if status == "finished" else 1)

    def _note(self) -> None:
        self._kept.write_text(json.dumps({"id": self._id, "logged": self._logged}))
