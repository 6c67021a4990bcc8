"""Strategies in Flower's own loop, with ClientApps that know nothing of this package but its mod and terms."""

import logging
import math
import os
import re
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod, message_size_mod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedgraph import ClientGraph
from fedgraph.algorithms import Algorithm, Ask, cgsv, matrix, written
from fedgraph.clients import Peers, alignment, client_name, loss_terms, proximity
from fedgraph.federation.grids import LocalGrid
from fedgraph.strategies import CGSV, IPA, SFL, FedAtt, FedPer, LGFedAvg, PFedGraph, SFLStar
from fedgraph.strategies.engine.flower import FlowerStrategy
from fedgraph.support.errors import ExperimentError, FedgraphError, IdentityError, RunError

NAMES = ("county", "mercy", "saint-luke", "valley")
GRAPH = ClientGraph.from_edges([("mercy", "county"), ("saint-luke", "valley")])
SLOPES = dict(zip(NAMES, (1.0, 1.0, 4.0, 4.0), strict=True))


@pytest.fixture(autouse=True)
def quiet():
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def rows_of(name):
    x = torch.randn(32, 2, generator=torch.Generator().manual_seed(NAMES.index(name)))
    return x, x @ torch.tensor([[SLOPES[name]], [0.5]])


def reply(message, net, **metrics):
    content = {"metrics": MetricRecord({"num-examples": 32, **metrics})}
    if net is not None:
        content["arrays"] = ArrayRecord(net.state_dict())
    return Message(RecordDict(content), reply_to=message)


def linear():
    return torch.nn.Linear(2, 1)


class Plain:
    """An app as a user of Flower writes it: a linear model, a training loop, and nothing else."""

    def __init__(
        self, mods=(client_name,), term=lambda net, message: 0.0, spoil=None, net=lambda: torch.nn.Linear(2, 1)
    ):
        self.sent, self.app = [], ClientApp(mods=list(mods))

        @self.app.train()
        def train(message, context):
            self.sent.append((context.node_config["client"], message))
            name, model = context.node_config["client"], net()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            x, y = rows_of(name)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean() + term(model, message)
                loss.backward()
                optimizer.step()
            answer = reply(message, model, loss=loss.item())
            return answer if spoil is None else spoil(answer, name, message.content["config"]["server-round"])

        @self.app.evaluate()
        def evaluate(message, context):
            model = net()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            x, y = rows_of(context.node_config["client"])
            return reply(message, None, mse=(model(x) - y).square().mean().item())

    def grid(self, names=NAMES):
        return LocalGrid(self.app, [{"client": name} for name in names])


def initial(net=linear):
    torch.manual_seed(0)
    return ArrayRecord(net().state_dict())


def mse(result):
    return [round(record["mse"], 4) for record in result.evaluate_metrics_clientapp.values()]


def arrays(strategy):
    return {
        name: {key: array.numpy() for key, array in found.items()} for name, found in strategy.client_arrays.items()
    }


def same(one, other):
    return all(np.array_equal(array, other[name][key]) for name, found in one.items() for key, array in found.items())


STRATEGIES = {
    "sfl": lambda **more: SFL(GRAPH, alpha=0.8, hops=2, **more),
    "sfl-updates": lambda **more: SFL(GRAPH, mixes="updates", hops=1, **more),
    "sfl-star": lambda **more: SFLStar(neighbours=1, hops=1, **more),
    "pfedgraph": PFedGraph,
    "cgsv": CGSV,
    "fedatt": FedAtt,
    "fedper": lambda **more: FedPer(personal_layers=("bias",), **more),
    "lg-fedavg": lambda **more: LGFedAvg(personal_layers=("weight",), **more),
    "ipa": lambda **more: IPA(power=2, lambda_alignment=0.1, **more),
}
every = pytest.mark.parametrize("method", STRATEGIES)


def test_what_the_readme_shows():
    strategy = SFL(GRAPH, alpha=1.0, hops=1, fraction_evaluate=1.0)
    result = strategy.start(
        grid=Plain().grid(), initial_arrays=initial(), num_rounds=6, train_config=ConfigRecord({"lr": 0.1})
    )
    assert mse(result)[-1] < 0.01
    averaged = FedAvg().start(Plain().grid(), initial(), num_rounds=6)
    assert mse(averaged)[-1] > 100 * mse(result)[-1], "one model for two slopes"
    weights = {name: found["weight"][0, 0] for name, found in arrays(strategy).items()}
    assert weights == pytest.approx(SLOPES, abs=0.2)
    assert result.arrays["weight"].numpy()[0, 0] == pytest.approx(2.5, abs=0.1)
    told = strategy.history
    assert list(told.columns) == ["round", "client", "metric", "value"]
    assert set(told["metric"]) == {"train/loss", "evaluate/mse"}
    assert len(told) == 6 * 4 * 2


@every
def test_an_aggregate_is_that_of_a_matrix_bit_for_bit(method):
    """Which is what the engine hands to the same algorithm."""
    strategy, checked = STRATEGIES[method](), []
    rounds = strategy.algorithm.round

    def twice(clients, state, number):
        plain = {**_copied(state), "models": matrix(state["models"])}
        beside, ours = rounds(clients, plain, number), rounds(clients, state, number)
        ask = next(ours)
        next(beside)
        while True:
            answers = yield ask
            told = {name: matrix(rows) for name, rows in answers.tensors.items()}
            expected = _sent(beside, replace(answers, tensors=told))
            try:
                ask = ours.send(answers)
            except StopIteration as end:
                checked.append(torch.equal(matrix(end.value["models"]), expected["models"]))
                return end.value

    strategy.algorithm.round = twice
    strategy.start(Plain().grid(), initial(), num_rounds=2)
    assert checked == [True, True]


def _copied(state):
    return {key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)} | {
        key: value for key, value in state.items() if isinstance(value, dict)
    }


def _sent(rounds, answers):
    try:
        rounds.send(answers)
    except StopIteration as end:
        return end.value
    return None


