import pytest
import torch
from flwr.app import Message

from fedgraph.clients.engine.base import CohortClient, cohort_with
from fedgraph.messages import WorkReply
from fedgraph.support.errors import ReplyError
from fedgraph.support.settings import parse
from fedgraph.training import Cohort, TrainSettings

CLIENTS = ("client-0", "client-1")


class Pulled(CohortClient):
    """Adds a strong pull to zero."""

    def gradient_term(self):
        return lambda v, clients, batch_weight: 5.0 * v


@pytest.fixture
def ask(one_node):
    """Ask a node that hosts the first two of six clients; returns its reply."""

    def call(kind=CohortClient, clients=CLIENTS, models=None, train_table=None, server_round=1, **fields):
        node = one_node(kind, train=train_table)
        size = node.layout.num_parameters
        start = torch.zeros(len(clients), size).normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
        stacked = {"parameters": start if models is None else models}
        request = node.request(server_round, stacked=stacked, clients=clients, **fields)
        content = kind.handle(Message(request.pack(), 1, "train"), node.node)
        return WorkReply.unpack(content, clients, {"parameters": (size,)} if fields.get("train", True) else {}), start

    return call


def test_trains_and_reports_a_loss_per_client(ask):
    reply, start = ask()
    assert reply.clients == CLIENTS
    assert list(reply.metrics) == ["loss"]
    assert (reply.stacked["parameters"] != start).any(dim=1).all()


def test_evaluates_what_it_received_before_training(ask):
    both, _ = ask(evaluate=("test", "validation"))
    only, _ = ask(evaluate=("test", "validation"), train=False)
    names = ("accuracy", "loss", "f1")
    assert set(only.metrics) == {f"{split}/{metric}" for split in ("test", "validation") for metric in names}
    for name, values in only.metrics.items():
        assert torch.equal(both.metrics[name], values)
    later, _ = ask(models=both.stacked["parameters"], evaluate=("test",), train=False)
    assert (later.metrics["test/loss"] < only.metrics["test/loss"]).all()


def test_says_which_classes_it_predicts_and_nothing_else(one_node):
    node = one_node(CohortClient)
    models = torch.stack([node.model(0), node.model(1)])
    reply = node.ask(stacked={"parameters": models}, evaluate=("test",), predict=True)
    assert set(reply.stacked) == {"predicted", "targets"}
    assert reply.metrics == {}
    predicted, targets = reply.stacked["predicted"], reply.stacked["targets"]
    assert predicted.dtype == targets.dtype == torch.int32
    measured = node.ask(stacked={"parameters": models}, evaluate=("test",), train=False).metrics["test/accuracy"]
    right = ((predicted == targets) & (targets >= 0)).sum(1) / (targets >= 0).sum(1)
    torch.testing.assert_close(right.double(), measured)


def test_one_client_of_several_is_trained_as_among_all(ask):
    both, start = ask()
    one, _ = ask(clients=("client-1",), models=start[1:])
    torch.testing.assert_close(one.stacked["parameters"][0], both.stacked["parameters"][1], rtol=1e-5, atol=1e-6)


def test_a_method_adds_its_term_to_the_gradient(ask):
    plain, _ = ask()
    pulled, _ = ask(Pulled)
    assert (pulled.stacked["parameters"].norm(dim=1) < 0.8 * plain.stacked["parameters"].norm(dim=1)).all()


def test_clients_that_are_not_hosted_here_are_refused(ask):
    with pytest.raises(ReplyError, match="client-0, .*client-1, not client-4"):
        ask(clients=("client-0", "client-4"))


KEEP = {"momentum": 0.9, "keep-optimizer": True}


def test_moments_are_kept_per_round_and_an_interrupted_round_is_repeated_alike(ask, tmp_path):
    first, _ = ask(train_table=KEEP)
    models = first.stacked["parameters"]
    second, _ = ask(train_table=KEEP, models=models, server_round=2)
    again, _ = ask(train_table=KEEP, models=models, server_round=2)
    assert torch.equal(again.stacked["parameters"], second.stacked["parameters"])
    fresh, _ = ask(train_table={"momentum": 0.9}, models=models, server_round=2)
    assert not torch.equal(fresh.stacked["parameters"], second.stacked["parameters"])
    kept = sorted(
        path.name.partition("-save")[0] for path in (tmp_path / "state" / "runs" / "run").rglob("round-*.safetensors")
    )
    assert kept == ["round-1", "round-2"]


def test_without_moments_nothing_is_written_but_how_data_become_inputs(ask, tmp_path):
    ask()
    (kept,) = (path for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert kept.parent.name == "preprocessing"


def test_cohorts_are_built_once(data_dir):
    def train(**table):
        return parse(TrainSettings, {"momentum": 0.9, **table}, "[train]")

    from fedgraph.data import open_source, parse_data
    from fedgraph.models import build

    source = open_source(parse_data({"set": "digits", "clients": 3, "limit": 100}), data_dir)
    data = source.load(source.client_names())
    cohort = Cohort(build({"name": "mlp", "hidden": []}, data.task), data, train(), seed=1)
    assert cohort_with(cohort, train(), 1) is cohort
    other = cohort_with(cohort, train(**{"local-steps": 3}), 2)
    assert (other.settings.local_steps, other.seed, other.data) == (3, 2, data)
    assert cohort_with(cohort, train(**{"local-steps": 3}), 2) is other
