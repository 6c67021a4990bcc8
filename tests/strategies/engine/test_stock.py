import itertools
import json
import random
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedgraph.algorithms.phases import has_phases
from fedgraph.clients.ditto import DittoClient
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.base import CohortClient
from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.stock import StockClient
from fedgraph.data import open_source, parse_data
from fedgraph.experiment import built_ins
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.messages import from_record, to_record
from fedgraph.runs.reports.words import sentence
from fedgraph.runs.result_files import load_models
from fedgraph.strategies.engine.stock_settings import build_stock, load_stock_state, stock_state
from fedgraph.strategies.fedprox import FedProx
from fedgraph.support.errors import ExperimentError, IdentityError, RunError


class Refuses(FedAvg):
    """A strategy that checks what it is given."""

    def __init__(self, some_value: float = 1.0) -> None:
        if some_value < 0:
            raise ValueError("must not be negative")
        super().__init__()


def summary(folder):
    return json.loads((folder.path / "summary.json").read_text())


def stock(tables, name, **table):
    head = {**tables["experiment"], "strategy": f"flwr.serverapp.strategy:{name}"}
    head.pop("method")
    return {**tables, "experiment": head, name: table}


def test_table_keys_are_checked_against_the_constructor():
    with pytest.raises(ExperimentError, match=r"\[FedAdam\] .*'etta'; .*eta"):
        build_stock(FedAdam, {"etta": 1}, "[FedAdam]", clients=2)
    with pytest.raises(ExperimentError, match="Refuses refuses these settings"):
        build_stock(Refuses, {"some-value": -1.0}, "[Refuses]", clients=2)


def test_stock_minimum_of_nodes_never_exceeds_the_clients_there_are():
    assert build_stock(FedAvg, {}, "[fedavg]", clients=1).min_available_nodes == 1
    assert build_stock(FedAvg, {}, "[fedavg]", clients=9).min_available_nodes == 2
    assert build_stock(FedAvg, {"min-available-nodes": 5}, "[fedavg]", clients=9).min_available_nodes == 5


def torch_models(folder):
    from safetensors.torch import load_file

    tensors = load_file(str(folder.path / "models.safetensors"))
    return torch.cat([tensors[name].flatten() for name in sorted(tensors) if name.startswith("global/")])


WRAPPED = {"strategy": "flwr.serverapp.strategy:FedAvg", "noise-multiplier": 0.0, "num-sampled-clients": 6}
STRATEGIES = {
    "Bulyan": {},
    "DifferentialPrivacyClientSideAdaptiveClipping": {**WRAPPED, "clipped-count-stddev": 0.0},
    "DifferentialPrivacyClientSideFixedClipping": {**WRAPPED, "clipping-norm": 0.05},
    "DifferentialPrivacyServerSideAdaptiveClipping": {**WRAPPED, "clipped-count-stddev": 0.0},
    "DifferentialPrivacyServerSideFixedClipping": {**WRAPPED, "clipping-norm": 0.05},
    "FedAdagrad": {"eta": 0.05},
    "FedAdam": {"eta": 0.01},
    "FedAvg": {},
    "FedAvgM": {"server-momentum": 0.5},
    "FedMedian": {},
    "FedProx": {"proximal-mu": 0.5},
    "FedTrimmedAvg": {"beta": 0.2},
    "FedYogi": {"eta": 0.01},
    "Krum": {"num-malicious-nodes": 1},
    "MultiKrum": {"num-malicious-nodes": 1, "num-nodes-to-select": 3},
    "QFedAvg": {"client-learning-rate": 0.1, "q": 0.2},
}
OF_TREES = {"FedXgbBagging", "FedXgbCyclic"}
"""Their clients send boosted trees."""


