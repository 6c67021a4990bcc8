import json
import re
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import fedgraph
from fedgraph.data import open_source, parse_data
from fedgraph.models import build
from fedgraph.simulations.benchmarks import baselines, deployment, grids, measure, memory, rounds, runs, scale, server
from fedgraph.simulations.benchmarks import simulate as apps
from fedgraph.simulations.benchmarks.__main__ import app
from fedgraph.simulations.benchmarks.baselines import Floor, PlainLoop, forward_operations, training_operations
from fedgraph.simulations.benchmarks.measure import Timing, in_fresh_process, in_turn, ratio, target_line, timed, warmed
from fedgraph.simulations.benchmarks.processes import ProcessWatch
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.randomness import generator
from fedgraph.training.cohort import Cohort
from fedgraph.training.settings import TrainSettings

SENSORS = 3


@pytest.fixture
def metr_la(data_dir, monkeypatch):
    """The folder with METR-LA's week, where the commands look for it."""
    if not (data_dir / "metr-la" / "metr_la_week1_207.npz").is_file():
        pytest.skip(f"no METR-LA in {data_dir}: set FEDGRAPH_DATA to a folder with it")
    monkeypatch.setenv("FEDGRAPH_DATA", str(data_dir))
    return data_dir


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert re.search(r"\d cores.*Python 3.*flwr .*torch ", result.output), "the machine is named"
    return result.output


def row(output, name):
    """The numbers of a table's row."""
    line = next(line for line in output.splitlines() if line.startswith("│") and f" {name} " in line)
    return [float(cell.replace(",", "")) for cell in line.strip("│ ").split("│")[1:]]


# ---- real nodes


