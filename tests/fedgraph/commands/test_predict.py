"""``fedgraph predict``, in the clear and on secret shares."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

import fedgraph
from fedgraph.commands.cli import app


@pytest.fixture
def trained(patches_tables, run_experiment):
    patches_tables["data"] |= {"new-share": 0.05}
    patches_tables["f3"] |= {"hidden": 2}
    return run_experiment(patches_tables)


@pytest.mark.usefixtures("leave_no_trace")
def test_predictions_on_shares_by_the_command(trained, data_dir):
    found = {}
    for options in ([], ["--secret", "2-of-3", "--set", "f3-secret.map-bits=8"]):
        result = CliRunner().invoke(app, ["predict", str(trained.path), "--data-dir", str(data_dir), *options])
        assert result.exit_code == 0, result.output
        assert "samples predicted" in result.output
        assert ("3 exchanges, 0.0" in result.output) == bool(options)
        path = result.output.strip().splitlines()[-1]
        with open(path) as stream:
            found[len(options)] = list(csv.DictReader(stream))
    clear, secret = found.values()
    assert len(clear) == len(secret) > 50
    for one, other in zip(clear, secret, strict=True):
        assert one["key"] == other["key"]
        assert float(one["probability 3"]) == pytest.approx(float(other["probability 3"]), abs=0.01)
    assert clear != secret


@pytest.mark.usefixtures("leave_no_trace")
def test_the_bound_on_errors_is_smaller_with_the_keys_that_are_named(trained, data_dir):
    def bound(*options):
        command = ["predict", str(trained.path), "--data-dir", str(data_dir), "--secret", "2-of-3", *options]
        output = CliRunner().invoke(app, command).output
        folder = Path(output.strip().splitlines()[-1]).parent
        named = re.search(r"now (--set \S+ --set \S+)", output)[1].split()
        return json.loads((folder / "summary.json").read_text())["probability_error_bound"], named

    usual, named = bound("--set", "f3-secret.map-bits=8")
    assert named == ["--set", "f3-secret.largest=16", "--set", "f3-secret.map-bits=8"]
    smaller, named = bound("--set", "f3-secret.largest=8", "--set", "f3-secret.map-bits=8")
    assert smaller < 0.7 * usual
    assert bound(*named[:3], "f3-secret.map-bits=9")[0] < 0.9 * smaller


@pytest.mark.usefixtures("leave_no_trace")
def test_samples_that_a_run_has_predicted_are_predicted_alike(patches_tables, run_experiment, data_dir):
    """By as many graphs as the run had: 10 would be the default of an inference."""
    patches_tables["f3"] |= {"draws": 3}
    folder = run_experiment(patches_tables)

    def probabilities(path):
        with open(path) as stream:
            lines = [line for line in csv.DictReader(stream) if line["split"] == "test"]
        return [[float(line[f"probability {digit}"]) for digit in range(10)] for line in lines]

    command = ["predict", str(folder.path), "--data-dir", str(data_dir), "--samples", "test"]
    known = np.array(probabilities(folder.path / "predictions.csv"))
    assert len(known) > 200
    for options, alike in ([], True), (["--draws", "4"], False):
        output = CliRunner().invoke(app, [*command, *options]).output
        # The samples of one split are multiplied in other batches than all of them, which may round otherwise.
        assert np.allclose(probabilities(output.strip().splitlines()[-1]), known, rtol=0, atol=2e-6) == alike


@pytest.mark.usefixtures("leave_no_trace")
def test_a_threshold_that_is_none(trained, data_dir):
    for text in ("2/3", "4-of-3", "1-of-3", "1-of-1"):
        result = CliRunner().invoke(app, ["predict", str(trained.path), "--data-dir", str(data_dir), "--secret", text])
        assert result.exit_code == 1
        assert f"secret is '{text}'; it is written like 2-of-3" in " ".join(result.output.split())
    assert not (trained.path / "predictions").exists()


def test_runs_of_other_methods_have_nothing_to_predict_with(digits_tables, tmp_path):
    (tmp_path / "environment.json").write_text("{}")
    for head, name in (({"strategy": "__main__:GoneByNow"}, "GoneByNow"), ({"method": "sfl"}, "sfl")):
        (tmp_path / "experiment.toml").write_text(tomli_w.dumps({**digits_tables, "experiment": head}))
        result = CliRunner().invoke(app, ["predict", str(tmp_path)])
        assert result.exit_code == 1
        assert f"is a run of {name}: name the data that it shall predict" in " ".join(result.output.split())


@pytest.mark.usefixtures("leave_no_trace")
def test_models_are_where_the_run_has_kept_them(patches_tables, data_dir, tmp_path, run_experiment, monkeypatch):
    elsewhere = tmp_path / "models"
    config = {"partition-id": 0, "num-partitions": 1, "model-dir": str(elsewhere)}
    folder = run_experiment(patches_tables, node_configs=[config])
    command = ["predict", str(folder.path), "--data-dir", str(data_dir), "--samples", "test"]
    output = " ".join(CliRunner().invoke(app, command).output.split())
    assert "no longer has the frozen model" in output
    assert "once that is mended, predict again" in output
    assert "--resume" not in output, "which would look for the models in the folder of the predictions"
    monkeypatch.setenv("FEDGRAPH_MODELS", str(elsewhere))
    assert "samples predicted" in CliRunner().invoke(app, command).output


@pytest.fixture
def people(tmp_path):
    """A table of four columns, of which two are each owner's, and the experiment over it."""
    random = np.random.default_rng(0)
    kind, numbers = random.choice(["a", "b", "c"], 300), random.normal(50, 10, (300, 3))
    label = np.where(numbers[:, 0] + 10 * (kind == "a") > 53, "yes", "no")
    lines = [f"p{row:03d},{kind[row]},{','.join(map(str, numbers[row].tolist()))},{label[row]}" for row in range(300)]
    (tmp_path / "people.csv").write_text("\n".join(["id,kind,age,weight,income,label", *lines]))
    tables = {
        "experiment": {"method": "f3"},
        "data": {
            "set": "table-columns", "path": str(tmp_path / "people.csv"), "label": "label", "key-column": "id",
            "owners": {"bank": ["income", "kind"], "clinic": ["age", "weight"]},
        },
        "model": {"name": "mlp", "hidden": [6]},
        "train": {"local-epochs": 20, "learning-rate": 0.05, "batch-size": 16},
        "f3": {"epochs": 3, "hidden": 4, "draws": 2},
    }  # fmt: skip
    return tables, lines