@every
def test_runs_repeat_and_order_of_nodes_and_replies_is_of_no_matter(method):
    class Backwards(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            return list(super().send_and_receive(messages, timeout=timeout))[::-1]

    first, second = STRATEGIES[method](), STRATEGIES[method]()
    one = first.start(Plain().grid(), initial(), num_rounds=3)
    nodes = [{"client": name} for name in reversed(NAMES)]
    other = second.start(Backwards(Plain().app, nodes), initial(), num_rounds=3)
    assert same(arrays(first), arrays(second))
    assert {key: value.numpy().tolist() for key, value in one.arrays.items()} == {
        key: value.numpy().tolist() for key, value in other.arrays.items()
    }


@every
@pytest.mark.parametrize("how", ["fails", "silent"])
def test_a_client_that_does_not_answer_keeps_its_model_and_comes_back_under_another_id(method, how, caplog):
    def spoil(answer, name, number):
        if (name, number) == ("mercy", 2):
            raise OSError("disk full:\n  /data\t0 bytes free")
        return answer

    class Away(LocalGrid):
        def get_node_ids(self):
            return [node for node in super().get_node_ids() if node != self.gone]

    app = Plain(spoil=spoil if how == "fails" else None)
    grid = Away(app.app, [{"client": name} for name in NAMES])
    grid.gone = None
    strategy = STRATEGIES[method](min_available_nodes=3, min_train_nodes=3, min_evaluate_nodes=3)
    own, fraction = [], {"fails": None, "silent": 1001}[how]

    def between(number, found):
        grid.gone = fraction if number == 1 else None
        if number == 2 and how == "silent":
            grid.contexts[2001] = grid.contexts.pop(1001)
            grid.contexts[2001].node_id = 2001
        own.append(arrays(strategy))
        return None

    with caplog.at_level("WARNING", logger="fedgraph"):
        strategy.start(grid, initial(), num_rounds=3, evaluate_fn=between)
    assert sorted(strategy.client_arrays) == sorted(NAMES)
    if method not in ("fedatt", "fedper", "lg-fedavg", "ipa"):
        assert same({"mercy": own[1]["mercy"]}, {"mercy": own[2]["mercy"]}), "round 2 passed without it"
    assert not same({"mercy": own[2]["mercy"]}, {"mercy": own[3]["mercy"]})
    if how == "fails":
        assert "no usable answer of client 'mercy': OSError: disk full:\n      /data\t0 bytes" in caplog.text
    rounds = strategy.history.query("client == 'mercy' and metric == 'train/loss'")["round"].tolist()
    assert rounds == [1, 3]


def test_all_nodes_train_in_the_first_round_though_some_connect_while_it_waits():
    class Connecting(LocalGrid):
        asked = 0
        nodes_may_come = True

        def get_node_ids(self):
            self.asked += 1
            return list(super().get_node_ids())[: 1 + self.asked]

    def trained(kind):
        strategy = SFL(GRAPH, fraction_evaluate=0.0, hops=1)
        strategy.start(kind(Plain().app, [{"client": name} for name in NAMES]), initial(), num_rounds=1)
        return strategy.client_arrays

    slow, at_once = trained(Connecting), trained(LocalGrid)
    for name in NAMES:
        assert slow[name]["weight"].data == at_once[name]["weight"].data


@pytest.mark.parametrize("keyword", [{}, {"fraction_train": 0.0, "fraction_evaluate": 1.0}])
def test_too_few_nodes_where_no_more_may_come_are_an_error(keyword):
    with pytest.raises(RunError, match="^3 nodes .*min_available_nodes = 4"):
        SFL(GRAPH, **keyword).start(Plain().grid(NAMES[:3]), initial(), num_rounds=1)


ALL_BUT_ONE = {"min_available_nodes": 3, "min_train_nodes": 3, "min_evaluate_nodes": 3}


def start_with_a_late_client(strategy, app, num_rounds):
    """County comes after the second round."""

    class Late(LocalGrid):
        late = True

        def get_node_ids(self):
            return [node for node in super().get_node_ids() if not (self.late and node == 1000)]

    def between(number, found):
        grid.late = number < 2
        return None

    grid = Late(app.app, [{"client": name} for name in NAMES])
    strategy.start(grid, initial(), num_rounds=num_rounds, evaluate_fn=between)


@pytest.mark.parametrize("method", ["sfl", "sfl-star", "pfedgraph", "cgsv", "ipa", "fedper"])
def test_a_client_that_joins_late(method):
    strategy = STRATEGIES[method](**ALL_BUT_ONE)
    start_with_a_late_client(strategy, Plain(), 4)
    assert sorted(strategy.client_arrays) == sorted(NAMES)
    rounds = strategy.history.query("client == 'county' and metric == 'train/loss'")["round"].tolist()
    assert rounds == [3, 4]


def test_a_client_that_joins_late_leaves_the_others_what_they_have_contributed(monkeypatch):
    begun, known = [], cgsv.CGSV.with_new
    monkeypatch.setattr(cgsv.CGSV, "with_new", lambda *given: begun.append((given[2], known(*given))) or begun[-1][1])
    start_with_a_late_client(CGSV(alpha=0.0, **ALL_BUT_ONE), Plain(), 4)
    assert begun[0][1].tolist() == pytest.approx([1 / 3] * 3)
    before, after = begun[2]
    assert len(set(before[1:].tolist())) == 3
    assert before[0].isnan()
    torch.testing.assert_close(after, torch.cat([torch.tensor([0.25]).double(), 0.75 * before[1:]]))
    assert begun[3][0] is begun[3][1]


class Drawing(Algorithm):
    """Begins with models of its own, and remembers what it began with."""

    def init(self, clients, models):
        drawn = torch.full(models.shape, 7.0) * (matrix(models)[:, :1] != 0)
        return {"models": written(models, torch.arange(len(clients)), drawn), "first": matrix(models)[:, 0]}

    def aggregate(self, clients, state, answers):
        return torch.ones_like(answers.parameters)


class DrawingStrategy(FlowerStrategy):
    algorithm_class = Drawing
    needs_names = True


def test_init_leaves_the_models_of_others_alone_when_a_client_joins():
    app, strategy = Plain(), DrawingStrategy(**ALL_BUT_ONE)
    start_with_a_late_client(strategy, app, 3)
    sent = [(name, set(message.content["arrays"]["weight"].numpy().flatten().tolist())) for name, message in app.sent]
    names = ("mercy", "saint-luke", "valley")
    assert sorted(sent[:3]) == [(name, {7.0}) for name in names]
    assert sorted(sent[6:]) == [("county", {7.0}), *((name, {1.0}) for name in names)]
    assert strategy._app.state["first"].tolist() == [7, 7, 7, 7]


def test_peers_with_models_of_their_own_keep_them_when_one_joins():
    def own(name):
        torch.manual_seed(NAMES.index(name))
        return ArrayRecord(torch.nn.Linear(2, 1).state_dict())

    app = Plain()
    strategy = IPA(initial_model=own, turns="simultaneous", **ALL_BUT_ONE)
    start_with_a_late_client(strategy, app, 3)
    sent = {name: message.content["arrays"]["weight"].numpy().tolist() for name, message in app.sent[6:]}
    first = {name: own(name)["weight"].numpy().tolist() for name in NAMES}
    assert [name for name in NAMES if sent[name] == first[name]] == ["county"]


def other_shape(answer):
    answer.content["arrays"]["weight"] = Array(np.zeros((3, 3), np.float32))


def other_layer(answer):
    answer.content["arrays"]["gate"] = Array(np.zeros(2, np.float32))


def no_layer(answer):
    del answer.content["arrays"]["bias"]


def not_finite(answer):
    answer.content["arrays"]["bias"] = Array(np.full(1, np.nan, np.float32))


def absurd_values(answer):
    answer.content["arrays"]["bias"] = Array(np.full(1, 1e20, np.float32))


def other_kind(answer):
    answer.content["arrays"]["bias"] = Array(np.zeros(1, np.int64))


def absurd_count(answer):
    answer.content["metrics"]["num-examples"] = -3


def unknown_count(answer):
    answer.content["metrics"]["num-examples"] = math.nan


def endless_count(answer):
    answer.content["metrics"]["num-examples"] = math.inf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_shape, r"layer 'weight' has the shape \(3, 3\) in place of \(1, 2\)"),
        (other_layer, "its model has layer 'gate', unlike the one that was sent"),
        (no_layer, "its model lacks layer 'bias', unlike the one that was sent"),
        (not_finite, "layer 'bias' has values that are not finite: has training diverged"),
        (absurd_values, r"layer 'bias' has values above 1e\+15: has training diverged"),
        (other_kind, "layer 'bias' is torch.int64 in place of torch.float32"),
        (absurd_count, "'num-examples' is -3, which is no number of examples"),
        (unknown_count, "'num-examples' is nan, which is no number of examples"),
        (endless_count, "'num-examples' is inf, which is no number of examples"),
    ],
)
def test_an_answer_that_cannot_be_used_is_left_out_with_client_and_layer(change, words, caplog):
    def spoil(answer, name, number):
        if name == "valley":
            change(answer)
        return answer

    strategy = STRATEGIES["sfl"]()
    with caplog.at_level("WARNING", logger="fedgraph"):
        result = strategy.start(Plain(spoil=spoil).grid(), initial(), num_rounds=2)
    assert re.search(f"round 1, training: no usable answer of client 'valley': {words}", caplog.text)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    start = {key: array.numpy() for key, array in initial().items()}
    assert same({"valley": start}, {"valley": arrays(strategy)["valley"]})


