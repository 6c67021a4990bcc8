"""TensorBoard: event files in the folder ``tensorboard`` of the run; ``tensorboard --logdir runs`` shows all runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from fedgraph.experiment import Experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.tracking.tracker import Status, Values

_PARAMETERS = "parameters"


class TensorBoardTracker:
    """Tracker that writes event files.

    Numbers are scalars, those of clients a histogram over clients, parameters a text and the tab HPARAMS, pictures
    images; other files lie beside them in the run folder.

    Parameters
    ----------
    folder : RunFolder
        The run folder.
    experiment : Experiment
        The experiment.
    """

    def __init__(self, folder: RunFolder, experiment: Experiment) -> None:
        path = folder.path / "tensorboard"
        self._begins = not path.exists()
        self._writer = SummaryWriter(str(path))
        self._step = 0

    def log_params(self, params: Mapping[str, bool | int | float | str]) -> None:
        """Write a table of the parameters, when the run begins."""
        if not self._begins:
            return
        rows = [f"| {name} | {value} |" for name, value in params.items()]
        self._writer.add_text(_PARAMETERS, "\n".join(["| key | value |", "|---|---|", *rows]), 0)
        # The last of the three parts says that the run has ended well.
        for part in hparams(dict(params), {})[:2]:
            self._writer._get_file_writer().add_summary(part)
        self._writer.flush()

    def log_metrics(self, values: Values, step: int) -> None:
        """Write scalars, and histograms over clients."""
        self._step = max(self._step, step)
        for name, value in values.items():
            if isinstance(value, Mapping):
                self._writer.add_histogram(f"{name}/clients", np.array(list(value.values())), step)
            else:
                self._writer.add_scalar(name, value, step)
        # A killed run must not lose what it will not tell again.
        self._writer.flush()

    def save(self, path: Path) -> None:
        """Write a picture as an image."""
        if path.suffix == ".png":
            with Image.open(path) as image:
                self._writer.add_image(path.stem, np.array(image.convert("RGB")), self._step, dataformats="HWC")

    def finalize(self, status: Status) -> None:
        """Close the event file."""
        if status == "finished":
            self._writer._get_file_writer().add_summary(hparams({}, {})[2])
        self._writer.close()
