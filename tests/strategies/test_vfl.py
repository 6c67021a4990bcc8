"""Runs of vertical federated learning: gradients of embeddings go down, embeddings of the next minibatch come up."""

import json
import math
import re

import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch.nn import functional

from fedgraph.algorithms.vfl import VerticalSettings
from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source, parse_data
from fedgraph.fusion import build_network
from fedgraph.fusion.owner_models.pretraining import initial_models
from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import FedgraphError, RunError
from fedgraph.support.files import load_state, save_state
from fedgraph.training.client_state import ClientState

NAMES = ("patch-0-0", "patch-0-1", "patch-1-0", "patch-1-1")
HIDDEN = 5


@pytest.fixture
def tables(patches_tables):
    patches_tables["experiment"]["method"] = "vfl"
    table = patches_tables.pop("f3")
    return {**patches_tables, "vfl": {**table, "epochs": 1}}


def test_exchanges_and_bytes(tables, run_experiment):
    tables["vfl"] |= {"epochs": 3, "patience": 9}
    asked, down, up = [], [], []

    def client(message, context):
        asked.append(message.metadata.message_type)
        reply = client_app(message, context)
        for record, total in ((message, down), (reply, up)):
            arrays = (array for each in record.content.array_records.values() for array in each.values())
            total.append(sum(len(array.data) for array in arrays))
        return reply

    folder = run_experiment(tables, client=client)
    summary = folder.summary()
    joined = load_state(folder.checkpoint)["samples"]
    split = joined["split"]
    training, held_out = int((split == 0).sum()), int((split > 0).sum())
    batches = math.ceil(training / 200)
    assert summary["exchanges"] == 1 + 3 * (batches + 1)
    assert asked.count("query.embed") == 2
    assert asked.count("train") == 2 * 3 * (batches + 1)
    assert (summary["bytes_down"], summary["bytes_up"]) == (sum(down), sum(up))
    # Of every epoch: embeddings of all samples up, gradients of those for training down; the last step's as well.
    steps = 4 * 6 * 3 * (training + held_out + training)
    assert summary["bytes_per_owner"] == steps + len(split) * (4 * (6 + 10) + 1)
    # Test samples are embedded in every epoch only to measure the best one.
    learned = training + int((split == 1).sum())
    learning = 4 * 6 * 3 * (learned + training) + learned * (4 * (6 + 10) + 1)
    assert summary["training_bytes_per_owner"] == learning
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["round"] for line in lines if line["phase"] == "fusion"] == [1, 2, 3]
    assert "accuracy-local" not in summary["metrics"]["test"]
    assert "test" in summary["metrics"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_one_step_is_that_of_the_whole_model_in_torch(tables, run_experiment, data_dir, nodes):
    """One minibatch of all training samples: owners' layers, fusion and loss as one graph of autograd."""
    rate, own_rate = 0.02, 0.05
    tables["model"] = {"name": "mlp", "hidden": [HIDDEN]}
    tables["data"]["lacking-share"] = 0.2
    tables["train"] |= {"learning-rate": own_rate}
    tables["vfl"] |= {
        "fusion": "mean-pooling", "alignment": "soft", "pre-trained": False, "batch-size": 2000, "hidden": 4,
        "learning-rates": [rate],
    }  # fmt: skip
    folder = run_experiment(tables, nodes=nodes)
    data = open_source(parse_data(tables["data"]), data_dir).load_owners(NAMES)
    training = data.split == 0
    present = data.present[:, training].T

    settings = VerticalSettings.model_validate(tables["vfl"])
    network = build_network(settings, torch.full((4,), HIDDEN), 10, None, 0)
    model = build(tables["model"], TaskSpec("classification", (1, 4, 4), (10,)))
    layout, drawn = model.layout, initial_models(model, 0, NAMES)
    weights = [
        {name: value[0].clone().requires_grad_() for name, value in layout.unflatten(row[None]).items()}
        for row in drawn
    ]
    embeddings = torch.stack(
        [
            (inputs[training].flatten(1) @ own["hidden.0.weight"].T + own["hidden.0.bias"]).relu()
            for inputs, own in zip(data.inputs, weights, strict=True)
        ],
        dim=1,
    )
    logits = by_hand(network, embeddings, present)
    loss = functional.cross_entropy(logits, data.labels[training])
    owned = [own[name] for own in weights for name in ("hidden.0.weight", "hidden.0.bias")]
    steps = [torch.optim.Adam(network.parameters(), lr=rate), torch.optim.Adam(owned, lr=own_rate)]
    loss.backward()
    for step in steps:
        step.step()

    found = kept_models(folder)
    assert not torch.equal(found, drawn)
    for row, own in zip(found, weights, strict=True):
        got = layout.unflatten(row[None])
        for name, value in own.items():
            torch.testing.assert_close(got[name][0], value.detach(), rtol=1e-3, atol=2e-5)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    (line,) = [line for line in lines if line["phase"] == "fusion"]
    assert line["training_loss"] == pytest.approx(loss.item(), rel=1e-5)
    # What is measured afterwards is measured of both after their step.
    held_out = data.split == 1
    after = torch.stack(
        [
            (inputs[held_out].flatten(1) @ own["hidden.0.weight"].T + own["hidden.0.bias"]).relu()
            for inputs, own in zip(data.inputs, weights, strict=True)
        ],
        dim=1,
    )
    wanted = functional.cross_entropy(by_hand(network, after, data.present[:, held_out].T), data.labels[held_out])
    assert line["validation_loss"] == pytest.approx(wanted.item(), rel=1e-4)


def by_hand(network, embeddings, present):
    """Mean pooling of aligned embeddings over the owners that are there, eq. 5."""
    there = present[..., None].float()
    matrices = network.alignment.matrices()
    aligned = torch.einsum("oij,boj->boi", matrices, embeddings * there)
    hidden = (aligned @ network.weights[0] + network.biases[0]).relu() * there
    return (hidden.sum(1) / there.sum(1)) @ network.weights[1] + network.biases[1]


def kept_models(folder):
    """The owners' models as kept by their nodes after the last step, ``[owners, parameters]``."""
    empty = {"parameters": torch.zeros(HIDDEN * 17 + 10 * (HIDDEN + 1))}
    return ClientState(folder.path / "nodes", folder.run, "vertical-0").load(NAMES, 10**6, empty)["parameters"]


@pytest.mark.process
def test_it_learns(tables, run_experiment):
    tables["model"]["hidden"] = [32, 16]
    tables["train"] |= {"learning-rate": 0.01, "batch-size": 100, "local-epochs": 5}
    tables["vfl"] |= {"hidden": 32, "epochs": 4, "batch-size": 100}
    found = {}
    for trained in (True, False):
        tables["vfl"]["pre-trained"] = trained
        summary = run_experiment(tables).summary()
        found[trained] = summary["metrics"]["test"]["accuracy"]["mean"]
    tables["train"]["learning-rate"] = 1e-9
    found["fusion alone"] = run_experiment(tables).summary()["metrics"]["test"]["accuracy"]["mean"]
    assert found[True] > 0.9, found
    assert found[False] > 0.85, found
    assert found[False] > found["fusion alone"] + 0.05, "the owners' models learn, not the fusion alone"


def test_packing_and_repetition(tables, run_experiment):
    tables["vfl"] |= {"pre-trained": False}
    two, again = run_experiment(tables), run_experiment(tables)
    assert again.summary()["weights_sha256"] == two.summary()["weights_sha256"]
    assert (again.path / "predictions.csv").read_text() == (two.path / "predictions.csv").read_text()
    turned = run_experiment(tables, node_configs=[{"partition-id": part, "num-partitions": 2} for part in (1, 0)])
    assert turned.summary()["weights_sha256"] == two.summary()["weights_sha256"]
    for nodes in (1, 4):
        other = run_experiment(tables, nodes=nodes).summary()["metrics"]["test"]
        assert other["loss"]["mean"] == pytest.approx(two.summary()["metrics"]["test"]["loss"]["mean"], rel=1e-3)


@pytest.mark.parametrize(
    "table",
    [{"graph": "neighbours", "neighbours": 2}, {"graph": "gumbel"}, {"fusion": "concatenation", "alignment": "none"}],
)
def test_other_fusions_and_sizes(tables, run_experiment, table):
    tables["model"]["variants"] = [{"clients": ["patch-0-1"], "name": "mlp", "hidden": [9]}]
    tables["data"]["lacking-share"] = 0.3
    tables["vfl"] |= table
    assert run_experiment(tables).is_finished


def dying(requests):
    """Dies of this request for a step, whichever node gets it, once the first node has done its work."""
    steps = []

    def client(message, context):
        if message.metadata.message_type == "train":
            steps.append(message)
        if len(steps) == requests:
            raise KeyboardInterrupt
        return client_app(message, context)

    return client


@pytest.fixture
def stopped_and_resumed(run_experiment, tmp_path):
    """A run, the same killed at a request for a step and resumed, and the types of the messages when resumed."""

    def both(tables, requests, **how):
        whole = run_experiment(tables, **how)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(tables, client=dying(requests), **how)
        (path,) = (path for path in (tmp_path / "runs").iterdir() if path != whole.path)
        asked = []

        def client(message, context):
            asked.append(message.metadata.message_type)
            return client_app(message, context)

        return whole, run_experiment(tables, folder=RunFolder.open(path), client=client, **how), asked

    return both


def test_a_run_that_was_stopped_in_its_first_epoch_begins_anew(tables, stopped_and_resumed):
    whole, resumed, _ = stopped_and_resumed(tables, 6)
    for name in ("weights_sha256", "metrics", "exchanges", "bytes_up", "bytes_down"):
        assert resumed.summary()[name] == whole.summary()[name], name


@pytest.mark.parametrize(
    ("into", "epochs_again", "table", "optimizer"),
    [
        (4, 2, {}, "adam"),
        (1, 2, {"graph": "neighbours", "neighbours": 2, "pre-trained": False}, "sgd"),
        (0, 3, {"fusion": "transformer", "alignment": "none"}, "adam"),
    ],
    ids=["within", "first-step", "evaluation-before"],
)
def test_a_run_that_was_stopped_goes_on_after_its_last_epoch(
    tables, stopped_and_resumed, into, epochs_again, table, optimizer
):
    """The third of four epochs is cut short; or the second, while its embeddings are evaluated."""
    tables["vfl"] |= {"epochs": 4, "patience": 9, "batch-size": 400, **table}
    tables["train"] |= {"optimizer": optimizer, "momentum": 0.9 if optimizer == "sgd" else 0.0}
    tables["model"]["variants"] = [{"clients": ["patch-0-1"], "name": "mlp", "hidden": [9]}]
    steps = 4 + 1  # of an epoch: 1,250 or so samples for training in minibatches of 400, then those held out
    whole, resumed, asked = stopped_and_resumed(tables, 2 * (2 * steps + into))
    assert whole.summary()["exchanges"] == 1 + 4 * steps
    assert asked == ["query.embed"] * 2 + ["train"] * (2 * epochs_again * steps), "who is there, and no epoch twice"
    costs = ("bytes_per_owner", "training_bytes_per_owner")
    for name in ("weights_sha256", "metrics", "per_client", "fusion", "rounds", *costs):
        assert resumed.summary()[name] == whole.summary()[name], name
    assert resumed.summary()["exchanges"] == whole.summary()["exchanges"] + 1
    assert (resumed.path / "predictions.csv").read_bytes() == (whole.path / "predictions.csv").read_bytes()
    assert resumed.metrics.read_text() == whole.metrics.read_text()


def test_a_resumed_run_that_had_no_more_to_learn_does_not(tables, run_experiment, tmp_path, monkeypatch):
    tables["vfl"] |= {"epochs": 9, "patience": 1, "learning-rates": [0.3]}

    def killed(*arguments, **named):
        raise KeyboardInterrupt

    whole = run_experiment(tables)
    assert 1 < whole.summary()["rounds"] < 9
    with monkeypatch.context() as patch:
        patch.setattr("fedgraph.algorithms.vfl.build_outcome", killed)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(tables)
    (path,) = (path for path in (tmp_path / "runs").iterdir() if path != whole.path)
    saved = load_state(RunFolder.open(path).checkpoint)
    assert 0 < saved["seconds"] < 100
    save_state(RunFolder.open(path).checkpoint, saved | {"seconds": saved["seconds"] + 100})
    asked = []

    def client(message, context):
        asked.append(message.metadata.message_type)
        return client_app(message, context)

    resumed = run_experiment(tables, folder=RunFolder.open(path), client=client)
    assert asked == ["query.embed"] * 2
    assert resumed.summary()["seconds"] > saved["seconds"] + 100 > whole.summary()["seconds"]
    assert resumed.summary()["weights_sha256"] == whole.summary()["weights_sha256"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("lacking-share = 0.0", "lacking-share = 0.3", "data.lacking-share was 0.0 and is 0.3"),
        ("split-seed = 0", "split-seed = 1", "data.split-seed was 0 and is 1"),
        ("hidden = 5", "hidden = 4", "vfl.hidden was 5 and is 4"),
    ],
    ids=["samples", "splits", "fusion"],
)
def test_a_resumed_run_of_something_else_is_refused(tables, run_experiment, tmp_path, before, after, told):
    tables["vfl"] |= {"epochs": 3, "batch-size": 2000, "hidden": 5}
    tables["data"]["split-seed"] = 0
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tables, client=dying(6))
    (path,) = (tmp_path / "runs").iterdir()
    file = path / "experiment.toml"
    assert file.read_text().count(before) == 1
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(FedgraphError, match=told):
        run_experiment(tables, folder=RunFolder.open(path))


