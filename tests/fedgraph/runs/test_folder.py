import hashlib
import json
import logging
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import tomli_w
import torch

from fedgraph.data import parse_data
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.traffic import Traffic
from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.models.parameters import Layout
from fedgraph.runs.callbacks import EarlyStopping, Evaluation, Training
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.recorder import Recorder
from fedgraph.runs.result_files import load_models, write_models
from fedgraph.runs.summary import summary_of
from fedgraph.support.errors import RunError

NAMES = ("a", "b")
SUMMARY_KEYS = [
    "experiment", "method", "data", "clients", "rounds", "exchanges", "bytes_down", "bytes_up", "nodes",
    "bytes_down_per_client", "bytes_up_per_client", "seconds",
    "metrics", "per_client", "weights_sha256",
]  # fmt: skip


@pytest.fixture
def folder(digits_tables, tmp_path):
    return RunFolder.create(parse_experiment(digits_tables), tmp_path)


def lines(folder):
    return [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]


def training(server_round, loss=(1.0, 2.0), absent=None):
    return Training(server_round, NAMES, torch.tensor(loss), absent or {}, 0.25, Traffic(1, 40, 30, 80, 60))


def evaluation(server_round, **metrics):
    values = {name.replace("__", "/"): torch.tensor(value) for name, value in metrics.items()}
    return Evaluation(server_round, NAMES, values, torch.full((2, 3), float(server_round)))


def rounds(recorder, first, last):
    for server_round in range(first, last + 1):
        recorder.on_training(training(server_round))
        recorder.on_evaluation(evaluation(server_round, test__loss=[1.0 / server_round, 3.0]))
        recorder.on_round_end(server_round, lambda r=server_round: {"models": torch.full((2, 3), float(r))})


# ---- the folder


