from pathlib import Path

import pytest

pytest.importorskip("mlflow", reason="mlflow is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
from mlflow.tracking import MlflowClient

from fedgraph.experiment.experiment import load_experiment
from fedgraph.runs.tracking.tracker import make_trackers
from fedgraph.support.errors import ExperimentError


def read(folder, uri=None):
    client = MlflowClient(uri or f"sqlite:///{folder.path}/mlruns/mlflow.db")
    (experiment,) = (found for found in client.search_experiments() if found.name != "Default")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, experiment, run


@pytest.mark.slow
def test_a_resumed_run_is_one_record(run_tracked, digits_tables):
    """Slow: MLflow takes seconds to make its database."""
    digits_tables["experiment"]["rounds"] = 4
    folder = run_tracked(["mlflow"], stops=[4], **{"checkpoint-every": 2})
    client, experiment, run = read(folder)
    summary = folder.summary()
    assert (experiment.name, run.info.run_name, run.info.status) == ("small", folder.name, "FINISHED")
    assert run.data.params["sfl.hops"] == "1"
    history = client.get_metric_history(run.info.run_id, "test/accuracy/client-3")
    assert sorted({metric.step for metric in history}) == [0, 1, 2, 3, 4]
    assert run.data.metrics["test/accuracy/client-3"] == summary["per_client"]["test"]["accuracy"]["client-3"]
    assert run.data.metrics["final/test/loss/std"] == summary["metrics"]["test"]["loss"]["std"]
    losses = client.get_metric_history(run.info.run_id, "training/loss/mean")
    assert sorted({metric.step for metric in losses}) == [1, 2, 3, 4]
    artifacts = {found.path for found in client.list_artifacts(run.info.run_id)}
    assert {"summary.json", "experiment.toml"} <= artifacts
    copied = client.download_artifacts(run.info.run_id, "summary.json", str(folder.path / "logs"))
    assert Path(copied).read_text() == (folder.path / "summary.json").read_text()


@pytest.mark.slow
def test_the_environment_names_another_server(run_tracked, digits_tables, tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path}/central.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of all")
    monkeypatch.chdir(tmp_path)
    folder = run_tracked(["mlflow"])
    assert not (folder.path / "mlruns" / "mlflow.db").exists()
    assert uri not in (folder.path / "mlruns" / "run-id").read_text()
    _, experiment, run = read(folder, uri)
    assert (experiment.name, run.info.status) == ("of all", "FINISHED")
    (folder.path / "summary.json").unlink()
    (folder.path / "mlruns" / "run-id").write_text("0" * 32)
    with pytest.raises(ExperimentError, match="'mlflow' cannot be started"):
        make_trackers(load_experiment(folder.path / "experiment.toml"), folder)
