import json

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.stock import StockClient
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.messages import WorkReply, WorkRequest
from fedgraph.support.errors import ReplyError

CLIENTS = ("client-0", "client-1")


@pytest.fixture
def node_and_part(digits_tables):
    digits_tables["data"] = {"set": "digits", "clients": 6, "partition": "dirichlet", "alpha": 0.5}
    part = parse_experiment({**digits_tables, "experiment": {"method": "fedavg"}}).client_part({})
    return Node.of(Context(1, 1, {"clients": "client-1,client-0"}, RecordDict(), {})), part


@pytest.fixture
def cohort(node_and_part):
    node, part = node_and_part
    return node.cohort(part, CLIENTS)


@pytest.fixture
def start(cohort):
    count = cohort.model.layout.num_parameters
    return torch.zeros(count).normal_(0, 0.1, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def ask(node_and_part, start):
    """Have both clients train; returns the reply as the server reads it."""

    def call(mean=True, **terms):
        node, part = node_and_part
        stacked = {name.replace("_", "-"): torch.tensor(values) for name, values in terms.items()}
        request = WorkRequest(CLIENTS, 1, stacked, {"parameters": start}, mean=mean, experiment=part, run="run")
        content = StockClient.handle(Message(request.pack(), 1, "train"), node)
        shapes = {"parameters": tuple(start.shape)}
        return WorkReply.unpack(content, CLIENTS, {} if mean else shapes, shared=shapes if mean else None)

    return call


def test_the_mean_is_weighted_by_training_examples(ask, cohort, start):
    trained = cohort.train(start.repeat(2, 1), 1)
    counts = trained.num_examples.double()
    assert counts[0] != counts[1]
    expected = (counts[:, None] * trained.parameters.double()).sum(0) / counts.sum()
    reply = ask()
    torch.testing.assert_close(reply.shared["parameters"].double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(reply.metrics["loss"], trained.loss.double())
    assert (reply.stacked, reply.failed) == ({}, {})


def test_single_models_are_sent_where_they_are_asked_for(ask, cohort, start):
    reply = ask(mean=False)
    assert torch.equal(reply.stacked["parameters"], cohort.train(start.repeat(2, 1), 1).parameters)
    assert reply.shared == {}


def test_the_proximal_term_pulls_each_client_to_the_global_model(ask, start):
    free, bound = (ask(mean=False, proximal_mu=mu).stacked["parameters"] - start for mu in ([0.0, 0.0], [0.0, 5.0]))
    assert torch.equal(free[0], bound[0])
    assert bound[1].norm() < 0.8 * free[1].norm()


def test_each_client_clips_what_it_adds(ask, start):
    free = ask(mean=False).stacked["parameters"] - start
    reply = ask(mean=False, clipping_norm=[0.01, 1e6])
    added = reply.stacked["parameters"] - start
    assert float(added[0].norm()) == pytest.approx(0.01, rel=1e-3)
    torch.testing.assert_close(added[0] / added[0].norm(), free[0] / free[0].norm(), rtol=0, atol=1e-3)
    torch.testing.assert_close(added[1], free[1])
    assert reply.metrics["norm_bit"].tolist() == [1, 0]


def test_a_client_that_diverged_is_left_out_and_named(ask, cohort, start, monkeypatch):
    from fedgraph.training.local_training import LocalTraining

    honest, diverging = LocalTraining.run, {"client-0"}

    def run(self, block, matrix, *given):
        found = honest(self, block, matrix, *given)
        matrix[[name in diverging for name in block.names]] = torch.nan
        return found

    alone = cohort.train(start.repeat(2, 1), 1).parameters[1]
    monkeypatch.setattr(LocalTraining, "run", run)
    reply = ask()
    torch.testing.assert_close(reply.shared["parameters"], alone)
    assert reply.failed == {"client-0": "training diverged: NaN or infinite parameters"}
    # All values of the last model are finite, so this must come from the client that is left.
    diverging.add("client-1")
    with pytest.raises(ReplyError, match="training diverged at client-0, client-1"):
        ask()


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
