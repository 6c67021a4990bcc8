import io
import logging

import pytest
import torch
from rich.console import Console

from fedgraph.runs.callbacks import Evaluation, Training
from fedgraph.runs.reports.progress import LiveDisplay, LogProgress

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
