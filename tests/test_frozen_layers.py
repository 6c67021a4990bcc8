"""Layers that require no gradient are sent to each node once, whatever becomes of the node, and never change."""

import copy
import shutil
import sys

import pytest
import torch

import fedgraph
from fedgraph.clients.app import app as client_app
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import RunError
from fedgraph.support.files import load_state

FROZEN, TRAINED = 64 * 200 + 200, 200 * 10 + 10
MODEL = """
import torch
from torch import nn

SHIFT = 0.0


class Backbone(nn.Module):
    def __init__(self, output_shape, changes=False):
        super().__init__()
        self.body, self.head = nn.Linear(64, 200), nn.Linear(200, output_shape[0])
        self.body.requires_grad_(False)
        self.body.bias.add_(SHIFT)
        self.changes = changes

    def forward(self, inputs):
        if self.training and self.changes and len(inputs) > 3:
            with torch.no_grad():
                self.body.bias.add_(1)
        return self.head(self.body(inputs.flatten(1)).relu())
"""
METHODS = {
    "sfl": {},
    "sfl-ft": {},
    "sfl-cold-start": {"sfl-cold-start": {"cold-below": 1.0}},
    "sfl-star": {},
    "ipa": {"ipa": {"initialisation": "own"}},
    "ipa-at-once": {"experiment": {"method": "ipa"}, "ipa": {"turns": "simultaneous"}},
    "fedavg-own-start": {},
    "ditto": {},
    "fedper": {"fedper": {"personal-layers": ["head.bias"]}},
    "lg-fedavg": {},
    "scaffold": {},
    "feddc": {},
    "fedatt": {},
    "cgsv": {},
    "pfedgraph": {},
    "local": {},
    "centralised": {},
}