def test_deployment_says_how_long_an_exchange_takes_and_where_that_goes(monkeypatch, tmp_path):
    def measured(name, nodes, folder):
        assert (name, nodes) == ("sfl", 3)
        local = {"rounds": 2, "exchanges": 4, "seconds": 2.0, "weights_sha256": "a"}
        return {
            "local": local,
            "real": {**local, "seconds": 4.0, "round": 0.75},
            "own way": {**local, "seconds": 40.0, "round": 9.0},
        }

    monkeypatch.setattr(deployment, "_measure", measured)
    monkeypatch.setattr(deployment, "_start_seconds", lambda: 2.0)
    output = invoke("deployment", "sfl", "--json", str(tmp_path / "raw.json"))
    row = next(line for line in output.splitlines() if "sfl" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    # 1 s an exchange: half a second of computing, and the rest.
    assert cells == ["sfl", "2", "4", "4.00", "0.750", "1.00", "0.500", "0.500", "40.0", "9.00", "10.0", "yes"]
    assert json.loads((tmp_path / "raw.json").read_text())["results"]["start"] == 2.0


def test_deployment_refuses_methods_that_it_does_not_have(capsys):
    with pytest.raises(RunError, match="no method fedavg here; known: sfl, ipa, f3, fedngm"):
        deployment.deployment(["fedavg"])


@pytest.mark.slow
def test_the_start_of_a_process_is_measured():
    assert 0.1 < deployment._timed_start() < 120


# ---- grids


def test_table_has_a_row_per_grid_with_ratios(monkeypatch):
    def measured(experiment, grid, nodes, overrides):
        assert overrides == ["experiment.rounds=1"]
        seconds = {("local", 2): 2.0, ("flower", 2): 3.0, ("flower", 5): 5.0}[grid, nodes]
        return {"seconds": seconds, "rounds": 1, "clients": 9, "weights_sha256": str(nodes)}, seconds + 1

    monkeypatch.setattr(grids, "_measure", measured)
    output = invoke("grids", "--many", "5", "--set", "experiment.rounds=1")
    assert re.search(r"in-process.* 2 .* 9 .* 2\.0 .* 3\.0 .*1\.00", output)
    assert re.search(r"Ray.* 5 .* 9 .* 5\.0 .* 6\.0 .*2\.50", output)
    assert "not the same on all rows" in output


@pytest.mark.process
def test_a_measurement_is_a_real_run(tmp_path):
    summary, whole = grids._measure("sfl/digits.toml", "local", 2, ["experiment.rounds=1"])
    assert (summary["rounds"], summary["clients"]) == (1, 20)
    assert whole > summary["seconds"] > 0
    assert json.dumps(summary)


# ---- apps of Flower


def test_an_app_in_this_process_is_put_beside_ray(monkeypatch, tmp_path):
    def measured(name, app, nodes, rounds):
        assert (app.name, rounds) == ("app", 3)
        slow = 4.0 if name == apps.RAY else 1.0
        return apps._Run([Timing(nodes * slow, slow), Timing(3 * nodes * slow, slow)], Timing(10 * slow, 20 * slow))

    monkeypatch.setattr(apps, "_run", measured)
    output = invoke(
        "simulate", "patients", "--nodes", "5", "--rounds", "3", "--repeats", "1", "--json", tmp_path / "raw"
    )
    assert row(output, apps.OURS) == [10.0, 1.0, 10.0, 20.0]
    assert row(output, apps.RAY) == [40.0, 4.0, 40.0, 80.0]
    assert row(output, f"{apps.RAY} / {apps.OURS}") == [4.0, 4.0, 4.0, 4.0]
    assert json.loads((tmp_path / "raw").read_text())["results"]["5"]["round"][apps.RAY] == [
        {"core": 4.0, "wall": 40.0}
    ]


def test_a_timed_app_is_the_app_and_notes_when_exchanges_begin(tmp_path):
    timed_app = apps._with_times(apps._APPS / "patients", tmp_path / "app")
    began = time.time()
    config = {"num-server-rounds": 2, "num-clients": 2, "times": str(tmp_path / "times")}
    fedgraph.simulate(timed_app, num_nodes=2, run_config=config)
    times = json.loads((tmp_path / "times").read_text())
    # Who is there, training and evaluation in each round, and the end.
    assert len(times) == 1 + 2 * 2 + 1
    assert began < times[0]
    assert times == sorted(times)


@pytest.mark.parametrize(("before", "each"), [(0, 2), (1, 2), (0, 1), (1, 1)])
def test_rounds_begin_with_their_first_exchange(before, each):
    times = [*range(-before, 0), *(10.0 * number + place for number in range(4) for place in range(each)), 40.0]
    assert apps._starts(times, 4) == [0.0, 10.0, 20.0, 30.0, 40.0]


@pytest.mark.process
def test_rounds_of_an_app_are_those_of_a_run_of_the_command(tmp_path):
    timed_app = apps._with_times(apps._APPS / "patients", tmp_path / "app")
    found = apps._run(apps.OURS, timed_app, 3, 4)
    assert len(found.rounds) == 3
    assert 0 < sum(each.wall for each in found.rounds) < found.whole.wall
    assert found.whole.core > 0
    (timed_app / "task.py").write_text("raise ImportError('no data')")
    with pytest.raises(RunError, match="did not finish; the end of its log:(.|\n)*no data"):
        apps._run(apps.OURS, timed_app, 3, 4)


# ---- measuring


def test_work_and_sleep_are_told_apart():
    asleep = timed(lambda: time.sleep(0.2))
    assert asleep.wall >= 0.2
    assert asleep.core < 0.1

    def work():
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    assert timed(work).core >= 0.1


def test_candidates_take_turns_and_are_warmed_once():
    calls = []
    results = in_turn({name: warmed(lambda name=name: calls.append(name)) for name in "ab"}, 2)
    assert calls == ["a", "a", "b", "b", "a", "b"]
    assert [len(each) for each in results.values()] == [2, 2]


def test_ratios_are_of_medians():
    results = {"ours": [Timing(1, 6), Timing(9, 6), Timing(2, 6)], "theirs": [Timing(4, 2)]}
    assert ratio(results, "ours", "theirs") == 0.5
    assert ratio(results, "ours", "theirs", "core") == 3


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123456, "0.0123"), (1.005, "1.00"), (12345.6, "12,346"), (0, "0.000"), (-2.5, "-2.50")]
)
def test_numbers_have_three_digits(value, text):
    assert measure.number(value) == text


