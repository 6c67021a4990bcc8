"""The command as a whole: trials, choice, files, and going on."""

import csv
import importlib.util
from pathlib import Path
from statistics import fmean, stdev

import pytest
import tomli_w
from PIL import Image
from typer.testing import CliRunner

from fedgraph.commands import cli
from fedgraph.experiment.experiment import load_experiment
from fedgraph.reproduce import execution
from fedgraph.reproduce.quantity import Quantity
from fedgraph.runs.folder import RunFolder

pytest.importorskip("optuna", reason="optuna is not installed")


@pytest.fixture
def file(digits_tables):
    digits_tables["experiment"]["rounds"] = 1
    path = Path("small.toml")
    path.write_text(tomli_w.dumps(digits_tables))
    return path


def sweep(file, *over, **options):
    arguments = ["sweep", str(file), *(part for axis in over for part in ("--over", axis)), "-q"]
    for name, value in options.items():
        arguments += [f"--{name}"] + ([] if value is True else [str(value)])
    return CliRunner().invoke(cli.app, arguments)


def folder_of():
    (folder,) = Path("sweeps").iterdir()
    return folder


def lines(folder):
    return list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))


def runs(folder):
    return {path.parent: RunFolder(path.parent) for path in (folder / "runs").glob("*/summary.json")}


def test_every_combination_is_tried_with_every_seed_and_the_best_on_validation_data_is_chosen(file):
    over = ("train.learning-rate=0.000001,0.1,0.02", "train.batch-size=16,64")
    result = sweep(file, *over, seeds="0,1", metric="validation/accuracy")
    assert result.exit_code == 0, result.output
    folder = folder_of()
    by_settings, tests = {}, {}
    for run in runs(folder).values():
        experiment, summary = load_experiment(run.path / "experiment.toml"), run.summary()
        settings = (experiment.train.learning_rate, experiment.train.batch_size)
        by_settings.setdefault(settings, []).append(summary["metrics"]["validation"]["accuracy"]["mean"])
        tests.setdefault(settings, []).append(summary["metrics"]["test"]["accuracy"]["mean"])
    assert len(by_settings) == 6
    assert {len(values) for values in by_settings.values()} == {2}
    best = max(by_settings, key=lambda settings: fmean(by_settings[settings]))
    table = lines(folder)
    assert [line["state"] for line in table] == ["complete"] * 6
    found = [float(line["validation/accuracy"]) for line in table]
    assert found == sorted(map(fmean, by_settings.values()), reverse=True)
    assert (float(table[0]["train.learning-rate"]), int(table[0]["train.batch-size"])) == best
    assert float(table[0]["deviation"]) == pytest.approx(stdev(by_settings[best]))
    chosen = load_experiment(folder / "best.toml")
    assert (chosen.train.learning_rate, chosen.train.batch_size, chosen.experiment.seed) == (*best, 0)
    # Test data shows up once: of what was chosen.
    assert result.output.count("test/") == 1
    expected = f"test/accuracy of the chosen settings: {fmean(tests[best]):.4g} ± {stdev(tests[best]):.2g}"
    assert expected in result.output
    assert "test" not in (folder / "sweep.csv").read_text()
    assert min(Image.open(folder / "sweep.png").size) > 400


def test_seeds_without_a_test_result_are_told(file, monkeypatch):
    value, asked = Quantity.value, []

    def lacking(quantity, summary):
        if quantity.split == "test":
            asked.append(summary)
        return None if asked and summary is asked[0] else value(quantity, summary)

    monkeypatch.setattr(Quantity, "value", lacking)
    result = sweep(file, "sfl.alpha=1", seeds="0,1")
    assert "(1 of 2 seeds have no finite value)" in result.output


def test_the_same_command_runs_nothing_again_and_more_trials_go_on(file, monkeypatch):
    ran = []
    run_one = execution.run_one
    monkeypatch.setattr(execution, "run_one", lambda *given, **named: (ran.append(given[0]), run_one(*given, **named)))
    over = ("train.learning-rate=0.001:0.3:log", "train.optimizer=sgd,adam")
    assert sweep(file, *over, trials=3).exit_code == 0
    first = lines(folder_of())
    assert len(ran) == len(first) == 3
    assert sweep(file, *over, trials=3).exit_code == 0
    assert lines(folder_of()) == first
    assert len(ran) == 3
    assert sweep(file, *over, trials=5).exit_code == 0
    assert len(ran) == 5
    more = {line["trial"]: line for line in lines(folder_of())}
    assert all(more[line["trial"]] == line for line in first)
    assert len(more) == 5
    for line in more.values():
        assert 0.001 <= float(line["train.learning-rate"]) <= 0.3


