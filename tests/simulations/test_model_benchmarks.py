"""Benchmarks of every model, and of other programs: the same work, and what is said about it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from fedgraph.data import open_source
from fedgraph.models import build
from fedgraph.reproduce.result_file import ResultFile
from fedgraph.simulations.benchmarks import models, peers
from fedgraph.simulations.benchmarks.__main__ import app
from fedgraph.simulations.benchmarks.baselines import Arithmetic, PlainLoop
from fedgraph.simulations.benchmarks.measure import Timing
from fedgraph.simulations.benchmarks.peer_programs.task import Clock, Task
from fedgraph.support.randomness import generator
from fedgraph.training import Cohort

CASE = models.CASES["mlp-small"]


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def training(experiment, data_dir):
    source = open_source(experiment.data, data_dir)
    data = source.load(source.client_names())
    model = build(experiment.model, data.task)
    return model, data, model.initial(generator(experiment.experiment.seed, "initial model"))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_plain_loop_averages_what_the_cohort_trains(tmp_path, threads):
    experiment = CASE.experiment(3, 1)
    model, data, start = training(experiment, tmp_path)
    average = PlainLoop(model, data, experiment.train, 0, threads).average(start, 1)
    trained = Cohort(model, data, experiment.train, 0).train(start.expand(3, -1), 1)
    weights = trained.num_examples / trained.num_examples.sum()
    torch.testing.assert_close(average, weights @ trained.parameters, atol=1e-6, rtol=1e-4)


def counted(monkeypatch, module, shape, batches):
    """How many products and convolutions the arithmetic of some minibatches has."""
    calls = {"mm": 0, "conv2d": 0}

    def counting(name, function):
        def count(*given, **named):
            calls[name] += 1
            return function(*given, **named)

        return count

    work = Arithmetic(module, shape, batches)
    monkeypatch.setattr(torch, "mm", counting("mm", torch.mm))
    monkeypatch.setattr(torch.nn.functional, "conv2d", counting("conv2d", torch.nn.functional.conv2d))
    work.run()
    return calls


def test_the_arithmetic_has_every_product_of_every_minibatch(monkeypatch):
    perceptron = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    # Forward and the weights' gradient of both layers, the inputs' gradient of the second: 5 products a minibatch.
    assert counted(monkeypatch, perceptron, (4,), [8, 8, 2])["mm"] == 15


def test_the_arithmetic_of_convolutions_and_of_time_steps(monkeypatch):
    net = models.ConvolutionNet().eval()
    assert counted(monkeypatch, net, (1, 28, 28), [2])["conv2d"] == 2


def test_the_arithmetic_of_a_recurrent_model_goes_through_all_steps(monkeypatch):
    # The inputs of all steps at once (2 products), 3 for each of 5 steps.
    calls = counted(monkeypatch, torch.nn.GRU(2, 3, batch_first=True), (5, 2), [4])
    assert calls["mm"] == 2 + 3 * 5


def test_a_table_of_models_is_measured_and_merged_into_a_result_file(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    absent = models.Case("images", {"name": "mlp"}, "fashion-mnist", (2,), 1.0, 1.0)
    slow = models.Case("slow", dict(CASE.model), "series", (2,), 0.0, 0.0)
    monkeypatch.setattr(models, "CASES", {"mlp-small": CASE, "slow": slow, "images": absent})
    path = tmp_path / "models.csv"
    said = invoke("models", "--repeats", 1, "--rounds", 1, "--clients", 10, "--clients", 2, "--results", path)
    assert "'images, 2 clients' was left out: " in said
    assert "Target: slow, 2 clients: core-s to loop <= 0.0; measured" in said
    found = ResultFile(path)
    assert found.rows == ["perceptron 12-32-12, 10 clients", "slow, 2 clients"]
    for metric in ("core-s to loop", "s to loop", "arithmetic to loop", "engine, ms"):
        assert found.spread("slow, 2 clients", "round", metric).mean > 0


def test_ratios_are_of_the_same_turn():
    turns = {
        models.LOOP: [Timing(1.0, 1.0), Timing(10.0, 10.0)],
        models.OURS: [Timing(0.5, 9.0), Timing(0.5, 9.0), Timing(5.0, 9.0), Timing(5.0, 9.0)],
        models.ONE: [Timing(9.0, 0.8), Timing(9.0, 0.8), Timing(9.0, 4.0), Timing(9.0, 4.0)],
        models.IDLE: [Timing(0.01, 0.01)] * 4,
        models.LOOP_2: [Timing(2.0, 2.0), Timing(20.0, 20.0)],
        models.FLOOR: [Timing(0.1, 0.1), Timing(1.0, 1.0)],
    }
    numbers = models._numbers(turns)
    assert numbers["s to loop"] == pytest.approx(0.5)
    assert (numbers["least"], numbers["most"]) == pytest.approx((0.4, 0.8))
    assert numbers["engine, ms"] == pytest.approx(10.0)


def test_other_programs_are_given_the_same_work(data_dir, monkeypatch, tmp_path):
    if not (data_dir / "fashion-mnist").is_dir():
        pytest.skip(f"no Fashion-MNIST in {data_dir}: set FEDGRAPH_DATA to a folder with it")
    monkeypatch.setenv("FEDGRAPH_DATA", str(data_dir))
    experiment = models.CASES["cnn"].experiment(3, 1)
    peers.same_task(experiment, "cnn", 1).write(tmp_path / "task.npz")
    task = Task.read(str(tmp_path / "task.npz"))
    model, data, start = training(experiment, data_dir)
    trained = Cohort(model, data, experiment.train, experiment.experiment.seed).train(start.expand(3, -1), 1)
    for client in range(3):
        own = task.start()
        for inputs, targets in zip(task.inputs[client].split(32), task.targets[client].split(32), strict=True):
            loss = torch.nn.functional.cross_entropy(own(inputs), targets)
            gradients = torch.autograd.grad(loss, list(own.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(own.parameters(), gradients, strict=True):
                    parameter -= task.learning_rate * gradient
        row = torch.cat([each.detach().flatten() for each in own.parameters()])
        torch.testing.assert_close(row, trained.parameters[client], atol=1e-5, rtol=1e-3)


def test_a_program_that_cannot_be_installed_is_left_out_with_the_reason(monkeypatch, tmp_path):
    def run(command, **named):
        return SimpleNamespace(
            returncode=1, stderr="looking\nERROR: No matching distribution found for pfl\n", stdout=""
        )

    monkeypatch.setattr(peers.venv, "create", lambda home, with_pip: home.mkdir(parents=True))
    monkeypatch.setattr(peers.subprocess, "run", run)
    with pytest.raises(peers._NotThereError, match="No matching distribution found for pfl"):
        peers._environment("pfl", peers.Peer("pfl_research.py", ("pfl",)), tmp_path)
    assert not (tmp_path / "pfl_research").exists()


def test_what_a_program_says_last_is_its_measurement(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "_PROGRAMS", tmp_path)
    (tmp_path / "program.py").write_text("print('hello'); print('{\"rounds\": [[9, 9], [2, 1]], \"loss\": 0.5}')")
    losses = {}
    assert peers._program("some", sys.executable, "program.py", tmp_path, losses)() == [Timing(2, 1)]
    assert losses == {"some": 0.5}
    (tmp_path / "program.py").write_text("raise SystemExit('no licence')")
    with pytest.raises(peers.RunError, match="no licence"):
        peers._program("some", sys.executable, "program.py", tmp_path, losses)()


def test_the_table_of_programs(monkeypatch):
    found = {peers.OURS: [Timing(1.0, 2.0)], peers.ONE: [Timing(1.5, 1.5)], "other": [Timing(4.0, 3.0)]}
    _, lines = peers._table("perceptron", found)
    told = {(line.row, line.metric): float(line.value) for line in lines}
    assert told["other", "fedgraph to it"] == 0.25
    assert told["other", "core to it"] == 0.5


def test_a_clock_ticks_once_a_round():
    clock = Clock()
    clock.tick()
    clock.tick()
    assert len(clock.rounds) == 2
    assert all(wall >= 0 and core >= 0 for wall, core in clock.rounds)


def test_the_programs_compile():
    folder = peers._PROGRAMS
    for path in folder.rglob("*.py"):
        subprocess.run([sys.executable, "-m", "py_compile", path], check=True)
