"""TensorBoard tracker: event files in the folder ``tensorboard`` of the run (``tensorboard --logdir runs``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tracker import Status, Values


class TensorBoardTracker:
    """Tracker that writes event files into the run folder.

    Metrics are scalars, with a histogram over clients; parameters are a text and the tab HPARAMS.
    """

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        path = folder.path / "tensorboard"
        self._begins = not path.exists()
        self._writer = SummaryWriter(str(path))

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Write a table of the parameters, when the run begins."""
        if self._begins:
            rows = "".join(f"\n| {name} | {value} |" for name, value in params.items())
            self._writer.add_text("parameters", f"| key | value |\n|---|---|{rows}", 0)
            for part in hparams(dict(params), {}):
                self._writer._get_file_writer().add_summary(part)

    def log_metrics(self, values: Values, step: int) -> None:
        """Write scalars, and histograms over clients."""
        for name, value in values.items():
            if isinstance(value, Mapping):
                self._writer.add_histogram(f"{name}/clients", np.array(list(value.values())), step)
            else:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def save(self, path: Path) -> None:
        """Do nothing: the file is in the run folder already."""

    def finalize(self, status: Status) -> None:
        """Close the event file."""
        self._writer.close()