@pytest.mark.parametrize("over", ["train.learning-rate=0.001:0.3:log", "train.learning-rate=0.001,0.01,0.1,0.3"])
def test_a_sweep_that_was_stopped_comes_to_the_same_end(file, monkeypatch, over):
    assert sweep(file, over, trials=4, out="whole").exit_code == 0
    run_one, ran = execution.run_one, []

    def stopped_in_the_third(folder, *given, **named):
        ran.append(folder)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return run_one(folder, *given, **named)

    monkeypatch.setattr(execution, "run_one", stopped_in_the_third)
    result = sweep(file, over, trials=4)
    assert result.exit_code == 130
    assert "The same command goes on" in result.output
    assert len(lines(folder_of())) == 2
    assert sweep(file, over, trials=4).exit_code == 0
    assert len(ran) == 5, "three, of which one was stopped; it and the fourth"
    keys = ("train.learning-rate", "validation/loss", "state")
    whole = lines(next(Path("whole").iterdir()))
    assert [[line[key] for key in keys] for line in lines(folder_of())] == [
        [line[key] for key in keys] for line in whole
    ]
    assert len(whole) == 4


def test_trials_that_fail_are_told_and_run_again_unless_they_came_to_their_end(file, monkeypatch):
    over = "train.learning-rate=0.1,0.2,0.3"
    run_one, ran = execution.run_one, []

    def broken(folder, *given, **named):
        ran.append(load_experiment(folder.path / "experiment.toml").train.learning_rate)
        if ran[-1] == 0.2:
            raise OSError("no space left")
        summary = run_one(folder, *given, **named)
        if ran[-1] == 0.3:
            summary["metrics"]["validation"]["loss"]["mean"] = None
            folder.write_summary(summary)

    monkeypatch.setattr(execution, "run_one", broken)
    result = sweep(file, over)
    assert result.exit_code == 0, result.output
    table = lines(folder_of())
    assert [line["state"] for line in table] == ["complete", "failed", "failed"]
    assert [line["problem"] for line in table[1:]] == ["no space left", "validation/loss is not finite"]
    assert "no space left" in result.output
    monkeypatch.setattr(execution, "run_one", lambda *given, **named: (ran.append("again"), run_one(*given, **named)))
    assert sweep(file, over).exit_code == 0
    assert [line["state"] for line in lines(folder_of())] == ["complete", "complete", "failed"]
    assert ran == [0.1, 0.2, 0.3, "again"]


def test_nothing_is_chosen_where_all_fail(file):
    result = sweep(file, "train.learning-rate=1e30,1e35")
    assert result.exit_code == 1
    assert "nothing is chosen" in result.output
    assert not (folder_of() / "best.toml").exists()


def test_trials_that_lag_behind_are_ended(file):
    over = "train.learning-rate=0.2,0.15,0.1,0.12,0.000001,0.3"
    assert sweep(file, over, prune=True, set="experiment.rounds=5", seeds="3,4").exit_code == 0
    table = {line["train.learning-rate"]: line for line in lines(folder_of())}
    assert table["1e-06"]["state"] == "pruned"
    assert table["1e-06"]["validation/loss"] == ""
    assert [line["state"] for line in table.values()].count("complete") >= 4
    rounds = {}
    for run in runs(folder_of()).values():
        experiment = load_experiment(run.path / "experiment.toml")
        rounds[experiment.train.learning_rate, experiment.experiment.seed] = run.summary()["rounds"]
    assert rounds[1e-6, 3] < 5
    assert (1e-6, 4) not in rounds, "the other seed is not worth it"
    assert rounds[0.2, 3] == rounds[0.2, 4] == 5


def test_a_picture_has_a_part_for_each_key(file):
    assert sweep(file, "sfl.mixes=models,updates", out="one").exit_code == 0
    over = ("sfl.alpha=0.0:1.0", "sfl.hops=1:3", "train.optimizer=sgd,adam")
    assert sweep(file, *over, trials=2, out="three").exit_code == 0
    one, three = (Image.open(next(Path(out).glob("*/sweep.png"))) for out in ("one", "three"))
    assert three.width > one.width > 400