def test_a_target_says_whether_it_is_met():
    assert target_line("it", 0.3, 0.5, " s") == "Target: it <= 0.500 s; measured 0.300 s: met."
    assert target_line("it", 0.6, 0.5).endswith("missed.")


@pytest.mark.process
def test_memory_of_a_fresh_process_is_its_own():
    held = torch.zeros(60_000_000)  # 240 MB that the other process must not be charged for
    assert measure.peak_bytes() >= held.numel() * 4
    assert in_fresh_process("fedgraph.simulations.benchmarks.measure:peak_bytes") < measure.peak_bytes()


def test_processes_are_watched_with_their_time_and_memory():
    code = "import time; x = bytearray(50_000_000); t = time.process_time()\nwhile time.process_time() < t + 0.5: pass"
    began = time.time()
    with ProcessWatch(interval=0.02, memory=True, observe=lambda: int(time.time() > began + 0.2)) as watch:
        subprocess.run([sys.executable, "-c", code], check=True)
    total = watch.samples[-1].core
    assert 0.4 < total < 5
    assert watch.peak_memory > 50_000_000
    assert max(sample.number for sample in watch.samples) >= 1
    assert watch.core_until(began - 1) == 0
    assert 0 < watch.core_until(began + 0.3) < watch.core_until(time.time()) == total
    assert began + 0.2 < watch.first_at(1) < began + 0.5
    assert watch.first_at(2) is None


# ---- what is compared trains the same


def week(model, **train):
    settings = TrainSettings(**{"learning_rate": 0.05, "batch_size": 8, "local_steps": 3, "block_size": 1, **train})
    source = open_source(parse_data({"set": "metr-la", "part": "week"}), runs.data_dir())
    data = source.load(source.client_names()[:2])
    return build(model, data.task), data, settings


@pytest.mark.parametrize(
    "train",
    [{"momentum": 0.9, "clip_norm": 0.1}, {"optimizer": "adam", "learning_rate": 0.01}, {"weight_decay": 0.1}],
    ids=["sgd", "adam", "decay"],
)
@pytest.mark.parametrize("model", [{"name": "gru", "hidden": 8}, {"name": "mlp", "hidden": [8]}], ids=["gru", "mlp"])
def test_the_plain_loop_trains_what_the_cohort_trains(metr_la, model, train):
    model, data, settings = week(model, **train)
    start = model.initial(generator(0, "initial model")).repeat(2, 1)
    ours = Cohort(model, data, settings, 5).train(start, 2).parameters
    plain = PlainLoop(model, data, settings, 5).train(start, 2)
    assert not torch.allclose(ours, start, atol=1e-3)
    torch.testing.assert_close(plain, ours, rtol=1e-4, atol=1e-5)


def test_the_plain_loop_refuses_what_it_cannot_do(metr_la):
    model, data, settings = week({"name": "gru", "hidden": 4}, loss="mse")
    with pytest.raises(ExperimentError, match="loss"):
        PlainLoop(model, data, settings, 0)
    model, data, settings = week({"name": "gru", "hidden": 4}, final_learning_rate=0.01)
    with pytest.raises(ExperimentError, match="final-learning-rate"):
        PlainLoop(model, data, settings, 0)


@pytest.fixture
def plain_task(monkeypatch):
    """The module ``task`` of the plain Flower app, imported as Flower imports it."""
    monkeypatch.syspath_prepend(str(runs.PLAIN_APP))
    import task

    yield task
    del sys.modules["task"]


def test_the_plain_app_trains_what_the_cohort_trains(metr_la, plain_task):
    from fedgraph.training.batches import shuffling_keys, training_batches

    model, data, settings = week({"name": "gru", "hidden": 8}, momentum=0.9, clip_norm=0.5)
    row = model.initial(generator(0, "initial model"))
    net = plain_task.Net(8)
    net.load_state_dict(model.layout.row_state(row))
    key = shuffling_keys(5, data.names[1:])
    steps = training_batches(key, data.splits["train"].num_examples[1:], settings, 1)[:, 0]
    examples = plain_task.load_data(1, 64, str(metr_la)).dataset
    minibatches = [examples[row[row >= 0]] for row in steps]
    loss = plain_task.train(net, minibatches, len(minibatches), 0.05, 0.9, 0.5, torch.device("cpu"))
    ours = Cohort(model, data, settings, 5).train(row.repeat(2, 1), 1)
    torch.testing.assert_close(model.layout.row(net.state_dict()), ours.parameters[1], rtol=1e-4, atol=1e-5)
    assert loss == pytest.approx(float(ours.loss[1]), rel=1e-4)