def test_without_the_mod_it_is_said_what_to_add():
    with pytest.raises(IdentityError, match=r"`ClientApp\(mods=\[client_name\]\)`"):
        STRATEGIES["sfl"]().start(Plain(mods=()).grid(), initial(), num_rounds=1)


@pytest.mark.parametrize("method", ["sfl-star", "pfedgraph", "cgsv", "fedatt", "fedper", "lg-fedavg"])
def test_strategies_that_need_no_names_work_without_the_mod(method):
    strategy = STRATEGIES[method]()
    strategy.start(Plain(mods=()).grid(), initial(), num_rounds=3)
    assert sorted(strategy.client_arrays) == ["1000", "1001", "1002", "1003"]


def test_names_that_two_nodes_have_or_the_graph_lacks(caplog):
    with pytest.raises(IdentityError, match="1000 and 1001 .*'mercy'"):
        STRATEGIES["sfl"](min_available_nodes=2).start(Plain().grid(("mercy", "mercy")), initial(), num_rounds=1)
    with pytest.raises(IdentityError, match="'county'.*`client`"):
        SFL(ClientGraph.from_edges([("a", "b")])).start(Plain().grid(("county", "valley")), initial(), num_rounds=1)
    with caplog.at_level("WARNING", logger="fedgraph"):
        SFL(ClientGraph.from_edges([("mercy", "county")])).start(Plain().grid(), initial(), num_rounds=1)
    assert "client 'valley' is not in the client graph and is excluded" in caplog.text
    assert "have not trained" not in caplog.text
    graph = ClientGraph.from_edges([("mercy", "county"), ("county", "valley")])
    with caplog.at_level("WARNING", logger="fedgraph"):
        strategy = SFL(graph, min_available_nodes=2)
        strategy.start(Plain().grid(("mercy", "county", "vally")), initial(), num_rounds=1)
    assert "client 'vally' is not in the client graph and is excluded; did you mean 'valley'" in caplog.text
    assert "clients of the graph that have not trained in these rounds: 'valley'" in caplog.text
    assert "valley" in strategy.client_arrays


def test_partition_ids_are_names_where_there_is_no_other():
    app = ClientApp(mods=[client_name])

    @app.train()
    def train(message, context):
        net = torch.nn.Linear(2, 1)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return reply(message, net)

    strategy = SFL(ClientGraph.from_adjacency(np.ones((3, 3)) - np.eye(3)), fraction_evaluate=0.0)
    strategy.start(LocalGrid.of_partitions(app, 3), initial(), num_rounds=1)
    assert list(strategy.client_arrays) == ["0", "1", "2"]
    nobody = LocalGrid(app, [{}, {}])
    with pytest.raises(IdentityError, match="the name of this client is unknown|no node sends one"):
        SFL(ClientGraph.complete(["0", "1"])).start(nobody, initial(), num_rounds=1)


def test_clients_of_flowers_old_api_are_told_what_to_write(caplog):
    class Old(pytest.importorskip("flwr.client").NumPyClient):
        def fit(self, parameters, config):
            return parameters, 1, {}

    app = ClientApp(client_fn=lambda context: Old().to_client(), mods=[client_name])
    with caplog.at_level(logging.WARNING, "fedgraph"):
        SFLStar().start(LocalGrid.of_partitions(app, 2), initial(), num_rounds=1)
    assert re.search(r"training: no usable answer .*a client_fn, .*@app.train\(\)", caplog.text)
    assert re.search(r"evaluation: no usable answer .*a client_fn, .*@app.train\(\)", caplog.text)


# ---- what is exchanged


