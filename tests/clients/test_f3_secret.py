"""One node: what an aggregator answers by itself, and what an owner splits."""

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedgraph.algorithms.f3_secret_messages import ComputeRequest, Introduction, ShareRequest
from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.node import Node
from fedgraph.clients.f3_secret import SecretClient
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.messages import check_content, read_error
from fedgraph.messages.embeddings import EmbedReply, EmbedRequest
from fedgraph.privacy.secret.sealed import fingerprint
from fedgraph.support.errors import ReplyError

NAMES = ("patch-0-0", "patch-0-1")
SECRET = "fedgraph.clients.f3_secret:SecretClient"


@pytest.fixture
def part(patches_tables):
    patches_tables["data"] |= {"lacking-share": 0.2}
    return lambda method: parse_experiment(patches_tables).client_part({"run": "x", **method})


@pytest.fixture
def node(tmp_path, data_dir):
    """``node(folder, **config)``: a node whose state lies in the folder."""

    def make(state="state", **config):
        config = {key.replace("_", "-"): value for key, value in config.items()}
        whole = {"data-dir": str(data_dir), "state-dir": str(tmp_path / state), **config}
        return Node.of(Context(1, 1, whole, RecordDict(), {}))

    return make


def ask(context, content, kind):
    reply = client_app(Message(content, 1, kind), context)
    return read_error(reply), check_content(reply.content)


def test_a_node_that_only_aggregates_needs_neither_owners_nor_data(part, tmp_path):
    config = {"aggregator": "north", "state-dir": str(tmp_path), "data-dir": str(tmp_path / "nowhere")}
    context = Context(1, 1, config, RecordDict(), {})
    problem, content = ask(
        context,
        EmbedRequest(embeddings=False, client=SECRET, experiment=part({}), run="run").pack(),
        EmbedRequest.message_type,
    )
    assert problem is None
    answer = Introduction.unpack(content)
    assert (answer.clients, answer.partition, answer.aggregator, len(answer.public)) == ((), None, "north", 32)
    _, again = ask(
        context,
        EmbedRequest(embeddings=False, client=SECRET, experiment=part({}), run="run").pack(),
        EmbedRequest.message_type,
    )
    assert Introduction.unpack(again).public == answer.public
    # Where owners train and the aggregator has nothing to do, it says so.
    problem, content = ask(
        context,
        EmbedRequest(client="fedgraph.clients.f3:F3Client", experiment=part({}), run="run").pack(),
        EmbedRequest.message_type,
    )
    assert problem is None
    assert EmbedReply.unpack(content).clients == ()


def test_a_node_may_host_owners_and_aggregate(part, node):
    both = node(clients=NAMES[0], aggregator="north")
    answer = SecretClient(both, part({})).introduce(
        EmbedRequest(embeddings=False, client=SECRET, experiment=part({}), run="run")
    )
    assert (answer.clients, answer.aggregator) == (NAMES[:1], "north")
    dealt = node(partition_id=1, num_partitions=4)
    assert SecretClient(dealt, part({"simulated-aggregators": 2})).aggregator == "aggregator-001"
    assert SecretClient(dealt, part({"simulated-aggregators": 1})).aggregator is None
    assert SecretClient(node(clients=NAMES[0]), part({"simulated-aggregators": 1})).aggregator is None


def shares(part, aggregators, owners=NAMES[:1], **method):
    return ShareRequest(
        "r", "test", dict.fromkeys(owners, "f"), aggregators, client=SECRET, experiment=part(method), run="run"
    )


def test_owners_refuse_aggregators_that_are_too_few_or_one_under_two_names(part, node):
    host = SecretClient(node(clients=NAMES[0]), part({"threshold": 3}))
    for public in ({"a": b"1" * 32, "b": b"2" * 32}, {"a": b"1" * 32, "b": b"1" * 32, "c": b"2" * 32}):
        with pytest.raises(ReplyError, match="2 different aggregators.*3"):
            host.share(shares(part, public))


def test_an_aggregator_answers_for_itself_only(part, node):
    nothing = torch.zeros(0, dtype=torch.int64)
    asked = ComputeRequest(
        "r", "south", (), (), nothing, (), torch.zeros(0, 0, dtype=torch.bool), nothing,
        torch.zeros(1, 1, 0, 0, dtype=torch.int64), torch.zeros(0, 1, 1, dtype=torch.int64), {},
        client=SECRET, experiment=part({}), run="run",
    )  # fmt: skip
    with pytest.raises(ReplyError, match="'south', .*'north'"):
        SecretClient(node(aggregator="north"), part({})).compute(asked)


def test_unknown_steps_are_refused(part, node):
    content = shares(part, {}).pack()
    content["config"]["step"] = "steal"
    with pytest.raises(ReplyError, match="unknown step 'steal'"):
        SecretClient.handle(Message(content, 1, "query"), node(clients=NAMES[0]))


def test_an_aggregator_may_have_an_equals_sign_in_its_name(part, node):
    aggregators = {"w=x": b"1" * 32, "east": b"2" * 32}
    host = node(clients=NAMES[0], aggregator_fingerprints=f"w=x={fingerprint(aggregators['w=x'])}")
    with pytest.raises(ReplyError, match="aggregator 'east'"):
        SecretClient(host, part({})).share(shares(part, aggregators))
