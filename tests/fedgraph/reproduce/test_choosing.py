"""Settings of a row that are chosen on validation data."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgraph.commands import cli
from fedgraph.reproduce.cells import CellMaker
from fedgraph.reproduce.choosing import plan_cells, plan_choices
from fedgraph.reproduce.table_files import load_table
from fedgraph.support.errors import ExperimentError

RATES = [1e-6, 0.1]


@pytest.fixture
def choosing(table):
    """A table whose row SFL is chosen between a rate that learns nothing and one that learns."""
    table["table"]["choose-by"] = "validation/loss"
    table["rows"][1]["choose"] = {"train.learning-rate": RATES}
    return table


@pytest.fixture
def choices_of(write, tmp_path):
    def choices_of(content, *overrides):
        _, table, file = load_table(str(write(content)))
        maker = CellMaker(table, table.profiles["small"], overrides, tmp_path / "cells", file.parent)
        return maker, plan_choices(maker, table.table.seeds)

    return choices_of


def finish(cell, loss):
    cell.path.mkdir(parents=True)
    metrics = {"validation": {"loss": {"mean": loss}}}
    (cell.path / "summary.json").write_text(json.dumps({"metrics": metrics, "data": "Toy", "seconds": 1.0}))


def test_the_command_tries_all_and_takes_the_best_on_validation_data(choosing, write):
    file = write(choosing)
    arguments = ["reproduce", str(file), "--out", "out"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    # Two trials with seed 0, of which one is the cell; a run with seed 1; and two of the other row.
    assert len([path for path in Path("out/cells").iterdir() if path.name != ".locks"]) == 5
    lines = list(csv.DictReader(Path("out/tiny-small/trials.csv").read_text().splitlines()))
    assert [line["settings"] for line in lines] == [f"train.learning-rate={json.dumps(rate)}" for rate in RATES]
    assert [line["chosen"] for line in lines] == ["False", "True"]
    assert float(lines[1]["value"]) < float(lines[0]["value"])
    text = Path("out/tiny-small/table.md").read_text()
    assert "chosen by validation/loss, seed 0: train.learning-rate 0.1 of 1e-06, 0.1 (at the end of" in text
    assert "4 of 4 runs are finished" in text
    for path in Path("out/cells").glob("*seed1*"):
        assert "learning-rate = 1e-06" not in (path / "experiment.toml").read_text()
    # All is there: nothing is run again.
    assert "/4" not in CliRunner().invoke(cli.app, arguments).output


def test_cells_wait_for_the_trials(choosing, choices_of):
    maker, choices = choices_of(choosing)
    first, second = (trial.cells[0] for trial in choices[0].trials)
    finish(first, 0.1)
    waiting = [cell for cell in plan_cells(maker, (0, 1), choices) if cell.row == "SFL"]
    assert {cell.pending for cell in waiting} == {"its settings are not chosen yet: 1 of 2 trials are over"}
    finish(second, 0.2)
    cells = [cell for cell in plan_cells(maker, (0, 1), choices) if cell.row == "SFL"]
    assert cells[0].path == first.path
    assert [cell.experiment.train.learning_rate for cell in cells] == [RATES[0]] * 2
    assert [cell.pending for cell in cells] == ["", ""]


def test_where_higher_is_better_the_highest_is_taken_and_every_combination_is_tried(choosing, choices_of):
    choosing["table"] |= {"choose-by": "validation/accuracy", "choose-seeds": [3, 4]}
    choosing["rows"][1]["choose"]["sfl.hops"] = [1, 2]
    maker, choices = choices_of(choosing)
    trials = choices[0].trials
    assert [dict(trial.settings)["sfl.hops"] for trial in trials] == [1, 2, 1, 2]
    assert [cell.seed for cell in trials[0].cells] == [3, 4]
    for number, trial in enumerate(trials):
        for cell, more in zip(trial.cells, (0.0, 0.3), strict=True):
            cell.path.mkdir(parents=True)
            value = [0.1, 0.5, 0.4, 0.2][number] + more
            metrics = {"validation": {"accuracy": {"mean": value}}}
            (cell.path / "summary.json").write_text(json.dumps({"metrics": metrics, "seconds": 1.0, "data": ""}))
    assert trials[1].value == pytest.approx(0.65)
    cell = next(cell for cell in plan_cells(maker, (0,), choices) if cell.row == "SFL")
    assert (cell.experiment.train.learning_rate, cell.experiment.method_table["hops"]) == (RATES[0], 2)
    assert "seeds 3, 4" in cell.chosen


def test_keys_that_are_given_together_have_the_same_value(choosing, choices_of):
    choosing["rows"][1]["choose"] = {"sfl.lambda-global sfl.lambda-personal": [0.0, 0.3]}
    _, choices = choices_of(choosing)
    tables = [trial.cells[0].experiment.method_table for trial in choices[0].trials]
    assert [(table["lambda-global"], table["lambda-personal"]) for table in tables] == [(0.0, 0.0), (0.3, 0.3)]


def test_a_trial_that_failed_is_out_and_one_without_a_finite_value_too(choosing, choices_of):
    choosing["rows"][1]["choose"] = {"train.learning-rate": [0.1, 0.2, 0.3]}
    maker, choices = choices_of(choosing)
    first, second, third = (trial.cells[0] for trial in choices[0].trials)
    first.path.mkdir(parents=True)
    (first.path / "failure.txt").write_text("the loss is not finite\n")
    finish(second, float("nan"))
    finish(third, 5.0)
    cell = next(cell for cell in plan_cells(maker, (0,), choices) if cell.row == "SFL")
    assert cell.path == third.path
    third.path.joinpath("summary.json").unlink()
    (third.path / "failure.txt").write_text("no memory\n")
    cell = next(cell for cell in plan_cells(maker, (0,), choices) if cell.row == "SFL")
    assert cell.experiment is None
    assert "every trial has failed: the loss is not finite; no memory" in cell.problem


def test_what_the_command_line_says_is_not_chosen(choosing, choices_of):
    maker, choices = choices_of(choosing, "train.learning-rate=0.3")
    assert choices[0].trials == ()
    cell = next(cell for cell in plan_cells(maker, (0,), choices) if cell.row == "SFL")
    assert (cell.experiment.train.learning_rate, cell.chosen) == (0.3, "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choose-by": ""}, "row 'SFL' has settings to choose: give [table] choose-by"),
        ({"choose-by": "test/accuracy"}, "'test/accuracy': settings must be chosen on validation data"),
        ({"choose-by": "validation/accuracy:std"}, "has no better or worse values"),
    ],
)
def test_only_validation_data_choose(choosing, write, change, message):
    choosing["table"] |= change
    with pytest.raises(ExperimentError) as error:
        load_table(str(write(choosing)))
    assert message in str(error.value)


@pytest.mark.parametrize("choose", [{"rate": [1]}, {"train.learning-rate": []}, {"train": [{"momentum": 1}]}])
def test_what_cannot_be_chosen_is_refused(choosing, write, choose):
    choosing["rows"][1]["choose"] = choose
    with pytest.raises(ExperimentError, match="choose"):
        load_table(str(write(choosing)))