class Mixed(torch.nn.Module):
    """Half, single and double precision, a counter and running statistics."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)
        self.single_gain = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.double_gain = torch.nn.Parameter(torch.ones(2, 1, dtype=torch.float64))

    def forward(self, x):
        return (self.norm(x).double() * self.single_gain.double()) @ self.double_gain


@every
def test_arrays_keep_their_types_and_counters_are_not_mixed(method):
    if method in ("fedper", "lg-fedavg"):
        strategy = {"fedper": FedPer, "lg-fedavg": LGFedAvg}[method](personal_layers=("norm.*",))
    else:
        strategy = STRATEGIES[method]()
    start = initial(Mixed)
    strategy.start(Plain(net=Mixed).grid(), start, num_rounds=2)
    for found in strategy.client_arrays.values():
        assert {key: array.dtype for key, array in found.items()} == {key: array.dtype for key, array in start.items()}
        assert int(found["norm.num_batches_tracked"].numpy()) == 10, "each client's own"
    assert strategy.arrays["double_gain"].dtype == "float64"


def test_double_precision_is_computed_with_in_double_precision():
    def net():
        return torch.nn.Linear(2, 1).double()

    strategy, seen = SFL(GRAPH, hops=1), []

    def spoil(answer, name, number):
        values = np.array([[1.0 + NAMES.index(name) * 1e-12, 0.0]])
        answer.content["arrays"]["weight"] = Array(values)
        seen.append(name)
        return answer

    app = ClientApp(mods=[client_name])

    @app.train()
    def train(message, context):
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        return spoil(reply(message, model), context.node_config["client"], 1)

    strategy.fraction_evaluate = 0.0
    strategy.start(LocalGrid(app, [{"client": name} for name in NAMES]), initial(net), num_rounds=1)
    assert arrays(strategy)["mercy"]["weight"][0, 0] - 1.0 == pytest.approx(0.5e-12, rel=1e-3)


def test_complex_arrays_are_refused():
    record = ArrayRecord({"w": Array(np.ones(2, np.complex64))})
    with pytest.raises(FedgraphError, match="array 'w' holds complex64"):
        SFL(GRAPH).start(Plain().grid(), record, num_rounds=1)


def test_what_is_sent_to_a_client_without_terms_is_flowers_own():
    app = Plain()
    STRATEGIES["sfl"]().start(app.grid(), initial(), num_rounds=1)
    for _, message in app.sent:
        assert set(message.content) == {"arrays", "config"}


def test_arrays_with_other_keys():
    app = ClientApp(mods=[client_name])

    @app.train()
    def train(message, context):
        assert message.content["settings"]["server-round"] == 1
        content = {"weights": message.content["weights"], "told": MetricRecord({"rows": 3 + NAMES.index("mercy")})}
        return Message(RecordDict(content), reply_to=message)

    strategy = SFL(
        GRAPH, arrayrecord_key="weights", configrecord_key="settings", weighted_by_key="rows", fraction_evaluate=0.0
    )
    strategy.start(LocalGrid(app, [{"client": name} for name in NAMES]), initial(), num_rounds=1)
    assert strategy.round == 1


def test_a_fraction_of_the_clients():
    strategy = STRATEGIES["sfl"](fraction_train=0.5, fraction_evaluate=0.5)
    strategy.start(Plain().grid(), initial(), num_rounds=4)
    counts = strategy.history.query("metric == 'train/loss'").groupby("round")["client"].nunique()
    assert counts.tolist() == [2, 2, 2, 2]


def test_models_larger_than_what_is_computed_with_at_once(monkeypatch):
    whole, part = STRATEGIES["sfl"](), STRATEGIES["sfl"]()
    whole.start(Plain().grid(), initial(), num_rounds=2)
    monkeypatch.setattr("fedgraph.algorithms.model_rows._AT_ONCE", 4)
    part.start(Plain().grid(), initial(), num_rounds=2)
    for name, found in arrays(whole).items():
        for key, array in found.items():
            np.testing.assert_allclose(arrays(part)[name][key], array, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_peak_memory_of_one_large_array_is_twice_the_models_of_the_clients():
    size, names = 2**26, ("county", "mercy", "saint-luke", "valley")
    app = ClientApp(mods=[client_name])

    @app.train()
    def train(message, context):
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    strategy = SFL(GRAPH, fraction_evaluate=0.0, hops=1)
    grid = LocalGrid(app, [{"client": name} for name in names])
    record = ArrayRecord({"w": Array(np.ones(size, np.float32))})
    process, peak, done = psutil.Process(os.getpid()), [0], threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.01)

    before = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    strategy.start(grid, record, num_rounds=1)
    done.set()
    watcher.join()
    models = len(names) * size * 4
    # Beside the models of all and their answers: a message, the read-out and its bytes.
    assert peak[0] - before < 2 * models + 3 * size * 4


# ---- terms of a loss


def test_proximity_is_equation_3_and_is_zero_without_lambdas():
    seen = []

    def term(net, message):
        value = proximity(net, message)
        seen.append((net.weight.detach().clone(), net.bias.detach().clone(), float(value), message))
        return value

    strategy = SFL(GRAPH, lambda_global=0.3, lambda_personal=0.2, hops=1)
    strategy.start(Plain(term=term).grid(), initial(), num_rounds=2)
    weight, bias, value, message = seen[-1]
    v = torch.cat([weight.flatten(), bias])
    u = {key: torch.from_numpy(array.numpy().copy()) for key, array in message.content["arrays"].items()}
    w = {
        key.partition("/")[2]: torch.from_numpy(a.numpy().copy())
        for key, a in message.content["fedgraph.global"].items()
    }
    expected = sum(
        weight * torch.linalg.vector_norm(v - torch.cat([c["weight"].flatten(), c["bias"]]))
        for weight, c in ((0.3, w), (0.2, u))
    )
    assert value == pytest.approx(float(expected), rel=1e-5)
    seen.clear()
    SFL(GRAPH).start(Plain(term=term).grid(), initial(), num_rounds=1)
    assert {value for _, _, value, _ in seen} == {0.0}
    FedAvg(min_available_nodes=4).start(Plain(term=term).grid(), initial(), num_rounds=1)


def test_proximity_pulls_models_together(caplog):
    def spread(strategy, app):
        strategy.start(app.grid(), initial(), num_rounds=3)
        weights = [found["weight"][0, 0] for found in arrays(strategy).values()]
        return float(np.std(weights))

    apart = spread(SFL(GRAPH, alpha=0.0), Plain())
    pulled = spread(SFL(GRAPH, alpha=0.0, lambda_global=3.0, distance="squared"), Plain(term=proximity))
    assert pulled < 0.7 * apart
    with caplog.at_level("WARNING", logger="fedgraph"):
        unused = spread(SFL(GRAPH, alpha=0.0, lambda_global=3.0), Plain())
    assert unused == apart
    said = [
        record.getMessage() for record in caplog.records if "no client has used the term of SFL" in record.getMessage()
    ]
    assert len(said) == 1, "once"
    assert "proximity(model, msg)" in said[0]


def test_alignment_is_the_sum_over_peers():
    seen = []

    def term(net, message):
        value = alignment(net, message, batch_size=4)
        seen.append((torch.cat([net.weight.detach().flatten(), net.bias.detach()]).clone(), float(value), message))
        return value

    strategy = IPA(lambda_alignment=0.6, order="ring")
    strategy.start(Plain(term=term).grid(), initial(), num_rounds=2)
    own, value, message = seen[-1]
    weights, peers = message.content["fedgraph.weights"]["weights"].numpy(), message.content["fedgraph.others"]
    others = [
        torch.from_numpy(np.concatenate([peers[f"{i}/weight"].numpy().ravel(), peers[f"{i}/bias"].numpy()]))
        for i in range(3)
    ]
    expected = 0.6 / 4 * sum(c * (own - other).abs().sum() for c, other in zip(weights, others, strict=True))
    assert value == pytest.approx(float(expected), rel=1e-5)
    assert weights.tolist() == pytest.approx([0.25] * 3)


LOSSES = {
    "sfl": lambda: SFL(GRAPH, lambda_global=0.3, lambda_personal=0.2, hops=1),
    "sfl, squared": lambda: SFL(GRAPH, lambda_global=0.3, lambda_personal=0.2, distance="squared"),
    "sfl, the personalised model alone": lambda: SFL(GRAPH, lambda_personal=0.2),
    "sfl without lambdas": lambda: SFL(GRAPH),
    "ipa": lambda: IPA(lambda_alignment=0.6, power=2),
    "ipa, absolute": lambda: IPA(lambda_alignment=0.6, power=1),
    "ipa in a ring": lambda: IPA(lambda_alignment=0.6, power=1.5, order="ring"),
    "fedavg": lambda: FedAvg(min_available_nodes=4, min_train_nodes=4),
}


@pytest.mark.parametrize("strategy", LOSSES)
def test_the_terms_of_arrays_are_those_of_pytorch_models(strategy):
    """In value and slope, also where training begins, at the model that was sent."""
    used = []

    def term(net, message):
        expected = proximity(net, message) + alignment(net, message, batch_size=4)
        terms = loss_terms(message, batch_size=4)
        parameters = list(net.parameters())
        as_arrays = terms.of([each.detach().numpy() for each in parameters])
        assert float(as_arrays) == pytest.approx(float(expected), rel=1e-5, abs=1e-12)
        as_tensors = terms._replace(centres=[[torch.from_numpy(a) for a in centre] for centre in terms.centres])
        if expected.requires_grad:
            slopes = torch.autograd.grad(as_tensors.of(parameters), parameters)
            for slope, right in zip(slopes, torch.autograd.grad(expected, parameters, retain_graph=True), strict=True):
                torch.testing.assert_close(slope, right, rtol=1e-4, atol=1e-6)
        used.append(float(expected))
        return expected

    LOSSES[strategy]().start(Plain(term=term).grid(), initial(), num_rounds=2)
    assert (max(used) > 0) == (strategy not in ("sfl without lambdas", "fedavg"))


def test_a_strategy_hears_that_the_terms_of_arrays_are_used(caplog):
    def term(net, message):
        named = {name: each.detach().numpy() for name, each in net.named_parameters()}
        return float(loss_terms(message).of(named))

    with caplog.at_level("WARNING", logger="fedgraph"):
        SFL(GRAPH, lambda_global=0.3).start(Plain(term=term).grid(), initial(), num_rounds=1)
        IPA(lambda_alignment=0.3).start(Plain(term=term).grid(), initial(), num_rounds=1)
    assert "no client has used the term" not in caplog.text


def test_terms_of_arrays_in_another_order_are_refused(caplog):
    def term(net, message):
        return loss_terms(message).of([net.bias.detach().numpy(), net.weight.detach().numpy()])

    SFL(GRAPH, lambda_global=0.3).start(Plain(term=term).grid(), initial(), num_rounds=1)
    assert "arrays of shapes [(1,), (1, 2)], but the message has [(1, 2), (1,)]" in caplog.text


def test_peers_that_move_along_come_to_agree():
    """With both sides moved, as the engine's clients do; with the other side fixed they do too, later."""

    def app_with(moved):
        app = ClientApp(mods=[client_name])

        @app.train()
        def train(message, context):
            net = torch.nn.Linear(2, 1)
            net.load_state_dict(message.content["arrays"].to_torch_state_dict())
            x, y = rows_of(context.node_config["client"])
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            peers = Peers(net, message, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
            for _ in range(5):
                optimizer.zero_grad()
                peers.zero_grad()
                pull = peers.alignment(len(x)) if moved else alignment(net, message, len(x))
                ((net(x) - y).square().mean() + pull).backward()
                optimizer.step()
                if moved:
                    peers.step()
            return peers.reply({"num-examples": len(x)}) if moved else reply(message, net)

        return LocalGrid(app, [{"client": name} for name in NAMES])

    def spread(moved):
        strategy = IPA(power=2, lambda_alignment=30.0, order="ring", fraction_evaluate=0.0)
        strategy.start(app_with(moved), initial(), num_rounds=3)
        return float(np.std([found["weight"][0, 0] for found in arrays(strategy).values()]))

    both, one = spread(True), spread(False)
    assert both < 0.8 * one


def test_peers_that_have_not_answered_yet_weigh_as_much_as_others_on_average():
    counts = dict(zip(NAMES, (600, 1000, 1400, 2000), strict=True))
    sent, app = [], ClientApp(mods=[client_name])

    @app.train()
    def train(message, context):
        name = context.node_config["client"]
        sent.append((name, message.content["fedgraph.weights"]["weights"].numpy().tolist()))
        net = linear()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        answer = reply(message, net)
        answer.content["metrics"]["num-examples"] = counts[name]
        return answer

    grid = LocalGrid(app, [{"client": name} for name in NAMES])
    strategy = IPA(order="ring", fraction_evaluate=0.0)
    strategy.start(grid, initial(), num_rounds=2)
    known = [dict.fromkeys(NAMES, 1.0)]
    for answered in range(1, 5):
        so_far = {name: counts[name] for name in NAMES[:answered]}
        known.append(dict.fromkeys(NAMES, sum(so_far.values()) / answered) | so_far)
    for turn, (name, weights) in enumerate(sent):
        found = known[min(turn, 4)]
        others = [found[other] / sum(found.values()) for other in NAMES if other != name]
        assert weights == pytest.approx(others)
    assert len(sent) == 8


def test_ipa_with_a_model_of_each_peers_own():
    def own(name):
        torch.manual_seed(NAMES.index(name))
        return ArrayRecord(torch.nn.Linear(2, 1).state_dict())

    app = Plain()
    IPA(initial_model=own, order="ring").start(app.grid(), initial(), num_rounds=1)
    for name, message in app.sent[:1]:
        np.testing.assert_array_equal(message.content["arrays"]["weight"].numpy(), own(name)["weight"].numpy())


class Sending(Algorithm):
    """Sends clients what is no model: to all of them the same, and to each its own; and a further model."""

    def round(self, clients, state, number):
        rows = torch.arange(2.0 * len(clients)).reshape(-1, 2)
        shared = {"table": torch.ones(2, 2), "mean": matrix(state["models"]).mean(0)}
        answers = yield Ask({"parameters": state["models"], "row": rows}, shared, models=("mean",))
        return {"models": written(state["models"], answers.positions, answers.parameters)}


def test_clients_are_sent_what_an_algorithm_asks_for_beside_models():
    class SendingStrategy(FlowerStrategy):
        algorithm_class = Sending
        needs_names = True

    app = Plain()
    SendingStrategy().start(app.grid(), initial(), num_rounds=1)
    for name, message in app.sent:
        place = NAMES.index(name)
        assert message.content["fedgraph.row"]["row"].numpy().tolist() == [2 * place, 2 * place + 1]
        assert message.content["fedgraph.table"]["table"].numpy().tolist() == [[1, 1], [1, 1]]
        mean = message.content["fedgraph.mean"]["0/weight"].numpy()
        np.testing.assert_allclose(mean, initial()["weight"].numpy(), rtol=1e-6)


def normalised():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))


