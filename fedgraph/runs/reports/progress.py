"""Progress of a run: lines in the log, or a live display."""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedgraph.runs.callbacks import Callback, Evaluation, Training
from fedgraph.runs.reports.words import shown_number
from fedgraph.runs.summary import in_words
from fedgraph.support.status import report_status

log = logging.getLogger("fedgraph")

_LEAST_SECONDS = 0.2
"""Minimum time between two updates of a notebook, each a message to the browser."""


class LogProgress(Callback):
    """Callback that logs a line per round and evaluation.

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
        clients = len(training.names)
        replied = clients - len(training.absent)
        report_status(
            f"round {training.round} of {self._num_rounds}: {replied} of {clients} clients ({training.seconds:.1f} s)"
        )

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Log means over clients."""
        models = "the final models" if evaluation.restored else f"after round {evaluation.round}"
        log.info("%s: %s", models, _means(evaluation))
        return False


class LiveDisplay(Callback):
    """Callback with a progress bar on a terminal, also a context manager: round or epoch, metrics, time left.

    Parameters
    ----------
    console : Console
        The terminal.
    label : str
        Label of the bar.
    total : int or None
        Number of rounds or epochs, or None if unknown.
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
        task = self._progress.tasks[0]
        # The bar of a run that failed before its first result shows nothing: remove it.
        if error[0] is not None and not task.completed and not task.fields["metrics"]:
            self._progress.remove_task(self._task)
        self._progress.stop()

    def on_training(self, training: Training) -> None:
        """Advance the bar."""
        self._update(completed=training.round)

    def on_epoch(self, phase: str, epoch: int) -> None:
        """Advance the bar, or show the epoch if the total is unknown."""
        if self._counts:
            self._update(completed=epoch)
        else:
            self._update(metrics=f"{phase} epoch {epoch}")

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Show the latest mean over clients."""
        self._update(metrics=_means(evaluation, most=1))
        return False

    def _update(self, **fields: Any) -> None:
        self._progress.update(self._task, **fields)
        self._changed()

    def _changed(self) -> None:
        """Redraw the display; on a terminal the bar does so itself."""

    def on_line(self, line: Mapping[str, Any]) -> None:
        """Update the display from a line of ``metrics.jsonl``, for a run in another process."""
        if line["phase"] == "training":
            self._update(completed=line["round"])
        elif line["phase"] != "evaluation":
            self.on_epoch(line["phase"], line["round"])
        else:
            metric, values = next(iter(line["metrics"].items()))
            self._update(metrics=f"{line['split']}/{metric} {shown_number(values['mean'])}")


class NotebookDisplay(LiveDisplay):
    """The display of a notebook: one line below the cell that is updated during the run, without widgets.

    Parameters are those of :class:`LiveDisplay`.
    """

    def __init__(self, console: Console, label: str, total: int | None) -> None:
        super().__init__(Console(file=io.StringIO(), force_jupyter=False, quiet=console.quiet), label, total)
        self._began = self._shown = 0.0
        self._handle: Any = None

    def __enter__(self) -> NotebookDisplay:
        from IPython.display import display

        self._began = time.monotonic()
        self._handle = display(self._line(), display_id=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.update(self._line())

    def _changed(self) -> None:
        if time.monotonic() - self._shown > _LEAST_SECONDS:
            self._shown = time.monotonic()
            self._handle.update(self._line())

    def _line(self) -> _Line:
        task = self._progress.tasks[0]
        count = "" if task.total is None else f"{task.completed:.0f} of {task.total:.0f}, "
        metrics = f"{task.fields['metrics']}, " if task.fields["metrics"] else ""
        return _Line(f"{task.description}: {count}{metrics}{time.monotonic() - self._began:.0f} s")


class _Line(str):
    """Text that a notebook shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def live_display(console: Console, label: str, total: int | None) -> LiveDisplay:
    """Return the display that suits the console: a bar on a terminal, a line in a notebook."""
    in_notebook = console.is_jupyter and not console.quiet
    return (NotebookDisplay if in_notebook else LiveDisplay)(console, label, total)


def _means(evaluation: Evaluation, most: int = 8) -> str:
    shown = [(name, float(values.nanmean())) for name, values in list(evaluation.metrics.items())[:most]]
    text = ", ".join(f"{name} {mean:.4g}" for name, mean in shown if not math.isnan(mean))
    everybody = len(evaluation.names)
    measured = sum(any(not math.isnan(value) for value in of) for of in zip(*_columns(evaluation), strict=True))
    return f"{text} ({in_words(measured, everybody)})" if text and measured < everybody else text


def _columns(evaluation: Evaluation) -> list[list[float]]:
    return [values.tolist() for values in evaluation.metrics.values()]