def test_a_resumed_run_names_an_owner_that_is_gone(tables, run_experiment, tmp_path):
    tables["vfl"] |= {"epochs": 3, "batch-size": 2000}
    tables["experiment"]["on-missing"] = "skip"
    nodes = [{"clients": "patch-0-0,patch-0-1,patch-1-0"}, {"clients": "patch-1-1"}]
    with pytest.raises(KeyboardInterrupt):
        run_experiment(tables, node_configs=nodes, client=dying(6))
    (path,) = (tmp_path / "runs").iterdir()
    with pytest.raises(FedgraphError, match="^patch-1-1 "):
        run_experiment(tables, node_configs=nodes[:1], folder=RunFolder.open(path))


def test_the_fusion_follows_its_device(tables, run_experiment, no_gpu, monkeypatch):
    plain = run_experiment(tables)
    gpu = no_gpu()
    monkeypatch.setattr(VerticalSettings, "torch_device", lambda self: torch.device("cuda"))
    found = run_experiment(tables)
    joined = load_state(found.checkpoint)["samples"]
    first = min(200, int((joined["split"] == 0).sum()))
    network = build_network(VerticalSettings.model_validate(tables["vfl"]), joined["sizes"], 10, None, 0)
    every = [tuple(value.shape) for value in network.state_dict().values()]
    assert not set(every) - set(gpu), "the network"
    assert {(first, 4, 6), (first, 4), (first,)} <= set(gpu), "embeddings, who has them, labels"
    assert found.summary()["weights_sha256"] == plain.summary()["weights_sha256"]