@pytest.mark.parametrize(("task", "metric"), [("regression", "mae"), ("classification", "loss")])
def test_the_metric_of_trials_follows_from_the_task(tmp_path, task, metric):
    lines = ["a,site,y", *(f"{row},{'pq'[row % 2]},{row % 3 % 2}" for row in range(60))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    data = {"set": "table", "path": str(tmp_path / "rows.csv"), "label": "y", "task": task, "client-column": "site"}
    tables = {"experiment": {"method": "sfl", "rounds": 1}, "data": data, "graph": {"source": "complete"}}
    Path("rows.toml").write_text(tomli_w.dumps(tables | {"model": {"name": "mlp", "hidden": [2]}}))
    result = sweep("rows.toml", "sfl.alpha=0,1")
    assert result.exit_code == 0, result.output
    assert f"Chosen by validation/{metric}, seed 0" in result.output
    (tmp_path / "rows.csv").write_text("\n".join([*lines, "60,p,1"]))
    assert sweep("rows.toml", "sfl.alpha=0,1").exit_code == 0
    assert len(list(Path("sweeps").iterdir())) == 2, "of changed rows"


@pytest.mark.parametrize(
    ("over", "options", "reason"),
    [
        (["sfl.alpha=0,1"], {"metric": "test/accuracy"}, "use validation/accuracy"),
        (["sfl.alpha=0,1"], {"metric": "validation/speed"}, "unknown metric 'speed'"),
        (["sfl.alpha=0,1"], {"metric": "validation/loss:std"}, "no better or worse"),
        (["sfl.alpha=0,1"], {"metric": "validation/mae"}, "was not measured; measured: validation/accuracy"),
        (["sfl.alpha=0,1"], {"set": 'evaluation.splits=["test"]'}, 'set [evaluation] splits = ["validation", "test"]'),
        (["sfl.alpha=0,1"], {"set": 'evaluation={monitor="test/loss",patience=2}'}, "monitor ends runs by test/loss"),
        (["sfl.alpa=0,1"], {}, "no key 'alpa'; known keys"),
        (["sfl.alpha=0,1", "sfl.alpha=0:1"], {}, "names each key to vary once"),
        (["sfl.alpha=0,1"], {"seeds": "0,x"}, "--seeds takes whole numbers"),
        (["sfl.alpha=0,1"], {"prune": True, "metric": "validation/loss@cold"}, "--prune needs a value after every"),
        (["sfl.alpha=0,1"], {"set": "data.set=metr-la"}, "metr-la"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused(file, over, options, reason):
    result = sweep(file, *over, **options)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_values_of_the_table_of_a_method_are_checked_with_that_method(file):
    result = sweep(file, "experiment.method=fedavg,sfl", "sfl.alpha=0.5,2")
    assert result.exit_code == 1
    assert "--over sfl.alpha: the value 2 does not fit" in result.stderr
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        (
            "sfl.alpha=0,2",
            "--over sfl.alpha: the value 2 does not fit: [sfl] alpha: Input should be less than or equal",
        ),
        ("sfl.alpha=0.0:2.0", "--over sfl.alpha: the value 2.0 does not fit: [sfl] alpha: Input should be less"),
        ("train.optimizer=sgd,sdg", "[train] optimizer: Input should be 'sgd', 'adam' or 'adamw' (got 'sdg')"),
    ],
)
def test_values_that_do_not_fit_are_refused_before_the_first_trial(file, over, reason):
    result = sweep(file, over)
    assert result.exit_code == 1
    assert reason in result.stderr
    assert not Path("sweeps").exists()


def test_methods_without_rounds_are_swept_but_not_pruned(patches_tables):
    Path("patches.toml").write_text(tomli_w.dumps(patches_tables))
    result = sweep(
        "patches.toml", "f3.learning-rates=[0.01],[0.05]", metric="validation/accuracy", trials=1, prune=True
    )
    assert "has none" in result.stderr
    result = sweep("patches.toml", "f3.learning-rates=[0.01],[0.05]", metric="validation/accuracy")
    assert result.exit_code == 0, result.output
    assert {line["f3.learning-rates"] for line in lines(folder_of())} == {"[0.01]", "[0.05]"}


def test_two_processes_do_not_share_a_sweep(file):
    from fedgraph.support.files import locked

    assert sweep(file, "sfl.hops=1,2", trials=1).exit_code == 0
    with locked(folder_of() / ".lock"):
        assert "another process is working on" in sweep(file, "sfl.hops=1,2").stderr


def test_what_to_install_is_said(file, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "optuna" else found(name))
    assert "pip install optuna (or fedgraph with its extra [sweep])" in sweep(file, "sfl.hops=1,2").stderr
