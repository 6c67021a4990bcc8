"""``fedgraph worth``: rows, differences by seed, the verdict, and that nothing is run twice."""

from __future__ import annotations

import html
import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

import fedgraph
from fedgraph.commands import cli
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.spreads import Spread
from fedgraph.reproduce.worth.verdict import ALONE, AVERAGE, TUNED, Effect, Worth
from fedgraph.support.errors import ExperimentError, RunError

OWN, PERMUTED = "sfl", "sfl over a permuted graph"


def spread(*values):
    return Spread.over(dict(enumerate(values)))


def test_an_effect_is_the_mean_of_changes_by_seed_with_students_interval():
    ours, theirs = np.array([2.0, 2.2, 1.9]), np.array([2.5, 2.4, 2.4])
    found = Effect.between(spread(*ours), spread(*theirs), is_error=True)
    change = 100 * (ours / theirs - 1)
    low, high = stats.t.interval(0.95, 2, change.mean(), stats.sem(change))
    assert (found.mean, found.low, found.high) == pytest.approx((change.mean(), low, high))
    points = Effect.between(spread(*ours), spread(*theirs), is_error=False)
    assert points.mean == pytest.approx(100 * (ours - theirs).mean())


def test_no_error_is_relative_to_one_of_0():
    with pytest.raises(RunError, match="with seed 1 .* error of 0"):
        Effect.between(spread(0.2, 0.1), spread(0.1, 0.0), is_error=True)
    assert Effect.between(spread(0.2, 0.1), spread(0.1, 0.0), is_error=False).mean == pytest.approx(10)


@pytest.mark.parametrize(
    ("ours", "is_error", "relation"),
    [
        ((1.0, 1.1, 1.05), True, "better"),
        ((1.0, 1.1, 1.05), False, "worse"),
        ((3.0, 3.1, 3.05), True, "worse"),
        ((2.9, 1.1, 2.0), True, "level"),
    ],
)
def test_a_relation_is_clear_where_the_interval_is_on_one_side(ours, is_error, relation):
    assert Effect.between(spread(*ours), spread(2.0, 2.1, 2.05), is_error).relation == relation


def worth_of(tmp_path, **accuracies):
    spreads = {OWN: spread(0.90, 0.91, 0.92)} | {
        label: spread(*(value + noise for noise in (0.0, 0.012, 0.018))) for label, value in accuracies.items()
    }
    effects = {label: Effect.between(spreads[OWN], each, False) for label, each in spreads.items() if label != OWN}
    settings = {label: [f'experiment.method="{label}"'] for label in spreads}
    return Worth(OWN, "validation/accuracy", spreads, effects, settings, "my digits.toml", tmp_path)


def test_a_graph_that_pays(tmp_path):
    found = worth_of(tmp_path, **{ALONE: 0.7, AVERAGE: 0.8, TUNED: 0.8, PERMUTED: 0.75})
    assert found.pays
    assert found.verdict.startswith("Yes: neighbours help (+20.0 points [")
    assert "the graph itself helps (+15.0 points [" in found.verdict
    assert f"{TUNED} is behind (+10.0 points [" in found.verdict
    assert found.best == OWN
    assert found.command == "fedgraph run 'my digits.toml' --set 'experiment.method=\"sfl\"'"


@pytest.mark.parametrize(
    ("rivals", "said"),
    [
        ({ALONE: 0.7, TUNED: 0.95, PERMUTED: 0.7}, f"{TUNED} is better (-5.0 points ["),
        ({ALONE: 0.7, TUNED: 0.9, PERMUTED: 0.7}, f"{TUNED} makes no clear difference ("),
        ({ALONE: 0.7, TUNED: 0.7, PERMUTED: 0.9}, "the graph itself makes no clear difference ("),
        ({ALONE: 0.96, TUNED: 0.7, PERMUTED: 0.7}, "neighbours hurt (-6.0 points ["),
    ],
)
def test_one_rival_that_is_not_behind_is_enough_for_a_no(tmp_path, rivals, said):
    found = worth_of(tmp_path, **{AVERAGE: 0.8, **rivals})
    assert not found.pays
    assert found.verdict.startswith("No: ")
    assert said in found.verdict


def test_a_permuted_graph_is_a_control_and_nothing_to_go_on_with(tmp_path):
    assert worth_of(tmp_path, **{ALONE: 0.7, AVERAGE: 0.8, TUNED: 0.85, PERMUTED: 0.99}).best == OWN