def flowers_own(tables, name, rounds, initial, data_dir):
    """The global model of Flower's own loop, with a node per client and an app as its documentation has them."""
    experiment = parse_experiment(tables)
    part = experiment.client_part({})
    mods = {
        "DifferentialPrivacyClientSideAdaptiveClipping": [adaptiveclipping_mod],
        "DifferentialPrivacyClientSideFixedClipping": [fixedclipping_mod],
    }
    app = ClientApp(mods=mods.get(name, []))

    def cohort_of(context):
        node = Node.of(context)
        return node.cohort(part, tuple(node.hosted(Assignment.of(part))))

    @app.train()
    def train(message, context):
        cohort, config = cohort_of(context), message.content["config"]
        w = cohort.model.layout.row(from_record(message.content["arrays"]))[None]
        mu = config.get("proximal-mu", 0.0)
        result = cohort.train(w, config["server-round"], lambda v, clients, weight: mu * (v - w[:, : v.shape[1]]))
        metrics = {"num-examples": int(result.num_examples), "train_loss": float(result.loss)}
        arrays = to_record(cohort.model.layout.row_state(result.parameters[0]))
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

    names = open_source(experiment.data, data_dir).client_names()
    configs = [{"clients": client, "data-dir": str(data_dir)} for client in names]
    untested = {"fraction-evaluate": 0.0}
    wraps = "strategy" in STRATEGIES[name]
    table = {**STRATEGIES[name], **({"strategy": {"name": WRAPPED["strategy"], **untested}} if wraps else untested)}
    stock = build_stock(getattr(flower, name), table, name, len(names))
    layout = Node.of(Context(1, 1, configs[0], RecordDict(), {})).cohort(part, tuple(names[:1])).model.layout
    arrays = to_record({name: initial[name] for name in layout.names})
    result = stock.start(LocalGrid(app, configs), arrays, num_rounds=rounds)
    state = from_record(result.arrays)
    return torch.cat([state[key].flatten().float() for key in sorted(state)])


@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in flower.__all__ if name in STRATEGIES])
def test_a_strategy_gives_what_it_gives_in_flowers_own_loop(digits_tables, run_experiment, data_dir, name):
    """For any number of nodes: it sees a reply of each client."""
    tables = stock(digits_tables, name, **STRATEGIES[name])
    start = run_experiment({**tables, "experiment": {**tables["experiment"], "rounds": 0}})
    wanted = flowers_own(tables, name, 2, load_models(start.models)[1], data_dir)
    assert not torch.allclose(wanted, torch_models(start), atol=1e-4)
    for nodes in (1, 2, 6):
        folder = run_experiment(tables, nodes=nodes)
        torch.testing.assert_close(torch_models(folder), wanted, rtol=1e-4, atol=1e-5)
    result = summary(folder)
    assert result["method"] == name
    assert set(result["per_client"]["test"]["accuracy"]) == {f"client-{i}" for i in range(6)}


def test_all_strategies_of_flower_are_tried():
    assert set(flower.__all__) - {"Result", "Strategy"} == STRATEGIES.keys() | OF_TREES


def test_a_fraction_of_the_clients_trains_whatever_the_nodes(digits_tables, run_experiment):
    tables = stock(digits_tables, "FedAvg", **{"fraction-train": 0.5, "min-train-nodes": 1})
    all_train = run_experiment(stock(digits_tables, "FedAvg")).summary()["training"]
    for nodes in (1, 2):
        folder = run_experiment(tables, nodes=nodes)
        (first, *_) = folder.trainings()
        assert sum(loss is not None for loss in first["per_client"]["loss"].values()) == 3
        assert folder.summary()["training"] == {name: count / 2 for name, count in all_train.items()}


def test_clients_that_are_not_drawn_for_evaluation_are_not_said_to_have_failed(digits_tables, run_experiment):
    some = stock(digits_tables, "FedAvg", **{"fraction-evaluate": 0.5, "min-evaluate-nodes": 1})
    told = run_experiment(some).summary()["not_measured"]["test"]
    assert len(told) == 3
    assert set(told.values()) == {"not drawn by FedAvg (fraction-evaluate)"}
    nobody = run_experiment(stock(digits_tables, "FedAvg", **{"fraction-evaluate": 0.0})).summary()
    assert sentence([nobody]).startswith("6 clients, none of which was measured. Data: ")


class Sometimes(FedAvg):
    """Draws among the replies, and aggregates nothing in round 2."""

    def aggregate_train(self, server_round, replies):
        if server_round == 2:
            return None, None
        return super().aggregate_train(server_round, random.sample(list(replies), 3))


def test_what_a_strategy_draws_is_seeded_and_what_it_leaves_out_is_noted(digits_tables, run_experiment):
    tables = own(digits_tables, Sometimes)
    tables["experiment"] |= {"rounds": 3, "client": f"{__name__}:Plain"}
    first, second = (run_experiment(tables, nodes=nodes).summary() for nodes in (1, 1))
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["notes"] == [
        f"clients of class {__name__}:Plain instead of those of Sometimes",
        "round 2: Sometimes aggregated nothing of 6 replies",
    ]


