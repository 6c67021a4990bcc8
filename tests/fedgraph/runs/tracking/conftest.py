"""Runs with trackers, stopped halfway and resumed."""

import sys
import types
from typing import ClassVar

import pytest

from fedgraph.clients.app import app as client_app
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.runs.callbacks import Callback
from fedgraph.runs.folder import RunFolder
from fedgraph.strategies.app import serve


class Stops(Callback):
    """Ends a run as an error in a round would."""

    def __init__(self, in_round):
        self.in_round = in_round

    def on_training(self, training):
        self.on_epoch("", training.round)

    def on_epoch(self, phase, epoch):
        if epoch == self.in_round:
            raise RuntimeError("stopped by the test")


@pytest.fixture
def run_tracked(tmp_path, data_dir, digits_tables, monkeypatch):
    """Run the small experiment with trackers, stop it in each of ``stops`` and go on; returns the run folder."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)

    def run(track, stops=(), tables=digits_tables, **output):
        tables = {**tables, "output": {"track": track, **output}}
        folder = RunFolder.create(parse_experiment(tables), tmp_path / "runs")
        run_config = {
            "experiment": str(folder.path / "experiment.toml"),
            "set": f"'output.resume={folder.path}'",
            "data-dir": str(data_dir),
        }
        for stop in (*stops, None):
            grid = LocalGrid.of_partitions(client_app, 2, run_config, state_dir=str(folder.path / "nodes"))
            if stop is None:
                serve(grid, run_config)
            else:
                with pytest.raises(RuntimeError, match="stopped by the test"):
                    serve(grid, run_config, [Stops(stop)])
        return folder

    return run


@pytest.fixture
def own_tracker(monkeypatch):
    """A tracker of the user's own, by dotted path; ``made`` are all that were made, with what they were told."""

    class Own:
        made: ClassVar = []

        def __init__(self, folder, experiment):
            self.name, self.experiment = folder.name, experiment.experiment.name
            self.params, self.metrics, self.saved, self.status = {}, [], [], []
            Own.made.append(self)

        def log_params(self, params):
            self.params = dict(params)

        def log_metrics(self, values, step):
            self.metrics.append((step, dict(values)))

        def save(self, path):
            self.saved.append(path.name)

        def finalize(self, status):
            self.status.append(status)

    module = types.ModuleType("my_trackers")
    module.Own = Own
    monkeypatch.setitem(sys.modules, "my_trackers", module)
    return Own