def test_a_new_folder_holds_the_resolved_experiment_and_the_environment(folder, digits_tables):
    assert sorted(path.name for path in folder.path.iterdir()) == ["environment.json", "experiment.toml"]
    assert folder.name.startswith("small-sfl-20")
    assert "on-missing" in (folder.path / "experiment.toml").read_text()
    environment = json.loads((folder.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__.partition("+")[0] or environment["packages"]["torch"]
    assert {"fedgraph", "commit", "python", "cores", "cuda", "command"} <= set(environment)
    assert not folder.is_finished


def test_runs_of_the_same_second_get_folders_of_their_own(digits_tables, tmp_path, monkeypatch):
    monkeypatch.setattr("fedgraph.runs.folder.time.strftime", lambda form: "20300101-120000")
    names = [RunFolder.create(parse_experiment(digits_tables), tmp_path).name for _ in range(3)]
    assert names == [f"small-sfl-20300101-120000{end}" for end in ("", "-2", "-3")]


@pytest.mark.parametrize(("name", "kept"), [("sfl", "sfl"), ("sfl-here", "sfl-here"), ("sflower", "sflower-sfl")])
def test_a_method_that_the_name_begins_with_is_not_named_twice(name, kept, digits_tables, tmp_path):
    digits_tables["experiment"]["name"] = name
    assert RunFolder.create(parse_experiment(digits_tables), tmp_path).name.startswith(f"{kept}-20")


def test_what_a_run_has_written_keeps_its_folder(folder, digits_tables, tmp_path):
    (folder.path / "logs").mkdir()
    (folder.path / "logs" / "run.log").touch()
    (folder.path / ".lock").touch()
    graph = folder.path / "graph.npz"
    graph.touch()
    assert not folder.remove_unless_begun()
    graph.unlink()
    assert folder.remove_unless_begun()
    assert not folder.path.exists()


def test_a_folder_that_cannot_be_made(digits_tables, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot create the run folder .*/file/small-"):
        RunFolder.create(parse_experiment(digits_tables), tmp_path / "file")


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is not a run folder: it has no experiment.toml"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunError, match="no run folder .*gone: `fedgraph runs` lists those in the folder runs"):
        RunFolder.open(tmp_path / "gone")


def test_a_run_is_found_by_the_name_that_the_list_has(folder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "runs").symlink_to(folder.path.parent)
    assert RunFolder.open(folder.name).path == folder.path


@pytest.mark.process
def test_a_second_process_is_refused_until_the_first_is_gone(folder):
    code = (
        "import sys; from pathlib import Path; from fedgraph.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="another process is still running .*small-"), folder.locked(wait=0.0):
            pass
    finally:
        other.kill()
        other.communicate()
    with folder.locked(wait=0.0):
        pass


def test_the_lock_is_let_go_after_an_error(folder):
    with pytest.raises(ZeroDivisionError), folder.locked():
        raise ZeroDivisionError
    with folder.locked(wait=0.0):
        pass


def test_log_file(folder):
    handler = folder.log_to_file()
    logging.getLogger("fedgraph").warning("something to know")
    logging.getLogger("fedgraph").removeHandler(handler)
    handler.close()
    assert "WARNING something to know" in (folder.path / "logs" / "run.log").read_text()


# ---- models


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_models_read_back_into_the_twin(folder, clients):
    task = TaskSpec("classification", (4,), (3,))
    model = build({"name": "mlp", "hidden": [5]}, task)
    matrix = torch.randn(clients, model.layout.num_parameters, generator=torch.Generator().manual_seed(0))
    names = [f"client {i}/é" for i in range(clients)]
    write_models(folder.models, model.layout, names, matrix, matrix.mean(dim=0))
    by_client, shared = load_models(folder.path / "models.safetensors")
    assert list(by_client) == names
    inputs = torch.randn(clients, 6, 4)
    stacked, _ = model.forward(model.layout.unflatten(matrix), inputs, training=False)
    twin = model.twin()
    for position, name in enumerate(names):
        twin.load_state_dict(by_client[name])
        torch.testing.assert_close(twin(inputs[position]), stacked[position])
    twin.load_state_dict(shared)
    assert torch.equal(model.layout.flatten({k: v[None] for k, v in twin.state_dict().items()})[0], matrix.mean(dim=0))


def test_models_that_are_all_the_same_and_no_global_one(folder):
    layout = Layout.of({"w": torch.zeros(2, 2), "b": torch.zeros(2)})
    write_models(folder.models, layout, NAMES, torch.arange(6.0).expand(2, 6), None)
    by_client, shared = load_models(folder.path / "models.safetensors")
    assert shared is None
    assert by_client["b"]["w"].tolist() == [[0, 1], [2, 3]]
    assert by_client["a"]["b"].tolist() == [4, 5]


# ---- the recorder


def test_lines_of_metrics(folder):
    recorder = Recorder(folder, NAMES, 1)
    recorder.on_training(training(1, (0.5, float("nan")), {"b": "no reply in time"}))
    stops = recorder.on_evaluation(
        evaluation(1, validation__loss=[1.0, float("nan")], test__loss=[2.0, 4.0], test__accuracy=[0.5, 1.0])
    )
    assert stops is False
    train, validation, test = lines(folder)
    assert train == {
        "round": 1,
        "phase": "training",
        "split": "train",
        "metrics": {"loss": {"mean": 0.5, "std": 0.0, "best5": 0.5, "worst5": 0.5}},
        "per_client": {"loss": {"a": 0.5, "b": None}},
        "absent": {"b": "no reply in time"},
        "seconds": 0.25,
        "bytes_down": 40,
        "bytes_up": 30,
        "bytes_down_alone": 80,
        "bytes_up_alone": 60,
    }
    assert list(validation) == ["round", "phase", "split", "metrics", "per_client", "absent"]
    assert validation["per_client"] == {"loss": {"a": 1.0, "b": None}}
    assert test["split"] == "test"
    assert test["metrics"]["loss"] == {"mean": 3.0, "std": 1.0, "best5": 2.0, "worst5": 4.0}
    assert test["metrics"]["accuracy"]["best5"] == 1.0


def test_resume_takes_back_everything_and_cuts_off_later_lines(folder):
    watched = EarlyStopping("test/loss", 9)
    recorder = Recorder(folder, NAMES, 2, [watched], lambda: {"seconds": 7.0, "exchanges": 5})
    for server_round in range(1, 6):
        watched.on_evaluation(evaluation(server_round, test__loss=[1.0 / server_round, 1.0]))
        rounds(recorder, server_round, server_round)
    again = EarlyStopping("test/loss", 9)
    saved = Recorder(folder, NAMES, 2, [again]).resume()
    assert saved["round"] == 4
    assert saved["clients"] == list(NAMES)
    assert saved["counters"] == {"seconds": 7.0, "exchanges": 5}
    assert saved["strategy"]["models"].tolist() == [[4.0] * 3] * 2
    assert again.best_round == 4
    assert [line["round"] for line in lines(folder)] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_line_that_was_cut_short_by_a_kill_is_dropped(folder):
    rounds(Recorder(folder, NAMES, 1), 1, 2)
    with (folder.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 3, "phase": "tra')
    recorder = Recorder(folder, NAMES, 1)
    assert recorder.resume()["round"] == 2
    rounds(recorder, 3, 3)
    assert [line["round"] for line in lines(folder)] == [1, 1, 2, 2, 3, 3]


def test_without_a_checkpoint_a_run_starts_anew(folder):
    rounds(Recorder(folder, NAMES, 10), 1, 2)
    recorder = Recorder(folder, NAMES, 10)
    assert recorder.resume() is None
    rounds(recorder, 1, 1)
    assert [line["round"] for line in lines(folder)] == [1, 1]


def test_a_metrics_file_shorter_than_the_checkpoint_says_is_not_filled_with_zeros(folder):
    rounds(Recorder(folder, NAMES, 1), 1, 3)
    size = (folder.path / "metrics.jsonl").stat().st_size
    os.truncate(folder.path / "metrics.jsonl", size - 100)
    Recorder(folder, NAMES, 1).resume()
    assert b"\0" not in (folder.path / "metrics.jsonl").read_bytes()


def test_a_broken_checkpoint_is_named(folder):
    folder.checkpoint.write_bytes(b"nonsense")
    with pytest.raises(RunError, match="cannot read the saved state .*checkpoint"):
        Recorder(folder, NAMES, 1).resume()


def test_what_was_measured_is_read_back_round_by_round(folder):
    recorder = Recorder(folder, NAMES, 1)
    rounds(recorder, 1, 2)
    recorder.on_evaluation(evaluation(2, validation__loss=[5.0, 6.0]))
    recorder.on_evaluation(Evaluation(2, NAMES, {"test/loss": torch.zeros(2)}, torch.zeros(2, 3), restored=True))
    folder.append({"round": 3, "phase": "fusion"})
    read = [(line["round"], line["per_client"]["loss"]["a"]) for line in folder.evaluations("test")]
    assert read == [(1, 1.0), (2, 0.5)], "not of models that are those of an earlier round"
    assert [line["round"] for line in folder.evaluations("validation")] == [2]


# ---- the summary of a whole run


def test_schema_of_the_summary(digits_tables):
    measured = evaluation(3, validation__loss=[1.0, float("inf")], test__loss=[1.0, float("nan")])
    traffic = Traffic(5, 600, 70, 1000, 80)
    summary = summary_of(parse_experiment(digits_tables), NAMES, "some data", 3, traffic, 1.23456, measured, "abc", 4)
    assert list(summary) == [*SUMMARY_KEYS[:-1], "not_measured", SUMMARY_KEYS[-1]]
    assert set(summary["not_measured"]) == {"validation", "test"}
    assert all(set(clients) == {"b"} for clients in summary["not_measured"].values())
    assert summary["metrics"]["test"] == {"loss": {"mean": 1.0, "std": 0.0, "best5": 1.0, "worst5": 1.0}}
    assert summary["per_client"] == {
        "validation": {"loss": {"a": 1.0, "b": None}},
        "test": {"loss": {"a": 1.0, "b": None}},
    }
    assert (summary["exchanges"], summary["bytes_down"], summary["bytes_up"]) == (5, 600, 70)
    assert (summary["nodes"], summary["bytes_down_per_client"], summary["bytes_up_per_client"]) == (4, 500.0, 40.0)
    assert (summary["experiment"], summary["method"], summary["clients"], summary["seconds"]) == (
        "small",
        "sfl",
        2,
        1.235,
    )
    json.dumps(summary, allow_nan=False)
    noted = {"fairness": {"last": 1.0}}
    again = summary_of(
        parse_experiment(digits_tables), NAMES, "some data", 3, traffic, 1.23456, measured, "abc", 4, noted=noted
    )
    assert again == {**summary, **noted}


def test_metrics_of_each_group_in_the_summary(digits_tables):
    names, groups = ("a", "b", "c", "d"), ("warm", "cold", "warm", "cold")
    metrics = {
        "validation/loss": torch.tensor([1.0, 2.0, 5.0, math.nan]),
        "test/mae": torch.tensor([4.0, 1.0, 2.0, 3.0]),
    }
    measured = Evaluation(3, names, metrics, torch.zeros(4, 1))
    experiment = parse_experiment(digits_tables)
    summary = summary_of(experiment, names, "some data", 3, Traffic(), 1.0, measured, "abc", groups=groups)
    assert summary["groups"] == {"a": "warm", "b": "cold", "c": "warm", "d": "cold"}
    assert summary["per_group"] == {
        "validation": {
            "cold": {"loss": {"mean": 2.0, "std": 0.0, "best5": 2.0, "worst5": 2.0}},
            "warm": {"loss": {"mean": 3.0, "std": 2.0, "best5": 1.0, "worst5": 5.0}},
        },
        "test": {
            "cold": {"mae": {"mean": 2.0, "std": 1.0, "best5": 1.0, "worst5": 3.0}},
            "warm": {"mae": {"mean": 3.0, "std": 1.0, "best5": 2.0, "worst5": 4.0}},
        },
    }
    json.dumps(summary, allow_nan=False)


def test_cold_clients_of_a_whole_run_have_a_group_and_a_model(run_experiment):
    """Also where a node hosts nobody but clients that are never trained."""
    tables = {
        "experiment": {"name": "cold", "method": "local", "rounds": 1},
        "data": {"set": "synthetic-traffic", "sensors": 4, "days": 2, "cold-trains": False,
                 "cold-clients": ["sensor-002", "sensor-003"]},
        "model": {"name": "mlp", "hidden": [2]},
        "train": {"local-steps": 2, "batch-size": 8},
        "evaluation": {"splits": ["test"]},
    }  # fmt: skip
    folder = run_experiment(tables, nodes=2)
    summary = folder.summary()
    assert list(summary["groups"].values()) == ["warm", "warm", "cold", "cold"]
    assert set(summary["per_group"]["test"]) == {"cold", "warm"}
    assert all(value is not None for value in summary["per_client"]["test"]["mae"].values())
    loss = next(line for line in lines(folder) if line["phase"] == "training")["per_client"]["loss"]
    assert [value is None for value in loss.values()] == [False, False, True, True]
    assert "of them 2 cold, scaled by the last 288 steps" in summary["data"]


@pytest.mark.parametrize("method", ["sfl", "local", "fedavg"])
def test_what_a_whole_run_leaves_behind(digits_tables, run_experiment, method):
    digits_tables["experiment"]["method"] = method
    folder = run_experiment(digits_tables)
    files = {path.name for path in folder.path.iterdir()} - {"nodes"}
    expected = {
        "experiment.toml",
        "environment.json",
        "graph.npz",
        "graph.json",
        "metrics.jsonl",
        "checkpoint.safetensors",
    }
    assert files == expected | {"models.safetensors", "summary.json", "logs", ".lock"}
    summary = json.loads((folder.path / "summary.json").read_text())
    # The graph of these few clients has no edges, which matters to the one that aggregates over it.
    told = {"notes"} if method == "sfl" else set()
    noted = {"training", "models_per_round", "run", "task", "trained", "core_seconds"}
    assert set(summary) == {*SUMMARY_KEYS, *told, *noted}
    assert not told or "the client graph has no edges" in summary["notes"][0]
    names = [f"client-{i}" for i in range(6)]
    assert (summary["clients"], summary["rounds"]) == (6, 2)
    for split in ("validation", "test"):
        for metric in ("accuracy", "loss", "f1"):
            values = summary["per_client"][split][metric]
            assert list(values) == names
            spread = summary["metrics"][split][metric]
            assert list(spread) == ["mean", "std", "best5", "worst5"]
            assert spread["mean"] == pytest.approx(np.mean(list(values.values())))
    by_client, shared = load_models(folder.path / "models.safetensors")
    assert list(by_client) == names
    assert (shared is None) == (method == "local")
    digest = hashlib.sha256()
    for name in names:
        row = torch.cat([by_client[name][part].flatten() for part in _layout(digits_tables).names])
        digest.update(name.encode() + b"\0" + row.numpy().astype("<f4").tobytes())
    assert summary["weights_sha256"] == digest.hexdigest()
    *_, last = folder.evaluations("test")
    assert last["round"] == 2
    examples, size = 1294, parse_experiment(digits_tables).train.batch_size
    assert summary["training"]["passes"] == 2
    assert examples / size <= summary["training"]["minibatches"] / 2 < examples / size + 6
    assert last["per_client"] == summary["per_client"]["test"]


def _layout(tables):
    return build(tables["model"], TaskSpec("classification", (1, 8, 8), (10,))).layout


def test_the_graph_file_holds_the_graph_of_the_run(digits_tables, run_experiment):
    from fedgraph.graph import read_graph

    digits_tables["graph"] = {"source": "complete"}
    digits_tables["experiment"]["rounds"] = 0
    graph = read_graph(run_experiment(digits_tables).path / "graph.npz")
    assert graph.names == tuple(f"client-{i}" for i in range(6))
    assert graph.dense().sum() == 30


def test_the_log_of_a_run_tells_of_every_round(digits_tables, run_experiment, monkeypatch):
    logger = logging.getLogger("fedgraph")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    log = (run_experiment(digits_tables).path / "logs" / "run.log").read_text()
    for server_round in (1, 2):
        assert f"round {server_round}/2: training loss" in log
        assert f"after round {server_round}: " in log


@pytest.mark.parametrize(("clients", "told"), [(1, True), (2, False)])
def test_one_client_alone_is_noted(tmp_path, clients, told):
    folder = RunFolder(tmp_path)
    folder.notes.append("first")
    folder.write_summary({"clients": clients, "notes": ["last"]})
    notes = folder.summary()["notes"]
    assert (notes[0], notes[-1]) == ("first", "last")
    assert any("nothing was federated" in note for note in notes) == told


def test_other_data_are_told_key_by_key_with_the_run_that_has_them(tmp_path):
    tables = {"set": "mixed-table", "path": "a.csv", "clients": 2, "table-schema": {"drop": ["name"]}}
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps({"data": tables}))
    other = parse_data({"set": "mixed-table", "path": "a.csv", "client-column": "ward", "table-schema": {}})
    assert RunFolder(tmp_path).other_data(other, "the second run") == {
        "client-column": f"client-column is not set in {tmp_path.name} and 'ward' in the second run",
        "clients": f"clients is 2 in {tmp_path.name} and not set in the second run",
        "table-schema": f"table-schema.drop is ['name'] in {tmp_path.name} and [] in the second run",
    }


def test_a_resumed_run_notes_that_its_file_has_changed(tmp_path, digits_tables):
    rows = tmp_path / "rows.csv"
    rows.write_text("x,y\n1,2\n")
    experiment = parse_experiment({**digits_tables, "data": {"set": "table", "path": str(rows), "label": "y"}})
    folder = RunFolder.create(experiment, tmp_path)
    folder.begin_or_go_on(experiment)
    folder.checkpoint.touch()
    folder.begin_or_go_on(experiment)
    assert folder.notes == []
    rows.write_text("x,y\n1,3\n")
    folder.begin_or_go_on(experiment)
    assert folder.notes == [
        "the file of data.path has changed since the run began: earlier rounds were run with the old one"
    ]