@pytest.mark.parametrize("level", ["INFO", "CRITICAL"])
def test_what_flower_warns_of_is_noted_however_quiet_it_is(digits_tables, run_experiment, caplog, level):
    caplog.set_level(level, logger="flwr")
    name = "DifferentialPrivacyServerSideFixedClipping"
    table = {**WRAPPED, "clipping-norm": 1.0, "num-sampled-clients": 600}
    (note,) = run_experiment(stock(digits_tables, name, **table)).summary()["notes"]
    assert "differs from the number of sampled clients (600)" in note


def test_a_weight_that_clients_do_not_send_is_refused(digits_tables, run_experiment):
    with pytest.raises(ExperimentError, match="weighted-by-key = 'batches'"):
        run_experiment(stock(digits_tables, "FedAvg", **{"weighted-by-key": "batches"}))


def test_a_strategy_that_aggregates_nothing_ends_in_an_error(digits_tables, run_experiment):
    with pytest.raises(RunError, match="Bulyan has not aggregated"):
        run_experiment(stock(digits_tables, "Bulyan", **{"num-malicious-nodes": 1}))


class OwnStart(FedAvg):
    def start(self, *args, **kwargs):
        raise AssertionError("never called")


class TwoRecords(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for message in super().configure_train(server_round, arrays, config, grid):
            message.content["variates"] = arrays
            yield message


class OneEach(FedAvg):
    """Sends every client a model and a term of its own, and keeps what each has sent back."""

    def configure_train(self, server_round, arrays, config, grid):
        for place, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
            state = {name: tensor + 0.01 * place for name, tensor in from_record(arrays).items()}
            records = {"arrays": to_record(state), "config": config.copy()}
            records["config"]["proximal-mu"] = float(message.metadata.dst_node_id)
            yield Message(RecordDict(records), message.metadata.dst_node_id, "train")


class Talkative(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = 0.5
        return super().configure_train(server_round, arrays, config, grid)


class Asking(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        grid.send_and_receive([])


class Counting(FedAvg):
    """Averages as FedAvg does, and looks at the metrics of each client."""

    seen: ClassVar[list] = []

    def __init__(self):
        super().__init__(train_metrics_aggr_fn=self.count)

    def count(self, records, weighted_by_key):
        self.seen.append([dict(record["metrics"]) for record in records])
        return MetricRecord()


def own(tables, strategy, **table):
    head = {**tables["experiment"], "strategy": f"{__name__}:{strategy.__name__}"}
    head.pop("method")
    return {**tables, "experiment": head, strategy.__name__: table}


@pytest.mark.parametrize(
    ("strategy", "error", "message"),
    [
        (OwnStart, ExperimentError, "OwnStart overrides `start`"),
        (TwoRecords, RunError, r"TwoRecords .*\(arrays, variates\)"),
        (Asking, RunError, "Asking, in round 1, sends messages itself"),
    ],
)
def test_what_a_strategy_needs_and_does_not_get_is_refused(digits_tables, run_experiment, strategy, error, message):
    with pytest.raises(error, match=message):
        run_experiment(own(digits_tables, strategy))


def test_the_strategy_that_is_wrapped_is_checked_too(digits_tables, run_experiment):
    name = "DifferentialPrivacyServerSideFixedClipping"
    for wrapped, message in (
        (None, r"strategy is the strategy to wrap: .flwr"),
        ("builtins:int", "'builtins' is a module of Python itself"),
        ({"name": WRAPPED["strategy"], "fraction": 1}, "strategy has no key 'fraction'"),
        ({"name": f"{__name__}:OwnStart"}, "OwnStart overrides `start`"),
    ):
        table = {**WRAPPED, "clipping-norm": 1.0, "strategy": wrapped if wrapped is not None else 3}
        with pytest.raises(ExperimentError, match=message):
            run_experiment(stock(digits_tables, name, **table))


class Constructing(FedAvg):
    """A strategy that makes its messages itself."""

    made: ClassVar[list[int]] = []

    def _construct_messages(self, record, node_ids, message_type):
        self.made.append(len(node_ids))
        return super()._construct_messages(record, node_ids, message_type)


def test_flowers_averaging_makes_no_message_that_is_not_sent(digits_tables, run_experiment, monkeypatch):
    whole = run_experiment(stock(digits_tables, "FedAvg", **{"fraction-train": 0.5}))
    monkeypatch.setattr("flwr.serverapp.strategy.fedavg.Message", None)
    without = run_experiment(stock(digits_tables, "FedAvg", **{"fraction-train": 0.5}))
    assert torch.equal(torch_models(whole), torch_models(without))


def test_a_strategy_may_make_its_messages_itself(digits_tables, run_experiment):
    Constructing.made.clear()
    folder = run_experiment(own(digits_tables, Constructing))
    rounds = digits_tables["experiment"]["rounds"]
    assert Constructing.made[::2] == Constructing.made[1::2] == [6] * rounds
    assert torch.equal(torch_models(folder), torch_models(run_experiment(stock(digits_tables, "FedAvg"))))


def test_models_and_terms_may_differ_between_clients(digits_tables, run_experiment):
    whole, apart = (torch_models(run_experiment(own(digits_tables, OneEach), nodes=nodes)) for nodes in (1, 6))
    torch.testing.assert_close(whole, apart, rtol=1e-5, atol=1e-6)
    plain = torch_models(run_experiment(stock(digits_tables, "FedAvg")))
    assert not torch.allclose(whole, plain, atol=1e-3)


def test_metrics_of_every_client_reach_a_function_of_ones_own(digits_tables, run_experiment, monkeypatch):
    monkeypatch.setattr(Counting, "seen", [])
    run_experiment(own(digits_tables, Counting), nodes=2)
    assert [len(records) for records in Counting.seen] == [6, 6]
    assert {"num-examples", "loss", "train_loss"} <= Counting.seen[0][0].keys()


def test_what_has_no_effect_is_said_once(digits_tables, run_experiment, caplog):
    run_experiment(own(digits_tables, Talkative))
    told = [record.message for record in caplog.records if "is ignored" in record.message]
    assert told == ["Talkative sends its clients 'lr', which is ignored: they train by [train]"]


class Plain(CohortClient):
    pass


class Derived(StockClient):
    pass


def test_a_client_class_without_the_terms_of_a_strategy_is_refused(digits_tables, run_experiment):
    def with_client(name, client, **table):
        tables = stock(digits_tables, name, **table)
        return {**tables, "experiment": {**tables["experiment"], "client": f"{__name__}:{client.__name__}"}}

    usual = summary(run_experiment(stock(digits_tables, "FedAvg")))["weights_sha256"]
    assert summary(run_experiment(with_client("FedAvg", Plain)))["weights_sha256"] == usual
    run_experiment(with_client("FedProx", Derived, **{"proximal-mu": 0.1}))
    with pytest.raises(RunError, match="proximal-mu, .*Plain"):
        run_experiment(with_client("FedProx", Plain, **{"proximal-mu": 0.1}))


class DerivedDitto(DittoClient):
    pass


def test_a_client_class_without_the_terms_of_a_method_is_refused(digits_tables, run_experiment):
    """Before anything is trained; a strategy of one's own has what terms it likes."""

    def with_client(client, **method):
        head = {**digits_tables["experiment"], **method, "client": f"{__name__}:{client.__name__}"}
        return {**digits_tables, "experiment": {key: value for key, value in head.items() if value}}

    for method, terms in (
        ("ditto", "fedgraph.clients.ditto:DittoClient"),
        ("feddyn", "fedgraph.clients.feddyn:DriftClient"),
    ):
        with pytest.raises(
            IdentityError, match=f"Plain does not implement the clients of this method.*derive it from {terms}"
        ):
            run_experiment(with_client(Plain, method=method))
    run_experiment(with_client(DerivedDitto, method="ditto"))
    run_experiment(with_client(Plain, method="fedatt"))
    run_experiment(with_client(Plain, method="", strategy="fedgraph.algorithms.global_model:GlobalModel"))


def test_a_strategy_of_flowers_older_interface_is_said_to_be_one(digits_tables, run_experiment):
    tables = stock(digits_tables, "FedAvg")
    tables["experiment"] |= {"strategy": "flwr.server.strategy:FedAvg"}
    with pytest.raises(ExperimentError, match=r"older interface: .*flwr\.serverapp\.strategy"):
        run_experiment(tables)


def leaving(after, comes_back=None):
    """A grid whose second node is gone once there were ``after`` exchanges, until there were ``comes_back``."""

    class Leaving(LocalGrid):
        exchanges = 0

        def get_node_ids(self):
            gone = self.exchanges >= after and (comes_back is None or self.exchanges < comes_back)
            return [node for node in super().get_node_ids() if not (gone and node == 1001)]

        def send_and_receive(self, messages, *, timeout=None):
            self.exchanges += 1
            return super().send_and_receive(messages, timeout=timeout)

    return Leaving


@pytest.mark.parametrize("name", ["FedAvg", "FedMedian"])
def test_clients_whose_node_is_gone_are_absent(digits_tables, run_experiment, name):
    """Of three nodes with two clients each; exchanges are the opening query, training 1, evaluation 1, training 2."""
    tables = stock(digits_tables, name)
    tables["experiment"] |= {"rounds": 3}
    with pytest.raises(RunError, match="round 2: .*2 clients .*not connected"):
        run_experiment(tables, nodes=3, grid=leaving(after=3))
    tables["experiment"] |= {"on-missing": "skip"}
    folder = run_experiment(tables, nodes=3, grid=leaving(after=3))
    assert [sorted(line["absent"]) for line in folder.trainings()] == [[], *[["client-2", "client-3"]] * 2]
    assert summary(folder)["per_client"]["test"]["accuracy"]["client-2"] is None
    tables["experiment"] |= {"min-clients": 5}
    with pytest.raises(RunError, match="2: only .*least"):
        run_experiment(tables, nodes=3, grid=leaving(after=3))


def test_one_who_comes_back_takes_part_again(digits_tables, run_experiment):
    tables = stock(digits_tables, "FedMedian")
    tables["experiment"] |= {"rounds": 3, "on-missing": "skip"}
    folder = run_experiment(tables, nodes=3, grid=leaving(after=3, comes_back=5))
    assert [len(line["absent"]) for line in folder.trainings()] == [0, 2, 0]


def test_a_strategy_waits_for_clients_no_longer_than_the_timeout(digits_tables, run_experiment):
    tables = stock(digits_tables, "FedAvg", **{"min-available-nodes": 6})
    tables["experiment"] |= {"rounds": 3, "on-missing": "skip", "timeout": 0.5}
    with pytest.raises(RunError, match="FedAvg, in round 2, .*client-2"):
        run_experiment(tables, nodes=3, grid=leaving(after=3))


@pytest.mark.parametrize("name", ["FedAvg", "FedMedian", "QFedAvg"])
def test_the_last_replies_of_those_who_are_gone_take_part(digits_tables, run_experiment, name):
    tables = stock(digits_tables, name, **STRATEGIES[name])
    tables["experiment"] |= {"rounds": 3, "on-missing": "keep-last"}
    kept = run_experiment(tables, nodes=3, grid=leaving(after=3))
    tables["experiment"] |= {"on-missing": "skip"}
    left = run_experiment(tables, nodes=3, grid=leaving(after=3))
    assert not torch.allclose(torch_models(kept), torch_models(left), atol=1e-4)


class NegativeVariances(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        state = {name: tensor - 5 for name, tensor in from_record(arrays).items()}
        return to_record(state), metrics


@pytest.mark.parametrize("name", ["FedAdam", "FedAvgM", "NegativeVariances"])
def test_running_variances_are_never_negative(digits_tables, run_experiment, name):
    tables = own(digits_tables, NegativeVariances) if name == "NegativeVariances" else stock(digits_tables, name)
    tables |= {"model": {"name": f"{__name__}:Normalised"}, name: {"eta": 0.5} if name == "FedAdam" else {}}
    _, model = load_models(run_experiment(tables).models)
    assert bool((model["norm.running_var"] >= 0).all())
    if name == "NegativeVariances":
        return
    _, averaged = load_models(run_experiment({**stock(digits_tables, "FedAvg"), "model": tables["model"]}).models)
    torch.testing.assert_close(model["norm.running_mean"][0] != 0, averaged["norm.running_mean"][0] != 0)


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.head = torch.nn.Linear(64, 10)

    def forward(self, inputs):
        return self.head(self.norm(inputs.flatten(1)))


def test_drawing_nodes_depends_on_seed_and_round_alone(digits_tables, run_experiment):
    tables = stock(digits_tables, "FedAvg", **{"fraction-train": 0.5, "min-train-nodes": 1})
    tables["experiment"]["rounds"] = 4
    random.seed(1)
    first = summary(run_experiment(tables, nodes=6))
    random.seed(2)
    again = summary(run_experiment(tables, nodes=6))
    assert first["weights_sha256"] == again["weights_sha256"]
    tables["experiment"]["seed"] = 1
    assert summary(run_experiment(tables, nodes=6))["weights_sha256"] != first["weights_sha256"]


def test_state_of_a_stock_strategy_round_trips():
    before, after = FedAdam(eta=0.5), FedAdam(eta=0.1)
    before.current_arrays = {"w": np.arange(3.0)}
    before.v_t = {"w": np.ones(3)}
    load_stock_state(after, stock_state(before))
    assert after.eta == 0.5
    assert np.array_equal(after.current_arrays["w"], before.current_arrays["w"])
    assert np.array_equal(after.v_t["w"], before.v_t["w"])


def test_optimiser_moments_are_kept_for_stock_strategies_too(digits_tables, run_experiment):
    tables = {**digits_tables, "experiment": {"method": "fedavg", "rounds": 3}}
    digits = {}
    for keep in (False, True):
        tables["train"] = {**digits_tables["train"], "momentum": 0.9, "keep-optimizer": keep}
        folder = run_experiment(tables)
        digits[keep] = summary(folder)["weights_sha256"]
        kept = list((folder.path / "nodes").rglob("round-*.safetensors")) if (folder.path / "nodes").exists() else []
        assert bool(kept) == keep
    assert digits[True] != digits[False]


def test_a_node_of_untrained_clients_has_no_part_in_the_average(run_experiment, digits_tables):
    data = {"set": "synthetic-traffic", "sensors": 4, "days": 3}
    names = open_source(parse_data(data), Path()).client_names()
    experiment = {"name": "cold", "strategy": "flwr.serverapp.strategy:FedMedian", "rounds": 2}
    tables = {**digits_tables, "experiment": experiment, "model": {"name": "rnn", "hidden": 4}}
    tables |= {"graph": {"source": "none"}}
    del tables["sfl"]
    cold = {**data, "cold-clients": names[:2], "cold-trains": False, "cold-steps": 60}
    nodes = [{"clients": ",".join(names[:2])}, {"clients": ",".join(names[2:])}]
    with_cold = run_experiment({**tables, "data": cold}, node_configs=nodes)
    without = run_experiment({**tables, "data": {**data, "clients": names[2:]}}, node_configs=nodes[1:])
    (_, model), (_, other) = load_models(with_cold.models), load_models(without.models)
    assert model is not None
    for name, tensor in model.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=0)
    assert all(value is not None for value in with_cold.summary()["per_client"]["test"]["mae"].values())


def test_fedprox_has_a_proximal_term_unless_told_otherwise(digits_tables, run_experiment):
    """With Flower's default of 0 it was FedAvg, under another name."""
    del digits_tables["graph"]

    def run(**changes):
        tables = {**digits_tables, **changes, "experiment": {**digits_tables["experiment"], "method": "fedprox"}}
        return run_experiment(tables).path

    usual, without = run(), run(fedprox={"proximal-mu": 0.0})
    assert FedProx().proximal_mu == 0.1
    told = [json.loads((path / "summary.json").read_text()) for path in (usual, without)]
    assert told[0]["weights_sha256"] != told[1]["weights_sha256"]
    assert [summary.get("remark") for summary in told] == [None, "mu 0: the same as fedavg"]
    digits_tables["experiment"]["method"] = "fedavg"
    assert run_experiment(digits_tables).summary()["weights_sha256"] == told[1]["weights_sha256"]


@pytest.mark.process
def test_no_built_in_method_is_another_one_by_default(digits_tables, run_experiment):
    """All that are of rounds, as ``--compare`` runs them: what clients are measured with is nowhere the same."""
    digits_tables["graph"] = {"source": "complete"}
    measured = {}
    for name, strategy in built_ins().items():
        phases = has_phases(strategy)
        if phases or getattr(strategy, "own_models", False) or name == "sfl-cold-start":
            continue
        digits_tables["experiment"] |= {"method": name, "rounds": 3}
        summary = run_experiment(digits_tables, nodes=1).summary()
        measured[name] = json.dumps(summary["per_client"]["test"]["loss"], sort_keys=True)
    same = [(a, b) for a, b in itertools.combinations(measured, 2) if measured[a] == measured[b]]
    assert len(measured) >= 15
    assert not same