def with_nan(content):
    values = content["stacked"]["embeddings"].numpy().copy()
    values[0, 0, 0] = float("nan")
    content["stacked"] = ArrayRecord({"embeddings": Array(values)})
    return content


def with_strangers(content):
    content["config"]["owners"] = ["x", "y"]
    return content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_nan, "step 3: .*patch-0-0, patch-0-1: .*NaN"),
        (with_strangers, "step 3: .*is for ..x., .y.."),
        ("the disk is full", "step 3: .*patch-0-0, patch-0-1: the disk is full"),
    ],
)
def test_an_owner_that_is_lost_ends_the_run_unless_it_may_be_skipped(tables, run_experiment, change, message, spoiling):
    def chosen(message, context):
        return context.node_config["partition-id"] == 0 and message.content["config"].get("server-round") == 3

    with pytest.raises(RunError, match=message):
        run_experiment(tables, client=spoiling(chosen, change))
    tables["experiment"] |= {"on-missing": "skip"}
    assert run_experiment(tables, client=spoiling(chosen, change)).is_finished


@pytest.mark.parametrize("left_out", ["patch-0-0", "patch-0-1"])
def test_a_node_learns_with_the_owners_that_are_left(tables, run_experiment, left_out):
    """The other owner of its node sent nothing usable in the first exchange; its embedding is the longest."""
    tables["experiment"] |= {"on-missing": "skip"}
    others = [name for name in NAMES if name != left_out]
    tables["model"] = {"name": "mlp", "hidden": [9], "variants": [{**tables["model"], "clients": others}]}

    def client(message, context):
        reply = client_app(message, context)
        if "samples" in reply.content and left_out in reply.content["config"]["clients"]:
            place = list(reply.content["config"]["clients"]).index(left_out)
            arrays = {each: array.numpy().copy() for each, array in reply.content["stacked"].items()}
            arrays["embeddings"][place] = float("nan")
            reply.content["stacked"] = ArrayRecord({each: Array(array) for each, array in arrays.items()})
        return reply

    found = run_experiment(tables, client=client).summary()
    alone = run_experiment({**tables, "data": {**tables["data"], "clients": others}}).summary()
    assert set(found["per_client"]["test"]["accuracy"]) == set(others)
    wanted = alone["metrics"]["test"]["loss"]["mean"]
    assert found["metrics"]["test"]["loss"]["mean"] == pytest.approx(wanted, rel=1e-3)


