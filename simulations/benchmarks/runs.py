"""Rounds of one experiment, timed: in this process, on Ray, and as a plain Flower app with one client per node.

The seconds of a round are the same on all three: from the first message being made to the replies being aggregated.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source
from fedgraph.experiment import Experiment, load_experiment
from fedgraph.federation.grids import LocalGrid, run_app_on_flower, run_on_flower
from fedgraph.runs import Callback, RunFolder, Training
from fedgraph.simulations.benchmarks.measure import Timing
from fedgraph.simulations.benchmarks.processes import ProcessWatch
from fedgraph.strategies.app import serve
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import ExperimentError, RunError

PLAIN_APP = Path(__file__).resolve().parent / "plain_flower"

_USUAL: dict[str, object] = {
    "input-steps": 12,
    "output-steps": 12,
    "stride": 1,
    "scaling": "client",
    "shares": [0.7, 0.2, 0.1],
    "covariates": [],
    "first-steps": None,
    "cold-share": 0.0,
    "cold-clients": None,
    "scales": None,
}
"""How the plain app cuts its windows, as keys of ``[data]``."""

BARE = ("evaluation.splits=[]", "output.checkpoint-every=1000000")
"""Overrides for what the plain app does not do either: no evaluation, no checkpoints."""


def read_experiment(
    path: str, overrides: Sequence[str], method: str | None = None, sensors: int | None = None
) -> Experiment:
    """An experiment file with overrides; ``sensors`` keeps only that many of its clients, the first ones."""
    experiment = load_experiment(path, [*overrides, *BARE], method)
    if sensors is None:
        return experiment
    names = client_names(experiment)[:sensors]
    return load_experiment(path, [*overrides, *BARE, f"data.clients={json.dumps(names)}"], method)


def client_names(experiment: Experiment) -> list[str]:
    """All clients of an experiment."""
    return open_source(experiment.data, data_dir()).client_names()


def data_dir() -> Path:
    """The folder with the data: ``FEDGRAPH_DATA``, else the user's cache."""
    return data_folder(os.environ.get("FEDGRAPH_DATA")).resolve()


@dataclass
class RoundClock(Callback):
    """Seconds and core-seconds of the rounds that this process serves."""

    timings: list[Timing] = field(default_factory=list)
    _core: float = field(default_factory=time.process_time)

    def on_training(self, training: Training) -> None:
        """One more round is over."""
        now = time.process_time()
        self.timings.append(Timing(training.seconds, now - self._core))
        self._core = now


def in_process(experiment: Experiment, nodes: int) -> list[Timing]:
    """Every round of a run on the in-process grid, the first one with everything it has to load and warm up.

    Core-seconds of a round are those since the round before, those of the first one include the opening query.
    """
    clock = RoundClock()
    run_here(experiment, nodes, clock)
    return clock.timings