def test_the_plain_app_goes_through_its_examples_again_and_again(metr_la, plain_task):
    loader = plain_task.load_data(0, 700, str(metr_la))
    sizes = []

    class Counting(plain_task.Net):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    plain_task.train(Counting(2), loader, 5, 0.05, 0.0, 1.0, torch.device("cpu"))
    assert sizes == [700, len(loader.dataset) - 700] * 2 + [700]


# ---- the floor


@pytest.mark.parametrize(
    "table",
    [
        {"name": "gru", "hidden": 64},
        {"name": "lstm", "hidden": 48},
        {"name": "rnn", "hidden": 64, "layers": 2},
        {"name": "mlp", "hidden": [64]},
    ],
    ids=lambda table: table["name"],
)
def test_operations_are_those_that_pytorch_counts(metr_la, table):
    """Within 10 %: PyTorch counts no biases. The rule of three includes the gradient of the inputs."""
    model, data, _ = week(table)
    module, inputs = model.twin(), torch.zeros(64, *data.task.input_shape, requires_grad=True)
    # Without oneDNN, which does a whole LSTM in one operation that PyTorch does not count.
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as forward:
        outputs = module(inputs)
    with FlopCounterMode(display=False) as backward:
        outputs.sum().backward()
    assert 64 * forward_operations(module, data.task.input_shape) == pytest.approx(forward.get_total_flops(), rel=0.1)
    counted = forward.get_total_flops() + backward.get_total_flops()
    assert training_operations(module, data.task.input_shape, 64) == pytest.approx(counted, rel=0.1)


