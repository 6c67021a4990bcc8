"""Forecasts of windows that come after a run of F3 for forecasts, with what its clients and the server have kept."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedgraph
from fedgraph.clients.app import app as client_app
from fedgraph.commands.cli import app
from fedgraph.fusion.forecasting import FittedForecasts
from fedgraph.models import TaskSpec, build
from fedgraph.support.errors import FedgraphError
from fedgraph.training import ClientState

KNOWN, LATER = 900, 200
INPUTS, OUTPUTS = 6, 3


@pytest.fixture
def later(road_tables, run_experiment):
    """``later(run, ...)`` forecasts with what a run has left."""

    def infer(run, nodes=2, client=client_app, on_missing="fail", **table):
        method = {key: run_keys[key] for key in ("targets", "local-rounds", "hidden") if key in run_keys}
        tables = {
            **road_tables,
            "experiment": {"method": "f3-forecast-inference", "on-missing": on_missing},
            "f3-forecast-inference": {**method, "run": str(run.path), **table},
        }
        del tables["f3-forecast"]
        configs = [
            {"partition-id": i, "num-partitions": nodes, "model-dir": str(run.path / "nodes" / "local-models")}
            for i in range(nodes)
        ]
        return run_experiment(tables, node_configs=configs, client=client)

    run_keys = road_tables["f3-forecast"]
    return infer


def forecasts(folder, client):
    """The forecasts that a node has written: windows, times, forecasts and readings, NaN where there is none."""
    (path,) = folder.path.glob(f"nodes/forecasts/*/{client}.csv")
    with path.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    numbers = np.array([[float(line["forecast"]), float(line["reading"] or "nan")] for line in lines])
    return [int(line["window"]) for line in lines], [line["time"] for line in lines], *numbers.T


@pytest.mark.parametrize("targets", ["shared", "private"])
def test_windows_after_the_run_are_forecast(road_tables, run_experiment, rewrite_road, later, targets):
    road_tables["f3-forecast"] |= {"targets": targets, "local-rounds": 4}
    run = run_experiment(road_tables, nodes=1)
    rewrite_road(KNOWN + LATER)
    # Clients may be with other nodes than in training.
    folder = later(run, nodes=4)
    summary = folder.summary()
    # One for each later step, and one that forecasts steps of which there is no reading yet.
    assert summary["windows"] == LATER + 1
    assert summary["exchanges"] == 3
    errors = summary["metrics"]["later"]["mae"]["mean"]
    every = []
    for client in ("upstream", "middle", "downstream", "far"):
        windows, times, found, readings = forecasts(folder, client)
        assert windows == sorted([*range(LATER + 1)] * OUTPUTS)
        assert times[:2] == ["2024-05-09T03:00:00", "2024-05-09T03:05:00"]
        assert times[-1] == "2024-05-09T19:50:00"
        assert np.isnan(readings[-OUTPUTS:]).all()
        assert not np.isnan(found).any()
        every.append(np.nanmean(np.abs(found - readings)))
        # What an upstream sensor has read comes down the road.
        assert client == "upstream" or every[-1] < 0.5 * np.nanmean(np.abs(readings - 50))
    assert np.mean(every) == pytest.approx(errors, rel=1e-4)


def test_forecasts_are_those_of_the_kept_models(road_tables, run_experiment, rewrite_road, later):
    road_tables["f3-forecast"]["precision"] = "float32"
    run = run_experiment(road_tables)
    rewrite_road(KNOWN + 10)
    folder = later(run, precision="float32")
    fitted = FittedForecasts.read(run.fusion)
    training = KNOWN * 7 // 10
    series = torch.from_numpy(np.load(road_tables["data"]["path"])["data"].T)
    names = list(road_tables["data"]["names"])
    kept = ClientState(run.path / "nodes" / "local-models" / "forecasting", run.run, "encoder")
    model = build({"name": "rnn", "hidden": 12}, TaskSpec("forecast", (INPUTS, 1), (OUTPUTS,)))
    empty = {"parameters": torch.zeros(model.layout.num_parameters)}
    state = model.layout.unflatten(kept.load(fitted.owners, 2, empty)["parameters"])
    rows = series[[names.index(name) for name in fitted.owners]]
    part = rows[:, :training]
    mean, std = part.nanmean(1), ((part - part.nanmean(1)[:, None]).square().nanmean(1)).sqrt()
    inputs = ((rows - mean[:, None]) / std[:, None])[:, -INPUTS:, None]
    with torch.no_grad():
        embeddings, _ = model.embed(state, inputs[:, None], False)
        scaled = fitted.network(embeddings, torch.ones(4, 1, dtype=torch.bool))[:, 0]
    for name, values in zip(fitted.owners, scaled * std[:, None] + mean[:, None], strict=True):
        np.testing.assert_allclose(forecasts(folder, name)[2][-OUTPUTS:], values, rtol=1e-4)


def test_with_the_data_of_the_run_the_next_steps_alone_are_forecast(road_tables, run_experiment, later):
    run = run_experiment(road_tables)
    folder = later(run)
    assert folder.summary()["windows"] == 1
    assert folder.summary()["metrics"]["later"]["mae"]["mean"] is None
    windows, times, found, readings = forecasts(folder, "far")
    assert windows == [0] * OUTPUTS
    assert times[0] == "2024-05-09T03:00:00"
    assert np.isnan(readings).all()
    # What the sensor before it has read is what comes next, which is not the mean.
    series = np.load(road_tables["data"]["path"])["data"]
    coming = 50 + 4 / 8 * (series[-OUTPUTS:, 2] - 50)
    assert np.abs(found - coming).mean() < 0.5 * np.abs(coming - 50).mean()


def test_the_command_forecasts_the_latest_windows(road_tables, run_experiment, rewrite_road, data_dir):
    run = run_experiment(road_tables)
    rewrite_road(KNOWN + LATER)
    command = ["predict", str(run.path), "--data-dir", str(data_dir)]
    result = CliRunner().invoke(app, [*command, "--windows", "5"])
    assert result.exit_code == 0, result.output
    assert "5 windows of 4 clients forecast" in result.output
    with open(f"{result.output.strip().splitlines()[-1]}/middle.csv") as stream:
        assert len(stream.readlines()) == 1 + 5 * OUTPUTS
    found = fedgraph.predict(run.path, windows=5, data_dir=data_dir, progress=False).forecasts
    assert len(found) == 4 * 5 * OUTPUTS
    assert set(found.client) == {"upstream", "middle", "downstream", "far"}
    assert found.reading.isna().sum() == 4 * (1 + 2 + 3)
    renamed = run.path.rename(run.path.with_name("renamed"))
    assert fedgraph.predict(renamed, windows=5, data_dir=data_dir, progress=False).forecasts.equals(found)
    renamed.rename(run.path)
    rewrite_road(KNOWN)
    result = CliRunner().invoke(app, command)
    assert "1 window of 4 clients forecast" in result.output
    assert "No readings yet to compare with" in result.output
    assert "nan" not in result.output
    result = CliRunner().invoke(app, [*command, "--samples", "new"])
    assert result.exit_code != 0
    assert "samples only applies to runs of f3" in result.output


def test_absent_clients_are_left_out_if_that_is_tolerated(road_tables, run_experiment, rewrite_road, later, spoiling):
    road_tables["f3-forecast"]["local-rounds"] = 1
    run = run_experiment(road_tables)
    rewrite_road(KNOWN + LATER)

    def training(message, context):
        return context.node_config["partition-id"] == 0 and message.metadata.message_type == "train"

    client = spoiling(training, "the disk is full")
    with pytest.raises(FedgraphError, match="upstream: the disk is full"):
        later(run, nodes=4, client=client)
    summary = later(run, nodes=4, client=client, on_missing="skip").summary()
    assert summary["clients"] == 3
    assert summary["windows"] == LATER + 1


def test_nodes_that_do_not_say_how_many_readings_there_are_take_part(road_tables, run_experiment, later):
    run = run_experiment(road_tables)

    def silent(message, context):
        reply = client_app(message, context)
        for record in reply.content.metric_records.values():
            record.pop("readings-in-latest-window", None)
        return reply

    assert later(run, client=silent).summary()["windows"] == 1


def drop_far(path):
    series = dict(np.load(path))
    np.savez(path, data=series["data"][:, :-1], names=series["names"][:-1])


def test_a_client_that_is_gone_from_the_data_is_told_of(road_tables, run_experiment, rewrite_road, later):
    # Who takes part is what the file has.
    del road_tables["data"]["names"]
    road_tables["f3-forecast"]["local-rounds"] = 1
    run = run_experiment(road_tables)
    rewrite_road(KNOWN + LATER)
    drop_far(road_tables["data"]["path"])
    with pytest.raises(FedgraphError, match="nothing usable .*far: "):
        later(run)
    summary = later(run, on_missing="skip").summary()
    assert summary["clients"] == 3
    (note,) = summary["notes"]
    assert note.startswith("forecast without 'far', of the 4 clients of the run")


def test_new_readings_may_be_in_another_file_behind_the_old_ones(
    road_tables, run_experiment, rewrite_road, data_dir, tmp_path
):
    road_tables["f3-forecast"]["local-rounds"] = 1
    run = run_experiment(road_tables)
    path = Path(road_tables["data"]["path"])
    known = path.read_bytes()
    rewrite_road(KNOWN + 5)
    other = path.rename(tmp_path / "later.npz")
    path.write_bytes(known)
    command = ["predict", str(run.path), "--data-dir", str(data_dir), "--set", f"data.path={other}"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "6 windows of 4 clients forecast" in result.output
    # Of other first steps it is said once, and not how to go on without anybody.
    series = dict(np.load(other))
    series["data"][5] += 1
    np.savez(other, **series)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    told = " ".join(result.output.split())
    assert told.count("the first 900 time steps are not those of training") == 1
    assert "on-missing" not in told


def test_windows_without_readings_are_told_of(road_tables, run_experiment, rewrite_road, later):
    road_tables["f3-forecast"]["local-rounds"] = 1
    run = run_experiment(road_tables)
    rewrite_road(KNOWN + 20)
    path = road_tables["data"]["path"]
    series = dict(np.load(path))
    series["data"][-INPUTS - 2 :, 1] = np.nan
    np.savez(path, **series)
    folder = later(run)
    (note,) = folder.summary()["notes"]
    assert note.startswith("the latest window of 'middle' has no reading")
    (file,) = folder.path.glob("nodes/forecasts/*/middle.csv")
    with file.open(newline="") as stream:
        seen = [int(line["readings_in_window"]) for line in csv.DictReader(stream)][::OUTPUTS]
    assert seen == [INPUTS] * 13 + [5, 4, 3, 2, 1, 0, 0, 0]


def test_what_does_not_fit_the_run_is_refused(road_tables, run_experiment, rewrite_road, later):
    run = run_experiment(road_tables)
    with pytest.raises(FedgraphError, match="hidden = 8, .*16"):
        later(run, hidden=8)
    road_tables["data"]["covariates"] = ["time-of-day"]
    with pytest.raises(FedgraphError, match=r"\[data\]: covariates"):
        later(run)
    del road_tables["data"]["covariates"]
    rewrite_road(KNOWN - 1)
    with pytest.raises(FedgraphError, match="899 time steps"):
        later(run)
    # Too few to be divided as they were in training, which says nothing of what to do.
    rewrite_road(20)
    with pytest.raises(FedgraphError, match="20 time steps"):
        later(run)
    rewrite_road(KNOWN + LATER)
    path = road_tables["data"]["path"]
    series = dict(np.load(path))
    series["data"][5] += 1
    np.savez(path, **series)
    with pytest.raises(FedgraphError, match="900 time steps"):
        later(run)
    rewrite_road(KNOWN + LATER)
    shutil.rmtree(run.path / "nodes" / "local-models")
    with pytest.raises(FedgraphError, match="the scale of"):
        later(run)
    run.fusion.unlink()
    with pytest.raises(FedgraphError, match="not a finished run of f3-forecast"):
        later(run)