@pytest.mark.usefixtures("leave_no_trace")
@pytest.mark.parametrize("brought", [False, True])
def test_new_samples_are_scaled_and_encoded_as_in_training(people, tmp_path, brought):
    """In a file of their own, without labels: what else is in a file does not change what is said of a sample."""
    tables, lines = people
    models = {}
    if brought:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        program = torch.export.export(module, (torch.zeros(4, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
        models = {"bank": tmp_path / "bank.pt2"}
        torch.export.save(program, models["bank"])
    path = fedgraph.run(tables, models=models, out=tmp_path / "runs", progress=False).folder.path
    with open(path / "predictions.csv") as stream:
        known = {line["key"]: line for line in csv.DictReader(stream)}
    # Without the kind "a" the others would have other places, and with a few samples another scale.
    some = [line for line in lines if ",a," not in line][:7]
    without_labels = [line.rpartition(",")[0].replace("p", "n", 1) for line in some]
    (tmp_path / "new.csv").write_text("\n".join(["id,kind,age,weight,income", *without_labels]))
    found = fedgraph.predict(path, set={"data.path": str(tmp_path / "new.csv")}, progress=False).predictions
    assert len(found) == 7
    for line in found.to_dict("records"):
        for name in ("probability no", "probability yes"):
            assert line[name] == pytest.approx(float(known[line["key"].replace("n", "p", 1)][name]), abs=2e-6)


def test_the_help_describes_the_files_of_both_methods():
    told = " ".join(CliRunner().invoke(app, ["predict", "--help"]).output.split())
    assert "For a run of f3, predictions.csv has the probabilities" in told
    assert "window, time (of the forecast step), forecast, reading" in told
    assert "readings_in_window" in told


def test_one_prediction_is_told_as_one(digits_tables, tmp_path):
    rows = "".join(f"{row % 7},{row % 5},{'yes' if row % 2 else 'no'}\n" for row in range(60))
    (tmp_path / "all.csv").write_text(f"a,b,label\n{rows}")
    tables = digits_tables | {
        "data": {"set": "table", "path": str(tmp_path / "all.csv"), "label": "label", "clients": 3}
    }
    tables["experiment"] |= {"method": "fedavg", "rounds": 1}
    run = fedgraph.run(tables, out=tmp_path / "runs", progress=False)
    client = ["--client", "client-0"]
    for count, words in ((1, "1 prediction"), (2, "2 predictions")):
        (tmp_path / "new.csv").write_text("a,b\n" + "3,4\n" * count)
        told = CliRunner().invoke(app, ["predict", str(run.path), "--data", str(tmp_path / "new.csv"), *client])
        assert told.exit_code == 0, told.output
        assert words in told.output.splitlines()
