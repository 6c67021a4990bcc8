import json

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from clients.engine.node import Node
from clients.engine.stock import StockClient
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.messages import EXPERIMENT_KEY, KEEP_KEY, ROUND_KEY, RUN_KEY
from fedgraph.messages.array_records import from_record, to_record
from fedgraph.support.errors import ReplyError

CLIENTS = ("client-0", "client-1")


@pytest.fixture
def node_and_part(digits_tables):
    part = parse_experiment({**digits_tables, "experiment": {"method": "fedavg"}}).client_part({})
    return Node.of(Context(1, 1, {"clients": "client-1,client-0"}, RecordDict(), {})), part


@pytest.fixture
def ask(node_and_part):
    def call(kind="train", arrays=None, **config):
        node, part = node_and_part
        content = {EXPERIMENT_KEY: part, ROUND_KEY: 1, RUN_KEY: "run", KEEP_KEY: 0, "evaluate": ["test"], **config}
        model = to_record(start(node_and_part)) if arrays is None else arrays
        message = Message(RecordDict({"arrays": model, "config": ConfigRecord(content)}), 1, kind)
        return StockClient.handle(message, node)

    return call


def start(node_and_part):
    node, part = node_and_part
    layout = node.cohort(part, CLIENTS).model.layout
    row = torch.zeros(layout.num_parameters).normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    return layout.row_state(row)


def flat(layout, state):
    return layout.flatten({name: tensor[None] for name, tensor in state.items()})


def test_the_reply_is_the_mean_weighted_by_training_examples(ask, node_and_part):
    node, part = node_and_part
    cohort = node.cohort(part, CLIENTS)
    layout = cohort.model.layout
    trained = cohort.train(flat(layout, start(node_and_part)).repeat(2, 1), 1)
    counts = trained.num_examples.double().numpy()
    expected = (counts[:, None] * trained.parameters.double().numpy()).sum(0) / counts.sum()
    content = ask()
    got = flat(layout, from_record(content["arrays"]))[0]
    torch.testing.assert_close(got.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-6)
    assert content["metrics"]["num-examples"] == counts.sum()
    loss = (counts * trained.loss.double().numpy()).sum() / counts.sum()
    assert content["metrics"]["loss"] == pytest.approx(loss)


def test_one_array_record_and_one_metric_record_as_stock_strategies_want(ask):
    for kind, arrays in (("train", 1), ("evaluate", 0)):
        content = ask(kind)
        assert len(content.array_records) == arrays
        assert len(content.metric_records) == 1
        assert all(isinstance(value, (int, float)) for value in content["metrics"].values())


def test_single_clients_travel_beside_the_reply(ask):
    config = ask("evaluate")["config"]
    assert config["clients"] == list(CLIENTS)
    values = json.loads(config["per-client"])
    assert list(values) == ["test/accuracy", "test/loss", "test/f1"]
    assert all(len(row) == 2 for row in values.values())
    assert json.loads(config["failed"]) == {}


def test_the_proximal_term_pulls_to_the_global_model(ask, node_and_part):
    node, part = node_and_part
    layout = node.cohort(part, CLIENTS).model.layout
    centre = flat(layout, start(node_and_part))
    moved = [(flat(layout, from_record(ask(**{"proximal-mu": mu})["arrays"])) - centre).norm() for mu in (0.0, 5.0)]
    assert moved[1] < 0.8 * moved[0]


def test_a_client_that_diverged_is_left_out_and_named(ask, node_and_part, monkeypatch):
    from fedgraph.training.cohort import Cohort

    honest = Cohort.train

    def train(self, *args, **kwargs):
        result = honest(self, *args, **kwargs)
        result.parameters[0, 0] = torch.nan
        return result

    node, part = node_and_part
    cohort = node.cohort(part, CLIENTS)
    alone = cohort.train(flat(cohort.model.layout, start(node_and_part)).repeat(2, 1), 1).parameters[1]
    monkeypatch.setattr(Cohort, "train", train)
    content = ask()
    torch.testing.assert_close(flat(cohort.model.layout, from_record(content["arrays"]))[0], alone)
    assert content["metrics"]["num-examples"] == int(cohort.data.splits["train"].num_examples[1])
    assert json.loads(content["config"]["failed"]) == {"client-0": "training diverged: NaN or infinite parameters"}
    # All values of the last model are finite, so this must come from the client that is left.
    monkeypatch.setattr(Cohort, "train", lambda self, *a, **k: _all_nan(honest(self, *a, **k)))
    with pytest.raises(ReplyError, match="training diverged at client-0, client-1"):
        ask()


def _all_nan(result):
    result.parameters.fill_(torch.nan)
    return result


def test_another_model_is_refused(ask):
    with pytest.raises(ReplyError, match=r"the server sent the arrays \['x'\], the model has "):
        ask(arrays=to_record({"x": torch.zeros(3)}))


def test_moments_are_kept_between_rounds_where_the_experiment_keeps_them(digits_tables, run_experiment):
    digits_tables["train"] |= {"momentum": 0.9, "learning-rate": 0.02}
    plain, kept = (
        run_experiment({
            **digits_tables,
            "experiment": {"method": "fedavg", "rounds": 2},
            "train": {**digits_tables["train"], "keep-optimizer": keep},
        })
        for keep in (False, True)
    )  # fmt: skip
    sums = [json.loads((folder.path / "summary.json").read_text())["weights_sha256"] for folder in (plain, kept)]
    assert sums[0] != sums[1]