@pytest.mark.parametrize("make", [partial(SFL, GRAPH, mixes="updates"), CGSV], ids=["sfl-updates", "cgsv"])
def test_running_statistics_are_no_part_of_updates(make):
    """Momentum, and updates of one length, can make a variance negative."""
    last = {}

    def kept(answer, name, number):
        arrays = answer.content["arrays"].to_torch_state_dict()
        last[name] = torch.cat([arrays["1.running_mean"], arrays["1.running_var"]])
        return answer

    strategy = make()
    strategy.start(Plain(spoil=kept, net=normalised).grid(), initial(normalised), num_rounds=4)
    found = {name: [model["1.running_mean"], model["1.running_var"]] for name, model in arrays(strategy).items()}
    own = torch.stack([torch.from_numpy(np.concatenate(found[name])) for name in NAMES])
    sent = torch.stack([last[name] for name in NAMES])
    if isinstance(strategy, CGSV):
        # The mean by importance, the same for all.
        sent = (strategy._app.state["importance"].float() @ sent).expand_as(sent)
    torch.testing.assert_close(own, sent, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("keyword", [{"start": "read-out"}, {"released": True}])
def test_sfl_refuses_a_start_that_clients_of_an_app_do_not_have(keyword):
    for kind in (SFL, SFLStar):
        with pytest.raises(ExperimentError, match="start and released"):
            kind(GRAPH, **keyword)


@pytest.mark.parametrize("keyword", [{"noise": 0.01}, {"privacy": {"clip_norm": 1.0, "epsilon": 1.0, "releases": 3}}])
def test_ipa_refuses_noise_that_clients_of_an_app_do_not_add(keyword):
    with pytest.raises(ExperimentError, match="noise and privacy are only for experiments"):
        IPA(**keyword)


class Summing(Algorithm):
    """Asks clients for a tensor that is no model, twice in a round."""

    def init(self, clients, models):
        return {"models": models, "sums": torch.zeros(len(clients), 3)}

    def round(self, clients, state, number):
        returns = {"parameters": (clients.layout.num_parameters,), "sums": (3,)}
        answers = yield Ask({"parameters": state["models"]}, returns=returns)
        sums = state["sums"].index_copy(0, answers.positions, answers.tensors["sums"])
        again = yield Ask({"parameters": state["models"]}, returns=returns)
        sums = sums.index_add(0, again.positions, again.tensors["sums"])
        return {"models": written(state["models"], answers.positions, answers.parameters), "sums": sums}


class SummingStrategy(FlowerStrategy):
    algorithm_class = Summing


@pytest.mark.parametrize("graph", [None, GRAPH])
def test_clients_answer_tensors_that_are_no_models(graph, caplog):
    def add(answer, name, number):
        sums = [np.arange(3, dtype=np.float64) * (1 + NAMES.index(name))]
        if name == "mercy":
            sums = [sums[0][:2]] if number == 1 else None
        if name == "valley" and number == 2:
            sums = [np.full(3, np.nan)]
        if sums is not None:
            answer.content["fedgraph.sums"] = ArrayRecord(sums)
        return answer

    strategy = SummingStrategy(graph)
    strategy.start(Plain(spoil=add).grid(), initial(), num_rounds=2)
    rows = strategy._app.state["sums"]
    county, mercy, luke, valley = (rows[strategy._app.clients.names.index(name)].tolist() for name in NAMES)
    assert (county, luke) == ([0, 2, 4], [0, 6, 12])
    assert mercy == [0, 0, 0], "never usable"
    assert valley == [0, 8, 16], "of the first round"
    for told in ("'mercy': its 'sums' has shape (2,) instead of (3,)", "'mercy': it lacks 'fedgraph.sums'",
                 "'valley': its 'sums' has non-finite values"):  # fmt: skip
        assert told in caplog.text


@every
def test_every_start_is_a_run_of_its_own(method):
    strategy = STRATEGIES[method]()
    first = strategy.start(Plain().grid(), initial(), num_rounds=2)
    before, told = arrays(strategy), strategy.history
    again = strategy.start(Plain().grid(), initial(), num_rounds=2)
    assert same(before, arrays(strategy))
    assert list(again.train_metrics_clientapp) == list(first.train_metrics_clientapp) == [1, 2]
    assert strategy.history.equals(told)


def test_layers_that_clients_keep_are_in_the_read_out_as_they_were():
    strategy, start = STRATEGIES["fedper"](), {key: array.numpy() for key, array in initial().items()}
    result = strategy.start(Plain().grid(), initial(), num_rounds=2)
    np.testing.assert_array_equal(result.arrays["bias"].numpy(), start["bias"])
    assert not np.array_equal(result.arrays["weight"].numpy(), start["weight"])
    assert len({float(found["bias"][0]) for found in arrays(strategy).values()}) == 4


def test_metrics_that_cannot_be_averaged_are_named(caplog):
    def spoil(answer, name, number):
        if name == "mercy":
            answer.content["metrics"]["other"] = 1.0
        return answer

    strategy = STRATEGIES["sfl"]()
    with caplog.at_level("WARNING", logger="fedgraph"):
        result = strategy.start(Plain(spoil=spoil).grid(), initial(), num_rounds=1)
    assert "metrics of 'mercy' are not in the mean" in caplog.text
    assert set(result.train_metrics_clientapp[1]) == {"loss"}
    assert "train/other" in set(strategy.history["metric"])


@pytest.mark.parametrize("method", ["sfl", "pfedgraph"])
def test_without_training_the_initial_model_is_evaluated(method):
    result = STRATEGIES[method](fraction_train=0.0).start(Plain().grid(), initial(), num_rounds=1)
    expected = FedAvg(fraction_train=0.0, min_available_nodes=4).start(Plain().grid(), initial(), num_rounds=1)
    assert mse(result) == mse(expected)


# ---- saved, loaded, wrapped


@every
def test_a_strategy_that_was_saved_goes_on_to_the_same_weights(method, tmp_path, caplog):
    whole = STRATEGIES[method]()
    expected = whole.start(Plain().grid(), initial(), num_rounds=4)
    first = STRATEGIES[method](save_to=tmp_path)

    def killed(number, found):
        if number == 2:
            raise KeyboardInterrupt
        return None

    with pytest.raises(KeyboardInterrupt):
        first.start(Plain().grid(), initial(), num_rounds=4, evaluate_fn=killed)
    again = type(first).load(tmp_path)
    assert again.round == 2
    again._save_to = tmp_path
    rounds = []
    result = again.start(
        Plain().grid(),
        num_rounds=4,
        evaluate_fn=lambda number, found: rounds.append(number) or MetricRecord({"n": number}),
    )
    assert rounds == [3, 4]
    assert list(result.evaluate_metrics_clientapp) == [3, 4]
    assert same(arrays(whole), arrays(again))
    for key, array in expected.arrays.items():
        np.testing.assert_array_equal(result.arrays[key].numpy(), array.numpy())
    assert again.history.equals(whole.history)
    assert "initial_arrays are ignored" not in caplog.text
    other = type(first).load(tmp_path)
    with caplog.at_level("WARNING", logger="fedgraph"):
        other.start(Plain().grid(), initial(), num_rounds=4)
    assert "initial_arrays are ignored: the loaded strategy continues after round" in caplog.text
    assert "nothing to do" in caplog.text


def test_a_strategy_of_another_class_is_not_loaded(tmp_path):
    strategy = STRATEGIES["sfl"]()
    strategy.start(Plain().grid(), initial(), num_rounds=1)
    strategy.save(tmp_path)
    with pytest.raises(RunError, match="SFL, not IPA"):
        IPA.load(tmp_path)
    with pytest.raises(RunError, match="cannot read the saved state"):
        SFL.load(tmp_path / "nowhere")


def test_within_a_wrapper_for_privacy_it_runs_and_says_what_has_no_noise(caplog):
    wrapped = DifferentialPrivacyServerSideFixedClipping(STRATEGIES["sfl"](), 0.1, 1.0, 4)
    with caplog.at_level("WARNING", logger="fedgraph"):
        result = wrapped.start(Plain().grid(), initial(), num_rounds=1)
    assert "affect only the read-out, not the clients' own models" in caplog.text
    assert result.arrays["weight"].numpy().shape == (1, 2)


def test_mods_of_flower_around_it():
    strategy = STRATEGIES["sfl"]()
    app = Plain(mods=(message_size_mod, client_name))
    strategy.start(app.grid(), initial(), num_rounds=1)
    clipped = STRATEGIES["sfl"](fraction_evaluate=0.0)
    config = ConfigRecord({"clipping_norm": 1e-4})
    try:
        clipped.start(Plain(mods=(client_name, fixedclipping_mod)).grid(), initial(), num_rounds=1, train_config=config)
    except FedgraphError as error:
        pytest.fail(str(error))
    start = initial()["weight"].numpy()
    for found in arrays(clipped).values():
        assert np.abs(found["weight"] - start).max() <= 1.1e-4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SFL(), r"SFL\(graph\)"),
        (lambda: SFL(GRAPH, hop=2), "'hop'; .*did you mean 'hops'"),
        (lambda: SFL([("a", "b")]), r"graph is a fedgraph.ClientGraph, not \[\('a', 'b'\)\]"),
        (lambda: SFL(GRAPH, alpha=2.0), "SFL alpha: .*got 2"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises((TypeError, FedgraphError), match=words):
        make()


# ---- algorithms of one's own


def of(algorithm):
    """Return the strategy of an algorithm."""
    return type(f"{algorithm.__name__}Strategy", (FlowerStrategy,), {"algorithm_class": algorithm})


class Twice(Algorithm):
    """All clients train, or the first three; then those train again that have answered."""

    first = None

    def round(self, clients, state, number):
        for to in (self.first, None):
            answers = yield replace(self.ask(clients, state), to=to)
            mean = answers.average(answers.num_examples)
            rows = answers.parameters + mean
            state = {**state, "models": written(state["models"], answers.positions, rows / 2)}
        return state


class FirstThreeTwice(Twice):
    first = torch.arange(3)


@pytest.mark.parametrize("algorithm", [Twice, FirstThreeTwice])
def test_a_round_of_two_exchanges_is_the_same_with_a_graph_and_without(algorithm):
    without, beside = of(algorithm)(), of(algorithm)(ClientGraph.complete(NAMES))
    apps = Plain(), Plain()
    for strategy, app in zip((without, beside), apps, strict=True):
        strategy.start(app.grid(), initial(), num_rounds=2)
    assert without.round == 2
    assert same(arrays(without), arrays(beside))
    assert len(apps[0].sent) == (16 if algorithm is Twice else 15), "the first contact is with all"


class Tensors(Algorithm):
    """Models as one tensor, as an algorithm for experiments may have them."""

    def init(self, clients, models):
        return {"models": matrix(models), "velocity": torch.zeros(*models.shape)}

    def round(self, clients, state, number):
        answers = yield self.ask(clients, state)
        velocity = 0.5 * state["velocity"] + answers.parameters - matrix(state["models"])
        return {"models": matrix(state["models"]) + velocity, "velocity": velocity}


class Rows(Tensors):
    def init(self, clients, models):
        return {**super().init(clients, models), "models": models}

    def round(self, clients, state, number):
        after = yield from super().round(clients, state, number)
        return {**after, "models": written(state["models"], torch.arange(len(clients)), after["models"])}


class AsAnswered(Algorithm):
    def round(self, clients, state, number):
        answers = yield self.ask(clients, state)
        return {**state, "models": answers.models}


class Unchanged(Algorithm):
    def aggregate(self, clients, state, answers):
        return answers.parameters


@pytest.mark.parametrize(("algorithm", "other"), [(Tensors, Rows), (AsAnswered, Unchanged)])
def test_models_may_be_returned_as_one_tensor_or_as_they_were_answered(algorithm, other):
    one, two = of(algorithm)(), of(other)()
    for strategy in (one, two):
        strategy.start(Plain().grid(), initial(), num_rounds=3)
    assert one.round == 3
    assert same(arrays(one), arrays(two))


class TooFew(Tensors):
    def round(self, clients, state, number):
        answers = yield self.ask(clients, state)
        return {**state, "models": answers.parameters[:2]}


class Arithmetic(Algorithm):
    def round(self, clients, state, number):
        answers = yield self.ask(clients, state)
        return {**state, "models": state["models"] + answers.parameters}


class Tuples(Unchanged):
    def init(self, clients, models):
        return {"models": models, "seen": ()}


class Incomplete(Algorithm):
    pass


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (TooFew, r"TooFew\.round, in round 1, .*\[2, 3\] .*\[4, 3\]"),
        (Arithmetic, r"Flower app .*matrix\(models\)"),
        (Tuples, r'Tuples\.init .*state\["seen"\] .*tuple'),
        (Incomplete, "Incomplete needs an aggregate"),
    ],
)
def test_what_an_algorithm_does_wrongly_is_told(algorithm, words):
    with pytest.raises((RunError, TypeError), match=words):
        of(algorithm)().start(Plain().grid(), initial(), num_rounds=1)