def test_a_node_that_falls_silent_is_named(tables, run_experiment, monkeypatch):
    from fedgraph.federation.grids.in_process import LocalGrid

    deliver = LocalGrid.send_and_receive

    def lossy(self, messages, *, timeout=None):
        replies = deliver(self, messages, timeout=timeout)
        mine = (
            r.metadata.src_node_id == 1001 and "stacked" in r.content and "samples" not in r.content for r in replies
        )
        return [reply for reply, is_mine in zip(replies, mine, strict=True) if not is_mine]

    monkeypatch.setattr(LocalGrid, "send_and_receive", lossy)
    with pytest.raises(RunError, match="step 1: .*patch-1-0, patch-1-1"):
        run_experiment(tables)


@pytest.mark.parametrize("where", ["fusion", "owners"])
def test_divergence_is_told(tables, run_experiment, where):
    if where == "fusion":
        tables["vfl"] |= {"learning-rates": [1e30], "fusion": "mean-pooling", "batch-size": 2000}
    else:
        tables["train"] |= {"learning-rate": 1e38, "optimizer": "sgd"}
        tables["vfl"] |= {"pre-trained": False, "epochs": 3}
    with pytest.raises(RunError) as raised:
        run_experiment(tables)
    text = "joint training diverged in epoch 1: .*lower learning-rates" if where == "fusion" else "nothing usable"
    assert re.search(text, str(raised.value))


@pytest.mark.parametrize("shares", [[0.0, 0.5, 0.5], [0.8, 0.0, 0.2]])
def test_splits_without_samples_are_told(tables, run_experiment, shares):
    tables["data"]["shares"] = shares
    tables["vfl"]["pre-trained"] = False
    with pytest.raises(FedgraphError, match="shares"):
        run_experiment(tables)