@pytest.fixture
def tables(digits_tables, tmp_path, monkeypatch):
    (tmp_path / "their_backbone.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    digits_tables.pop("sfl")

    def of(name, **model):
        found = copy.deepcopy(digits_tables)
        found["model"] = {"name": "their_backbone:Backbone", "options": model}
        found["experiment"] |= {"method": name, "rounds": 3}
        for table, values in METHODS[name].items():
            found.setdefault(table, {}).update(values)
        return found

    return of


class Sent:
    """Counts the numbers of each request, by node, and what else ``then`` does before a round."""

    def __init__(self, then=None):
        self.frozen, self.largest, self.then, self.seen = {}, 0, then, set()

    def __call__(self, message, context):
        records = message.content.array_records
        node, config = context.node_id, message.content.config_records["config"]
        server_round = config.get("server-round")
        if self.then is not None and server_round == 3 and node not in self.seen:
            self.seen.add(node)
            self.then(context)
        if "frozen" in records:
            self.frozen[node] = self.frozen.get(node, 0) + 1
        others = [record for name, record in records.items() if name != "frozen"]
        sizes = [array.numpy().shape for record in others for array in record.values()]
        self.largest = max([self.largest, *(shape[-1] for shape in sizes if shape)])
        return client_app(message, context)


@pytest.mark.parametrize("method", METHODS)
def test_they_are_sent_once_and_belong_to_every_model(method, tables, run_experiment):
    sent = Sent()
    nodes = 1 if method == "centralised" else 2
    run = fedgraph.load_run(run_experiment(tables(method), nodes=nodes, client=sent).path)
    personal = method == "lg-fedavg"  # the node draws what stays there
    assert sent.frozen == ({} if personal else dict.fromkeys(sent.frozen, 1))
    assert len(sent.frozen) == (0 if personal else nodes)
    assert sent.largest <= TRAINED
    first = run.module("client-0", raw=False).state_dict()
    for client in run.models:
        state = run.module(client, raw=False).state_dict()
        assert all(torch.equal(state[name], first[name]) for name in ("body.weight", "body.bias"))
    if run.global_model is not None and method not in ("fedper", "lg-fedavg"):
        assert torch.equal(run.module(raw=False).body.weight, first["body.weight"])


def test_the_weights_are_those_of_a_run_that_sends_them_each_time(tables, run_experiment, monkeypatch):
    from fedgraph.clients.engine.base import CohortClient

    once = run_experiment(tables("local")).summary()
    monkeypatch.setattr(CohortClient, "joins_frozen", False)
    always = run_experiment(tables("local")).summary()
    assert once["weights_sha256"] == always["weights_sha256"]
    assert once["per_client"] == always["per_client"]
    # An opening query, three rounds, the last evaluation, and the request that is sent again.
    assert once["exchanges"] == always["exchanges"] + 1
    up, down = (always[key] - once[key] for key in ("bytes_up_per_client", "bytes_down_per_client"))
    assert up == pytest.approx(4 * 3 * FROZEN, rel=0.01)
    # Four times less one; the request that is sent again has the other layers twice.
    assert down == pytest.approx(4 * (3 * FROZEN - TRAINED), rel=0.01)


def test_a_node_that_has_lost_its_state_folder_is_sent_them_again(tables, run_experiment, tmp_path):
    def lose(context):
        shutil.rmtree(context.node_config["state-dir"])

    whole = run_experiment(tables("sfl")).summary()
    places = [str(tmp_path / f"state-{number}") for number in range(2)]
    configs = [{"partition-id": i, "num-partitions": 2, "state-dir": place} for i, place in enumerate(places)]
    sent = Sent(then=lose)
    again = run_experiment(tables("sfl"), node_configs=configs, client=sent).summary()
    assert set(sent.frozen.values()) == {2}
    assert again["weights_sha256"] == whole["weights_sha256"]


def test_a_damaged_file_is_sent_again(tables, run_experiment, tmp_path):
    def damage(context):
        (file,) = (tmp_path / context.node_config["state-dir"]).glob("runs/*/frozen/*")
        file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\1")
        from fedgraph.clients.engine.frozen_layers import _kept

        _kept.cache_clear()

    configs = [{"partition-id": 0, "num-partitions": 1, "state-dir": str(tmp_path / "state")}]
    sent = Sent(then=damage)
    run_experiment(tables("local"), node_configs=configs, client=sent)
    assert set(sent.frozen.values()) == {2}


def test_a_resumed_run_ends_with_the_same_weights_and_refuses_other_layers(
    tables, run_experiment, tmp_path, monkeypatch
):
    from flwr.app import Message

    from fedgraph.messages import error_content

    def fails(message, context):
        last = message.content.config_records["config"].get("server-round") == 3
        return Message(error_content("lost"), reply_to=message) if last else client_app(message, context)

    whole = run_experiment(tables("sfl")).summary()
    with pytest.raises(RunError, match="lost"):
        run_experiment(tables("sfl"), client=fails)
    (path,) = (path for path in (tmp_path / "runs").iterdir() if not (path / "summary.json").exists())
    kept = load_state(path / "checkpoint.safetensors")["strategy"]
    assert kept["models"].shape[1] == TRAINED, "no frozen layers in checkpoints"
    other = tmp_path / "other"
    shutil.copytree(path, other)
    assert run_experiment({}, folder=RunFolder.open(path)).summary()["weights_sha256"] == whole["weights_sha256"]
    monkeypatch.setattr(sys.modules["their_backbone"], "SHIFT", 1.0)
    with pytest.raises(RunError, match="frozen layers"):
        run_experiment({}, folder=RunFolder.open(other))


def test_layers_that_change_themselves_are_refused(tables, run_experiment):
    with pytest.raises(RunError, match="require no gradient"):
        run_experiment(tables("sfl", changes=True))


@pytest.mark.parametrize("method", ["sfl", "ipa"])
def test_results_do_not_depend_on_the_nodes(method, tables, run_experiment):
    one, six = (run_experiment(tables(method), nodes=nodes).summary()["per_client"]["test"] for nodes in (1, 6))
    assert one["loss"] == pytest.approx(six["loss"], rel=1e-4)