def test_a_strategy_without_an_algorithm_says_what_to_set():
    class Mine(FlowerStrategy):
        pass

    with pytest.raises(TypeError, match="algorithm_class = YourAlgorithm"):
        Mine()


def test_strategies_of_flower_are_there_under_their_names():
    from fedgraph import strategies

    assert strategies.FedAvg is FedAvg
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = strategies.Nothing


@pytest.mark.parametrize("weights", [(0.1, 0.2, 0.7, 0.0), (1.9, 1.1, 1.5, 1.0), (1, 2, 7, 3)])
def test_weights_may_be_fractions_as_in_flower(weights):
    """The read-out over a complete graph is the mean of FedAvg, with its weights, and so are the metrics."""
    of = dict(zip(NAMES, weights, strict=True))

    def weigh(answer, name, number):
        answer.content["metrics"] = MetricRecord({"importance": of[name], "loss": answer.content["metrics"]["loss"]})
        return answer

    app = Plain(spoil=weigh)
    own = {"weighting": "examples", "weighted_by_key": "importance", "most_examples": 0}
    strategy = SFL(ClientGraph.complete(NAMES), fraction_evaluate=0, **own)
    found = strategy.start(app.grid(), initial(), num_rounds=1)
    expected = FedAvg(weighted_by_key="importance", fraction_evaluate=0).start(app.grid(), initial(), num_rounds=1)
    for key, array in expected.arrays.items():
        np.testing.assert_allclose(found.arrays[key].numpy(), array.numpy(), rtol=1e-5)
    assert found.train_metrics_clientapp[1]["loss"] > 0