def test_an_interval_without_width_is_doubted(tmp_path):
    found = worth_of(tmp_path, **{ALONE: 0.7, AVERAGE: 0.8, TUNED: 0.8, PERMUTED: 0.75})
    assert "Every seed" not in found.verdict
    for label in (ALONE, TUNED):
        found.effects[label] = Effect.between(spread(0.9, 0.8, 0.7), spread(0.7, 0.6, 0.5), False)
    found.effects[PERMUTED] = Effect.between(spread(0.9, 0.8), spread(0.9, 0.8), False)
    end = f"Every seed gave the same difference against {ALONE}, {TUNED}: the seed may change nothing here."
    assert found.verdict.endswith(end)


@pytest.fixture
def tables(digits_tables):
    digits_tables["experiment"] |= {"rounds": 2, "method": "sfl"}
    return digits_tables


def test_every_row_is_run_with_every_seed_and_once(tables, tmp_path):
    call = {"seeds": (0, 1), "rates": (1.0, 2.0), "out": tmp_path, "progress": False}
    found = fedgraph.worth(tables, **call)
    complete = "sfl over a complete graph"
    assert list(found.spreads) == [ALONE, AVERAGE, TUNED, OWN, PERMUTED, complete]
    assert all(list(each.values) == [0, 1] for each in found.spreads.values())
    assert found.metric == "validation/accuracy"
    assert found.frame.loc[ALONE, "change"] == pytest.approx(
        100 * (found.frame.loc[OWN, ["seed 0", "seed 1"]] - found.frame.loc[ALONE, ["seed 0", "seed 1"]]).mean()
    )
    # Six rows, of which the first seed has two rates each.
    cells = sorted((tmp_path / "cells").glob("*/summary.json"))
    assert len(cells) == 6 * 3
    written = [cell.stat().st_mtime_ns for cell in cells]
    assert fedgraph.worth(tables, **call).spreads == found.spreads
    assert [cell.stat().st_mtime_ns for cell in cells] == written
    assert found.verdict in (found.folder / "worth.md").read_text()
    page = (found.folder / "worth.html").read_text()
    assert found.verdict in html.unescape(page)
    assert all(f"<th>{label}</th>" in page.replace("\n", "") for label in (OWN, ALONE, PERMUTED))
    kept = {line.place: float(line.value) for line in found.result_lines()}
    assert kept[OWN, found.experiment, "mean"] == pytest.approx(found.spreads[OWN].mean, rel=1e-5)
    assert kept["verdict", found.experiment, "pays"] == found.pays
    assert (OWN, found.experiment, "change") not in kept
    finished = [json.loads(path.read_text())["seconds"] for path in (tmp_path / "cells").glob("*/summary.json")]
    assert found.seconds == pytest.approx(sum(finished))
    assert all(each.startswith("train.learning-rate=") for each in found.settings[OWN])
    run = fedgraph.run(tables, set=found.settings[ALONE], out=tmp_path / "again", progress=False)
    assert run.method == "local"
    console = Console(width=200, record=True, quiet=True)
    console.print(found)


def test_targets_on_test_data_are_left_out_and_must_not_end_runs(tables, tmp_path):
    tables["experiment"]["method"] = "ditto"
    tables["evaluation"] = {"targets": {"test/accuracy": 0.5, "validation/accuracy": 0.01}}
    call = {"seeds": (0, 1), "rates": (1.0,), "out": tmp_path, "progress": False}
    fedgraph.worth(tables, **call)
    (run, *_) = (tmp_path / "cells").glob("*/summary.json")
    assert list(json.loads(run.read_text())["rounds_to_target"]) == ["validation/accuracy"]
    tables["evaluation"]["stop-at-targets"] = "mean"
    with pytest.raises(ExperimentError, match="stop-at-targets ends runs by test/accuracy"):
        fedgraph.worth(tables, **call)


def test_a_row_is_not_judged_without_the_seeds_with_which_it_has_no_value(tables, tmp_path, monkeypatch):
    value = Results.value

    def lacking(results, outcome, row, column, metric):
        diverged = row.label == AVERAGE and outcome.cell.seed == 1
        return None if diverged else value(results, outcome, row, column, metric)

    tables["experiment"] |= {"method": "ditto", "rounds": 1}
    monkeypatch.setattr(Results, "value", lacking)
    with pytest.raises(RunError, match="'FedAvg' has no value of validation/accuracy with seed 1: "):
        fedgraph.worth(tables, seeds=(0, 1, 2), rates=(1.0,), out=tmp_path, progress=False)


