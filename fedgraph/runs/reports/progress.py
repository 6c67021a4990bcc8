"""Progress of a run: lines in the log, or a live display."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedgraph.runs.callbacks import Callback, Evaluation, Training
from fedgraph.runs.reports.words import shown_number

log = logging.getLogger("fedgraph")


class LogProgress(Callback):
    """Callback that logs a line per round and evaluation, for runs without a terminal.

    Parameters
    ----------
    num_rounds : int
        Number of rounds of the run.
    """

    def __init__(self, num_rounds: int) -> None:
        self._num_rounds = num_rounds
        self._began = time.monotonic()
        self._first: int | None = None

    def on_training(self, training: Training) -> None:
        """Log round, loss, number of absent clients and time left."""
        if self._first is None:
            self._first = training.round
        done = training.round - self._first + 1
        left = (time.monotonic() - self._began) / done * (self._num_rounds - training.round)
        absent = f", {len(training.absent)} clients absent" if training.absent else ""
        loss = float(training.loss.nanmean())
        log.info(
            "round %d/%d: training loss %.4f%s, about %.0f s left",
            training.round, self._num_rounds, loss, absent, left,
        )  # fmt: skip

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Log means over clients."""
        log.info("after round %d: %s", evaluation.round, _means(evaluation))
        return False


class LiveDisplay(Callback):
    """Callback with a progress bar on a terminal: round or epoch, metrics and time left. A context manager.

    Parameters
    ----------
    console : Console
        The terminal.
    label : str
        Label of the bar.
    total : int or None
        Number of rounds or epochs; None where it is not known: the bar then only shows that the run is alive.
    """

    def __init__(self, console: Console, label: str, total: int | None) -> None:
        counted = () if total is None else (MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            *counted,
            TextColumn("{task.fields[metrics]}"),
            console=console,
        )
        self._counts = total is not None
        self._task = self._progress.add_task(label, total=total, metrics="")

    def __enter__(self) -> LiveDisplay:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def on_training(self, training: Training) -> None:
        """Advance the bar."""
        self._progress.update(self._task, completed=training.round)

    def on_epoch(self, phase: str, epoch: int) -> None:
        """Advance the bar, or show the number of epochs where the total is not known."""
        if self._counts:
            self._progress.update(self._task, completed=epoch)
        else:
            self._progress.update(self._task, metrics=f"{phase} epoch {epoch}")

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Show the latest mean over clients."""
        self._progress.update(self._task, metrics=_means(evaluation, most=1))
        return False

    def on_line(self, line: Mapping[str, Any]) -> None:
        """Update the display from a line of ``metrics.jsonl``, for a run in another process."""
        if line["phase"] == "training":
            self._progress.update(self._task, completed=line["round"])
        elif line["phase"] != "evaluation":
            self.on_epoch(line["phase"], line["round"])
        else:
            metric, values = next(iter(line["metrics"].items()))
            self._progress.update(self._task, metrics=f"{line['split']}/{metric} {shown_number(values['mean'])}")


def _means(evaluation: Evaluation, most: int = 8) -> str:
    shown = list(evaluation.metrics.items())[:most]
    return ", ".join(f"{name} {float(values.nanmean()):.4g}" for name, values in shown)