@pytest.mark.parametrize("claimed", [2**39, 0])
def test_claimed_examples_are_bounded_in_models_and_metrics(claimed, tmp_path, caplog):
    """Of four clients one counts as three at most; one without examples has no weight."""

    def claim(answer, name, number):
        if name == "valley":
            answer.content["metrics"]["num-examples"] = claimed
            answer.content["metrics"]["loss"] = 1e6
        return answer

    app, counted = Plain(spoil=claim), dict.fromkeys(NAMES, 32) | {"valley": min(claimed, 96)}
    strategy = SFL(ClientGraph.complete(NAMES), weighting="examples", fraction_evaluate=0, save_to=tmp_path)
    with caplog.at_level("WARNING", logger="fedgraph"):
        strategy.start(app.grid(), initial(), num_rounds=1)
        found = strategy.start(app.grid(), initial(), num_rounds=1)
    local = SFL(ClientGraph.from_edges([], NAMES), fraction_evaluate=0)
    local.start(Plain().grid(), initial(), num_rounds=1)
    for key, array in found.arrays.items():
        expected = sum(counted[name] * local.client_arrays[name][key].numpy() for name in NAMES) / sum(counted.values())
        np.testing.assert_allclose(array.numpy(), expected, rtol=1e-5)
    loss = found.train_metrics_clientapp[1]["loss"]
    assert loss == pytest.approx(1e6 * counted["valley"] / sum(counted.values()), abs=10)
    said = "'valley' counted as 96 examples each, and not as the up to 549,755,813,888 that they claim to have"
    assert caplog.text.count(said) == bool(claimed)
    again = SFL.load(tmp_path, save_to=None)
    again.start(app.grid(), num_rounds=2)
    assert again._app.clients.num_examples.tolist() == [counted[name] for name in sorted(NAMES)]


def test_a_bound_of_ones_own_is_kept(tmp_path):
    SFL(GRAPH, most_examples=7.5).save(tmp_path)
    assert SFL.load(tmp_path).most_examples == 7.5
    assert SFL.load(tmp_path, most_examples=2).most_examples == 2


def test_one_client_alone_is_trained():
    strategy = SFL(ClientGraph.complete(["mercy"]))
    result = strategy.start(Plain().grid(["mercy"]), initial(), num_rounds=1)
    assert len(result.train_metrics_clientapp) == 1
    assert list(strategy.client_arrays) == ["mercy"]