def run_here(experiment: Experiment, nodes: int, *listeners: Callback) -> None:
    """A run on the in-process grid, as ServerApp and ClientApp serve it; its run folder is thrown away."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with _run_folder(experiment) as (folder, run_config):
        node_config = {"data_dir": run_config["data-dir"], "state_dir": str(folder.path / "nodes")}
        grid = LocalGrid.of_partitions(client_app, nodes, run_config, **node_config)
        serve(grid, run_config, listeners)


def on_ray(experiment: Experiment, nodes: int) -> list[Timing]:
    """Every round of a run through ``flwr run`` with ``nodes`` simulated nodes on Ray.

    Core-seconds are those of all of Flower's and Ray's processes, to the accuracy of samples 0.1 s apart.
    """
    with _run_folder(experiment) as (folder, run_config):
        log, metrics = folder.path / "flower.log", folder.path / "metrics.jsonl"
        with ProcessWatch(observe=lambda: _finished_rounds(metrics)) as watch:
            run_on_flower(run_config, nodes, log, {"FEDGRAPH_STATE": str(folder.path / "nodes")})
        if not folder.is_finished:
            raise RunError(f"the run on Ray did not finish; the end of its log:\n{_tail(log)}")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    seconds = [float(line["seconds"]) for line in lines if line["phase"] == "training"]
    timings = []
    for position, wall in enumerate(seconds):
        ended = watch.first_at(position + 1) or watch.samples[-1].when
        timings.append(Timing(wall, watch.core_until(ended) - watch.core_until(ended - wall)))
    return timings


@dataclass(frozen=True)
class PlainRun:
    """What a run of the plain Flower app left behind: its rounds, their replies, and the mean loss of each."""

    timings: list[Timing]
    replies: list[int]
    losses: list[float]


def plain_flower(experiment: Experiment, nodes: int, rounds: int) -> PlainRun:
    """Every round of the plain Flower app, one client per node, with the settings of ``experiment``.

    Raises
    ------
    ExperimentError
        When the experiment asks for something else than the app does.
    RunError
        When the app does not finish, or does not hear from every node in every round.
    """
    _check_same_work(experiment, nodes)
    train = experiment.train
    with tempfile.TemporaryDirectory(prefix="plain-flower-") as scratch:
        times, log = Path(scratch) / "times.json", Path(scratch) / "flower.log"
        run_config: dict[str, str | int | float] = {
            "num-server-rounds": rounds,
            "local-steps": train.local_steps or 0,
            "batch-size": train.batch_size,
            "hidden": int(experiment.model["hidden"]),
            "optimizer": train.optimizer,
            "learning-rate": train.learning_rate,
            "momentum": train.momentum,
            "clip-norm": train.clip_norm or float("inf"),
            "data-dir": str(data_dir()),
            "times": str(times),
        }
        with ProcessWatch() as watch:
            run_app_on_flower(PLAIN_APP, run_config, nodes, log, {})
        if not times.is_file():
            raise RunError(f"the plain Flower app did not finish; the end of its log:\n{_tail(log)}")
        report = json.loads(times.read_text())
    timings, replies = [], []
    for each in report["rounds"].values():
        core = watch.core_until(each["ended"]) - watch.core_until(each["began"])
        timings.append(Timing(each["ended"] - each["began"], core))
        replies.append(int(each["replies"]))
    if any(count != nodes for count in replies):
        raise RunError(f"the plain Flower app heard from {replies} of {nodes} nodes in its rounds")
    return PlainRun(timings, replies, [float(loss) for loss in report["train_loss"].values()])


def _check_same_work(experiment: Experiment, nodes: int) -> None:
    train, data, model = experiment.train, experiment.data.as_table(), experiment.model
    problems = {
        "[data] set and part: it trains on METR-LA's week": (data["set"], data.get("part")) != ("metr-la", "week"),
        "[data] clients: its nodes are the first sensors": _all_sensors(experiment)[:nodes] != client_names(experiment),
        "other keys of [data]: its windows are the usual ones": any(
            data.get(key) != usual for key, usual in _USUAL.items()
        ),
        "[model] name and layers: it has a GRU of one layer": model["name"] != "gru" or model.get("layers", 1) != 1,
        "[train] local-steps: it counts steps, not epochs": train.local_steps is None,
        "[train] optimizer: it has SGD and Adam, without Nesterov's momentum, decay, kept moments or betas": (
            train.optimizer not in ("sgd", "adam")
            or train.nesterov
            or train.weight_decay > 0
            or train.keep_optimizer
            or train.betas != (0.9, 0.999)
        ),
        "[train] learning-rate-decay, learning-rate-factor, final-learning-rate: its rate stays as it is": (
            (train.learning_rate_decay, train.learning_rate_factor, train.final_learning_rate) != (1, 1, None)
        ),
        "[train] loss: it has the mean absolute error": train.loss not in ("auto", "mae"),
    }
    found = [problem for problem, present in problems.items() if present]
    if found:
        raise ExperimentError(f"the plain Flower app cannot do what this experiment asks for: {'; '.join(found)}")


def _all_sensors(experiment: Experiment) -> list[str]:
    every = type(experiment.data).model_validate({**experiment.data.model_dump(), "clients": None})
    return open_source(every, data_dir()).client_names()


@contextmanager
def _run_folder(experiment: Experiment) -> Iterator[tuple[RunFolder, dict[str, str]]]:
    with tempfile.TemporaryDirectory(prefix="fedgraph-benchmark-") as scratch:
        folder = RunFolder.create(experiment, Path(scratch))
        run_config = {
            "experiment": str(folder.path / "experiment.toml"),
            "set": f"'output.resume={folder.path}'",
            "data-dir": str(data_dir()),
        }
        yield folder, run_config


def _finished_rounds(metrics: Path) -> int:
    return metrics.read_bytes().count(b'"phase": "training"') if metrics.exists() else 0


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
