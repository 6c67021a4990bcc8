"""One node: what an aggregator answers by itself, and what an owner splits."""

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedgraph.algorithms.f3_secret_messages import ComputeRequest, Introduction, ShareRequest, sealed_bytes
from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.node import Node
from fedgraph.clients.f3 import F3Client
from fedgraph.clients.f3_secret import SecretClient
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.messages import check_content, read_error
from fedgraph.messages.embeddings import EmbedReply, EmbedRequest
from fedgraph.privacy.secret import folder_of, own_keys
from fedgraph.privacy.secret.sealed import fingerprint
from fedgraph.support.errors import ExperimentError, ReplyError

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
    context = Context(1, 1, {**config, "agreement": "any"}, RecordDict(), {})
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


@pytest.fixture
def sharing(tmp_path, node):
    """A hospital and two aggregators: ``share(key, ...)`` and ``compute(shared, seed)`` on what ``north`` got."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(40, 3)).round(3), columns=["age", "dose", "stay"])
    frame["ill"] = np.where(random.random(40) < 0.5, "y", "n")
    frame["patient"], frame["record"] = [f"P{row}" for row in range(40)], [f"R{row}" for row in range(40)]
    frame.to_csv(tmp_path / "mercy.csv", index=False)
    host = node(clients="mercy", data=str(tmp_path / "mercy.csv"))
    aggregators = {name: node(name, aggregator=name) for name in ("north", "west")}
    publics = {}

    def part(key, table):
        tables = {
            "experiment": {"name": "x", "method": "f3", "rounds": 1},
            "data": {
                "set": "table-columns", "label": "ill", "key-column": key,
                "owners": {"mercy": ["age", "dose", "stay"]}, "categories": {"ill": ["n", "y"]}, "shares": [1.0, 0, 0],
            },
            "model": {"name": "mlp", "hidden": [8]},
        }  # fmt: skip
        return parse_experiment(tables).client_part({"run": "x", "fractional-bits": 8, "random-bits": 32, **table})

    def share(key="patient", run="run", models=None, **table):
        experiment = part(key, table)
        for name, each in aggregators.items():
            publics[name] = own_keys(folder_of(each.state_dir, name)).public
        if models is None:
            clear = F3Client(host, EmbedRequest(("train",), client=SECRET, experiment=experiment, run=run)).reply()
            models = dict(zip(clear.clients, clear.fingerprints, strict=True))
        request = ShareRequest("r", "train", models, publics, client=SECRET, experiment=experiment, run=run)
        return request, SecretClient(host, experiment).share(request)

    def compute(shared, seed, keys):
        request, reply = shared
        draw = torch.Generator().manual_seed(seed)
        asked = ComputeRequest(
            "r", "north", ("mercy",), tuple(keys), torch.tensor([8]), tuple(request.fingerprints.values()),
            torch.ones(1, 40, dtype=torch.bool), torch.zeros(40, dtype=torch.int64),
            torch.ones(1, 1, 1, 1, dtype=torch.int64), torch.randint(-200, 200, (1, 3, 8), generator=draw),
            {"mercy": reply.sealed["mercy"][0]},
            client=SECRET, experiment=request.experiment, run=request.run,
        )  # fmt: skip
        return SecretClient(aggregators["north"], request.experiment).compute(asked)

    return share, compute


KEYS = {"patient": sorted(f"P{row}" for row in range(40)), "record": sorted(f"R{row}" for row in range(40))}


def test_random_bits_of_an_embedding_are_drawn_once(sharing):
    share, _ = sharing
    request, _ = share()
    share(run="another", models=request.fingerprints)
    share("record", models=request.fingerprints)
    for change in ({"random-bits": 31}, {"fractional-bits": 7}, {"noise": {"clip-norm": 1.0, "noise-multiplier": 1.0}}):
        with pytest.raises(ReplyError, match="no such shares of embeddings .* are sent of mercy"):
            share(run="a third", models=request.fingerprints, **change)


def test_an_aggregator_knows_samples_by_content_whatever_their_keys(sharing):
    """Each map tells 3 of 8 numbers: two may be applied to a sample, and no third."""
    share, compute = sharing
    shared = share()
    other = share("record", run="another", models=shared[0].fingerprints)
    assert compute(shared, 1, KEYS["patient"]).shares is not None
    assert compute(other, 2, KEYS["record"]).shares is not None
    for known, key in ((shared, "patient"), (other, "record")):
        with pytest.raises(ExperimentError, match="'mercy': 8 independent"):
            compute(known, 3, KEYS[key])
        assert compute(known, 1, KEYS[key]).shares is not None


def test_tags_of_samples_are_sealed_with_the_shares(sharing, node):
    share, _ = sharing
    _, reply = share()
    assert reply.sealed["mercy"].shape == (2, sealed_bytes(40, 8))
    assert node().secret == node().secret != node("other").secret