def test_operations_of_other_layers_are_refused():
    class Convolution(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Conv1d(1, 1, 3)

        def forward(self, inputs):
            return self.layer(inputs)

    with pytest.raises(ExperimentError, match="Conv1d"):
        forward_operations(Convolution(), (1, 5))


def test_the_floor_does_as_many_products_as_it_says(monkeypatch):
    floor = Floor(5 * 2**31 + 1, torch.device("cpu"))
    assert floor.products == 6
    made = []
    monkeypatch.setattr(baselines.torch, "mm", lambda left, right, out: made.append(left.shape))
    floor.run()
    assert made == [(1024, 1024)] * 6


# ---- the commands


def test_cohort(metr_la, tmp_path):
    file = tmp_path / "raw.json"
    output = invoke("cohort", "--sensors", SENSORS, "--hidden", 8, "--steps", 2, "--batch-size", 8, "--repeats", 3,
                    "--f3", "--f3-epochs", 2, "--json", file)  # fmt: skip
    for name in ("cohort, 1 worker", "plain loop", "floor"):
        lowest, middle, highest, core, *_ = row(output, name)
        assert 0 < lowest <= middle <= highest
        assert core >= 0
    assert row(output, "plain loop")[4] == row(output, "floor")[6] == 1
    assert re.search(r"Target: core-seconds of cohort, 1 worker / floor <= 3\.30; measured .*: (met|missed)\.", output)
    assert "3 lstm models of 16 hidden units, 2 local epochs" in output
    assert "116 of 163 examples of every sensor to train on, adam at 0.001" in output
    raw = json.loads(file.read_text())
    assert len(raw["results"]["cohort"]["floor"]) == 3
    assert raw["machine"]["processor"]


@pytest.mark.slow
def test_cohort_of_images(metr_la, data_dir):
    if not (data_dir / "cifar10").is_dir():
        pytest.skip(f"no CIFAR-10 in {data_dir}: set FEDGRAPH_DATA to a folder with it")
    output = invoke("cohort", "--sensors", SENSORS, "--hidden", 4, "--steps", 1, "--repeats", 2, "--resnet9",
                    "--resnet9-width", 2)  # fmt: skip
    assert "4 ResNet9 of width 2, 1 step of 32 examples" in output
    assert row(output, "cohort, stacked")[1] > 0
    assert output.count("│ plain loop ") == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cohort_on_a_gpu_that_is_not_there():
    result = CliRunner().invoke(app, ["cohort", "--device", "cuda"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "no CUDA device" in result.output


@pytest.mark.slow
def test_server(metr_la):
    output = invoke("server", "--clients", 50, "--parameters", 100, "--repeats", 2)
    assert output.count("│ propagate ") == 2
    assert len(re.findall(r"│ loop over clients ", output)) == 2
    for name in ("squared distances", "cosine similarity", "encode, ours", "decode, Flower's"):
        assert row(output, name)[1] > 0
    assert "Memory of the whole process" in output


def test_the_loop_over_clients_computes_what_propagation_does():
    graph, models = server.random_graph(12, 3), server.random_models(12, 13_700)
    mixed = server.loop_over_clients(graph, server.as_dicts(models), 2)
    layout = server.gru_like(13_700)
    rows = torch.stack([layout.row(each) for each in mixed])
    torch.testing.assert_close(rows, graph.propagate(models, 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("clients", "neighbours"), [(11, 10), (12, 10), (50, 10), (500, 7)])
def test_everybody_in_the_random_graph_has_as_many_neighbours(clients, neighbours):
    graph = server.random_graph(clients, neighbours)
    rows, columns = graph.edge_index
    assert torch.equal(rows.bincount(), torch.full((clients,), neighbours))
    assert not bool((rows == columns).any())


@pytest.mark.slow
def test_scale(tmp_path):
    file = tmp_path / "raw.json"
    output = invoke("scale", "--clients", 20, "--clients", 40, "--rounds", 2, "--repeats", 1, "--json", file)
    results = json.loads(file.read_text())["results"]
    assert [len(results[size][0]["wall"]) for size in ("20", "40")] == [2, 2]
    assert output.count("Target: ") == 2
    cells = row(output, "20")
    assert cells[1] == pytest.approx(1000 * sum(results["20"][0]["wall"]) / 2 / 20, rel=0.01)
    assert min(cells[4], row(output, "40")[4]) == 1


def test_scale_trains_every_client_on_data_of_its_own(tmp_path):
    scale.write_clients(tmp_path, 12)
    experiment = scale.experiment(tmp_path, 12, 1)
    data = open_source(experiment.data, tmp_path).load(["client-00003", "client-00004"])
    assert data.task.input_shape == (64,)
    assert data.task.output_shape == (10,)
    assert data.splits["train"].num_examples.tolist() == [32, 32]
    first, second = data.splits["train"].batch(torch.arange(32).expand(2, -1)).inputs
    assert not torch.equal(first, second)


def test_rounds_in_process_are_timed(metr_la):
    experiment = runs.read_experiment(
        "sfl/metr-la-week.toml", ["train.local-steps=1", "model.hidden=4", "experiment.rounds=3"], "fedavg", SENSORS
    )
    timings = runs.in_process(experiment, 2)
    assert len(timings) == 3
    assert all(0 < each.wall < 60 for each in timings)
    assert all(0 < each.core < 60 for each in timings)


def test_rounds_has_a_table_for_every_number_of_steps(metr_la, monkeypatch):
    """Starts of Ray are replaced; the real thing is tested below."""
    seconds = {"ray": 2.0, "plain": 4.0}
    monkeypatch.setattr(rounds, "on_ray", lambda experiment, nodes: [Timing(9, 9), Timing(seconds["ray"], 1)])
    monkeypatch.setattr(
        rounds,
        "plain_flower",
        lambda experiment, nodes, number: runs.PlainRun([Timing(9, 9), Timing(seconds["plain"], 2)], [nodes], [1.0]),
    )
    output = invoke("rounds", "--sensors", SENSORS, "--steps", 1, "--steps", 2, "--method", "fedavg", "--repeats", 1,
                    "--set", "model.hidden=4")  # fmt: skip
    assert output.count("One round of 3 clients, ") == 2
    assert output.count("│ ours, fedavg, in process ") == 2
    assert row(output, "ours, fedavg, Ray, 2 nodes")[:6] == [2, 2, 2, 1, 0.5, 0.5], "first rounds are dropped"
    assert (
        "Target: ours, fedavg, Ray, 2 nodes / plain Flower, 1 local steps <= 0.0670; measured 0.500: missed" in output
    )
    assert row(output, "plain loop")[0] > 0


@pytest.mark.slow
def test_memory_table_compares_with_plain_flower(metr_la, monkeypatch):
    monkeypatch.setattr(memory, "on_ray", lambda experiment, nodes: subprocess.run(["sleep", "1"], check=True))
    code = "import time; x = bytearray(90_000_000); time.sleep(1)"
    monkeypatch.setattr(
        memory,
        "plain_flower",
        lambda experiment, nodes, number: subprocess.run([sys.executable, "-c", code], check=True),
    )
    output = invoke("memory", "--sensors", SENSORS, "--steps", 1, "--repeats", 1, "--set", "model.hidden=4")
    assert row(output, "plain Flower")[1] > 85
    assert row(output, "plain Flower")[4] == 1
    assert row(output, "ours, fedavg, in process")[1] > 100, "a whole Python with PyTorch"
    assert row(output, "ours, fedavg, Ray, 2 nodes")[4] < 0.5


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_the_plain_flower_app_runs_a_node_per_client(metr_la):
    overrides = ["train.local-steps=40", "model.hidden=4"]
    experiment = runs.read_experiment("sfl/metr-la-week.toml", overrides, "fedavg", SENSORS)
    run = runs.plain_flower(experiment, SENSORS, rounds=2)
    assert run.replies == [SENSORS, SENSORS]
    assert len(run.timings) == 2
    assert all(0 < each.wall < 120 for each in run.timings)
    assert run.losses[1] < run.losses[0]


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_rounds_on_ray_are_timed(metr_la):
    overrides = ["train.local-steps=1", "model.hidden=4", "experiment.rounds=2"]
    experiment = runs.read_experiment("sfl/metr-la-week.toml", overrides, "fedavg", SENSORS)
    timings = runs.on_ray(experiment, 2)
    assert len(timings) == 2
    assert all(0 < each.wall < 120 for each in timings)
    assert timings[0].core > 0


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("data.clients=['717447', '773869']", "first sensors"),
        ("data.stride=2", "windows"),
        ("data.part='29'", "METR-LA's week"),
        ("model.layers=2", "one layer"),
        ("train.nesterov=true", "SGD"),
        ("train.final-learning-rate=0.01", "final-learning-rate"),
        ("data.cold-share=0.2", "other keys"),
        ("train.loss='mse'", "mean absolute error"),
    ],
)
def test_plain_flower_is_not_compared_with_other_work(metr_la, override, problem):
    experiment = runs.read_experiment("sfl/metr-la-week.toml", [override], "fedavg")
    with pytest.raises(ExperimentError, match=problem):
        runs.plain_flower(experiment, len(runs.client_names(experiment)), rounds=1)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_a_plain_app_that_fails_shows_its_log(metr_la, monkeypatch, tmp_path):
    experiment = runs.read_experiment("sfl/metr-la-week.toml", ["model.hidden=4"], "fedavg", SENSORS)
    monkeypatch.setattr(runs, "PLAIN_APP", tmp_path)
    with pytest.raises(RunError, match="did not finish"):
        runs.plain_flower(experiment, SENSORS, rounds=1)


def test_kernels_are_timed_with_and_without(monkeypatch, capsys):
    from fedgraph.simulations.benchmarks import kernels

    tiny = ('data={set = "digits", clients = 3}', "evaluation.targets={}", "experiment.rounds=1")
    monkeypatch.setattr(kernels, "EXPERIMENTS", {"ipa/digits.toml": ("perceptron", tiny)})
    kernels.kernels(rounds=1, repeats=1)
    said = capsys.readouterr().out
    assert "ipa/digits.toml" in said
    assert "perceptron" in said
    assert kernels.KERNELS["perceptron"].library is not None
