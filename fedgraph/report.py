"""What a person sees of a run: a live display, a table of results, and the plain sentence of what was measured."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedgraph.callbacks import Callback, Evaluation, Training

log = logging.getLogger("fedgraph")

LISTENERS: list[Callback] = []
"""Callbacks that this process wants told of every run it serves, such as a live display."""


class LogProgress(Callback):
    """One log line per round and evaluation: all there is to see where no terminal is attached."""

    def __init__(self, num_rounds: int) -> None:
        self._num_rounds = num_rounds
        self._began = time.monotonic()
        self._first: int | None = None

    def on_training(self, training: Training) -> None:
        """Round, loss, absent clients, time left."""
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
        """Means over clients."""
        log.info("after round %d: %s", evaluation.round, _means(evaluation))
        return False


class LiveDisplay(Callback):
    """A progress bar with round, metrics and time left, on a terminal."""

    def __init__(self, console: Console, label: str, num_rounds: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=console,
        )
        self._task = self._progress.add_task(label, total=num_rounds, metrics="")

    def __enter__(self) -> LiveDisplay:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def on_training(self, training: Training) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=training.round)

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Show the latest mean over clients."""
        self._progress.update(self._task, metrics=_means(evaluation, most=1))
        return False

    def on_line(self, line: Mapping[str, Any]) -> None:
        """The same from a line of ``metrics.jsonl``, for a run in another process."""
        if line["phase"] == "training":
            self._progress.update(self._task, completed=line["round"])
        else:
            metric, values = next(iter(line["metrics"].items()))
            self._progress.update(self._task, metrics=f"{line['split']}/{metric} {_number(values['mean'])}")


def _means(evaluation: Evaluation, most: int = 8) -> str:
    shown = list(evaluation.metrics.items())[:most]
    return ", ".join(f"{name} {float(values.nanmean()):.4g}" for name, values in shown)


def shown_split(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The split that results are shown for: test, where it was measured, else the last that was."""
    measured = list(summaries[0]["metrics"])
    return "test" if "test" in measured or not measured else measured[-1]


def results_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """One column per run, one row per metric: mean and deviation over clients, then what the run took."""
    split = shown_split(summaries)
    table = Table(title=f"On each client's own {split} data", title_justify="left")
    table.add_column("mean ± std of clients")
    for summary in summaries:
        table.add_column(summary["method"], justify="right", no_wrap=True)
    measured = [summary["metrics"].get(split, {}) for summary in summaries]
    metrics = list(dict.fromkeys(metric for values in measured for metric in values))
    for metric in metrics:
        table.add_row(metric, *(_spread(values.get(metric)) for values in measured))
    for key, label in (("best5", "best 5 %"), ("worst5", "worst 5 %")):
        if metrics:
            table.add_row(
                f"{metrics[0]}, {label}", *(_number(values.get(metrics[0], {}).get(key)) for values in measured)
            )
    table.add_section()
    table.add_row("rounds", *(str(summary["rounds"]) for summary in summaries))
    table.add_row("exchanges", *(str(summary["exchanges"]) for summary in summaries))
    for key, label in (("bytes_down", "MB down"), ("bytes_up", "MB up")):
        table.add_row(label, *(_megabytes(summary.get(key)) for summary in summaries))
    table.add_row("seconds", *(f"{summary['seconds']:.1f}" for summary in summaries))
    return table


def sentence(summaries: Sequence[Mapping[str, Any]]) -> str:
    """What was measured on what, in plain words."""
    split = shown_split(summaries)
    data = " / ".join(dict.fromkeys(summary["data"] for summary in summaries))
    return (
        f"{summaries[0]['clients']} clients, each measured on its own {split} data with the model it holds at the end. "
        f"Data: {data}."
    )


def as_text(summary: Mapping[str, Any]) -> str:
    """Table and sentence of one run as plain text."""
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(results_table([summary]))
    console.print(sentence([summary]))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def _spread(values: Mapping[str, float | None] | None) -> str:
    if not values:
        return "-"
    return f"{_number(values['mean'])} ± {_number(values['std'])}"


def _megabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
