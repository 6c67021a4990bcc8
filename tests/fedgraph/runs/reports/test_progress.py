import io
import logging
import sys
import types
from contextlib import suppress

import pytest
import torch
from rich.console import Console

from fedgraph.runs.callbacks import Evaluation, Training
from fedgraph.runs.reports.progress import LiveDisplay, LogProgress, NotebookDisplay, live_display
from fedgraph.support.errors import RunError

NAMES = ("a", "b")


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="fedgraph")
    return caplog


def test_a_log_line_per_round_and_evaluation(log):
    progress = LogProgress(4)
    progress.on_training(Training(3, NAMES, torch.tensor([1.0, float("nan")]), {"b": "gone"}, 0.1))
    assert not progress.on_evaluation(Evaluation(3, NAMES, {"test/mae": torch.tensor([2.0, 4.0])}, torch.zeros(2, 1)))
    first, second = log.messages
    assert first.startswith("round 3/4: training loss 1.0000, 1 clients absent, about 0 s left")
    assert second == "after round 3: test/mae 3"


def test_live_display_shows_round_and_metric():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveDisplay(console, "sfl", 4) as display:
        display.on_training(Training(2, NAMES, torch.ones(2), {}, 0.1))
        assert not display.on_evaluation(
            Evaluation(2, NAMES, {"test/mae": torch.tensor([2.0, 4.0]), "test/rmse": torch.ones(2)}, torch.zeros(2, 1))
        )
    shown = console.file.getvalue()
    assert "2/4" in shown
    assert "test/mae 3" in shown
    assert "rmse" not in shown


@pytest.mark.parametrize("done", [0, 2])
def test_an_error_before_anything_was_computed_leaves_no_bar(done):
    console = Console(file=io.StringIO(), width=80)
    with suppress(RunError), LiveDisplay(console, "sfl", 4) as display:
        display._update(completed=done)
        raise RunError("no such file")
    assert ("sfl" in console.file.getvalue()) == bool(done)


def test_live_display_shows_epochs_of_what_has_no_rounds():
    for total, expected in ((9, "3/9"), (None, "fusion epoch 3")):
        console = Console(file=io.StringIO(), force_terminal=True, width=120)
        with LiveDisplay(console, "f3", total) as display:
            display.on_line({"phase": "fusion", "round": 3})
        shown = console.file.getvalue()
        assert expected in shown
        assert ("/" in shown) == (total is not None)


def test_live_display_of_another_process_shows_the_metric_and_passes_over_the_rest():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveDisplay(console, "ipa", 4) as display:
        display.on_line({"phase": "training", "round": 2})
        display.on_line({"phase": "fairness", "round": 2, "split": "test", "metric": "mae", "fairness": 80.0})
        display.on_line({"phase": "evaluation", "round": 2, "split": "test", "metrics": {"mae": {"mean": 3.0}}})
    assert "2/4" in console.file.getvalue()
    assert "test/mae 3" in console.file.getvalue()


@pytest.fixture
def cell(monkeypatch):
    """What a notebook has shown below a cell: a line, and what it became."""
    lines = []
    handle = types.SimpleNamespace(update=lambda line: lines.append(repr(line)))

    def display(line, display_id):
        assert display_id
        lines.append(repr(line))
        return handle

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    return lines


def test_a_notebook_has_one_line_that_changes(cell, monkeypatch):
    console = Console(file=io.StringIO(), force_jupyter=True)
    display = live_display(console, "sfl", 4)
    assert isinstance(display, NotebookDisplay)
    monkeypatch.setattr("fedgraph.runs.reports.progress._LEAST_SECONDS", 0.0)
    with display:
        display.on_training(Training(2, NAMES, torch.ones(2), {}, 0.1))
        display.on_evaluation(Evaluation(2, NAMES, {"test/mae": torch.tensor([2.0, 4.0])}, torch.zeros(2, 1)))
    assert cell[0] == "sfl: 0 of 4, 0 s"
    assert cell[1] == "sfl: 2 of 4, 0 s"
    assert cell[-1] == "sfl: 2 of 4, test/mae 3, 0 s"
    assert console.file.getvalue() == ""


def test_a_notebook_is_not_flooded(cell):
    with live_display(Console(file=io.StringIO(), force_jupyter=True), "f3", None) as display:
        for epoch in range(1000):
            display.on_epoch("fusion", epoch)
    assert len(cell) < 20
    assert cell[-1] == "f3: fusion epoch 999, 0 s"


def test_whoever_wants_no_progress_gets_none(cell):
    for console in (Console(quiet=True, force_jupyter=True), Console(file=io.StringIO())):
        assert not isinstance(live_display(console, "sfl", 4), NotebookDisplay)