def test_a_method_without_a_graph_has_no_controls_of_one(tables, tmp_path):
    tables["experiment"]["method"] = "ditto"
    found = fedgraph.worth(tables, seeds=(0, 1), rates=(1.0,), out=tmp_path, progress=False)
    assert list(found.spreads) == [ALONE, AVERAGE, TUNED, "ditto"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": (3,)}, "at least two seeds"),
        ({"rates": ()}, "rates must be positive factors"),
        ({"metric": "test/accuracy"}, "validation/accuracy"),
        ({"set": {"experiment.method": "f3"}}, "f3"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_run(tables, tmp_path, given, message):
    with pytest.raises(ExperimentError, match=message):
        fedgraph.worth(tables, out=tmp_path, progress=False, **given)
    assert not list((tmp_path / "cells").glob("*"))


def test_the_command_prints_the_verdict_and_where_it_is(tables, tmp_path):
    import tomli_w

    file = tmp_path / "small.toml"
    file.write_bytes(tomli_w.dumps(tables).encode())
    options = ["--seeds", "0,1", "--rates", "1", "--out", str(tmp_path / "out"), "--jobs", "2", "-q"]
    options += ["--results", str(tmp_path / "results.csv"), "--set", "train.batch-size=32"]
    result = CliRunner().invoke(cli.app, ["worth", str(file), *options])
    assert result.exit_code == 0, result.output
    assert "worth.html" in result.output
    assert "--set train.batch-size=32 --set" in " ".join(result.output.split())
    kept = (tmp_path / "results.csv").read_text().replace(str(file), "small")
    assert "verdict,small --set train.batch-size=32,pays," in kept
    assert "fedgraph worth small --set train.batch-size=32" in kept
    assert "against training alone" in result.output
    result = CliRunner().invoke(cli.app, ["worth", str(file), "--seeds", "0,a"])
    assert result.exit_code == 1
    assert "--seeds takes whole numbers with commas between them; got '0,a'" in result.output


def test_only_what_is_given_in_per_cent_is_in_points():
    ours, theirs = spread(0.5, 0.6, 0.7), spread(0.4, 0.49, 0.61)
    assert str(Effect.between(ours, theirs, is_error=False)).startswith("+10.0 points [")
    plain = Effect.between(ours, theirs, is_error=False, in_points=False)
    assert plain.mean == pytest.approx(0.1)
    assert str(plain).startswith("+0.100 [+0.")
    assert "score" not in f"{plain}{Effect.between(ours, theirs, is_error=False)}"
    in_points = ("validation/accuracy", "validation/f1-local", "validation/r2-recall:worst5")
    assert all(Quantity.of(text).is_share for text in in_points)
    plain_numbers = ("validation/r2", "validation/accuracy-r2", "validation/auc", "validation/accuracy:fairness")
    assert not any(Quantity.of(text).is_share for text in plain_numbers)


def test_a_score_that_is_no_share_is_told_in_its_own_unit(tmp_path):
    spreads = {OWN: spread(0.5, 0.6, 0.7)} | dict.fromkeys((ALONE, TUNED), spread(0.4, 0.49, 0.61))
    effects = {label: Effect.between(spreads[OWN], spreads[label], False, False) for label in (ALONE, TUNED)}
    found = Worth(OWN, "validation/r2", spreads, effects, {label: [] for label in spreads}, "x.toml", tmp_path)
    assert found.verdict.startswith("Yes: neighbours help (+0.100 [+0.")


def test_data_frames_take_the_place_of_paths_and_changed_ones_are_run_anew(tmp_path):
    rows = pd.DataFrame({"a": range(60), "site": ["p", "q"] * 30, "y": [row % 3 % 2 for row in range(60)]})
    found = []
    for factor in (1, 5):
        data = {"set": "table", "path": rows.assign(y=factor * rows["y"]), "label": "y", "task": "regression",
                "client-column": "site"}  # fmt: skip
        tables = {"experiment": {"method": "sfl", "rounds": 1}, "data": data, "graph": {"source": "complete"}}
        tables["model"] = {"name": "mlp", "hidden": [2]}
        found.append(fedgraph.worth(tables, seeds=(0, 1), rates=(1,), out=tmp_path, progress=False))
    assert found[0].metric == "validation/mae"
    assert found[0].folder != found[1].folder
    assert found[0].spreads["sfl"].mean != found[1].spreads["sfl"].mean
