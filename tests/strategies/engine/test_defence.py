"""Attackers among the clients: what they do without a defence, and with each."""

import json
import logging
from dataclasses import replace

import pytest
import torch

from fedgraph.algorithms.bounds import LocalOnly
from fedgraph.clients.engine.base import CohortClient
from fedgraph.clients.engine.stock import StockClient
from fedgraph.clients.f3 import F3Client
from fedgraph.clients.sfl import SFLClient
from fedgraph.defence import DefenceTable
from fedgraph.federation import Federation
from fedgraph.models import TaskSpec
from fedgraph.strategies.engine.defence import Defence
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

ATTACKERS = ("client-1", "client-4")


class AbsurdOwner(F3Client):
    def embed(self, data):
        embedded = super().embed(data)
        embeddings = embedded.embeddings.clone()
        if "patch-0-0" in self.owners:
            embeddings[self.owners.index("patch-0-0")] *= 1e6
        return replace(embedded, embeddings=embeddings)


def absurd(names, sent):
    for place, name in enumerate(names):
        if name in ATTACKERS:
            sent[place] = 1e14
    return sent


class AbsurdSFL(SFLClient):
    def train(self):
        stacked, numbers = super().train()
        return {**stacked, "parameters": absurd(self.request.clients, stacked["parameters"].clone())}, numbers


class AbsurdModels(CohortClient):
    def train(self):
        stacked, numbers = super().train()
        return {**stacked, "parameters": absurd(self.request.clients, stacked["parameters"].clone())}, numbers


class AbsurdStock(StockClient):
    def train(self):
        stacked, numbers = super().train()
        return {**stacked, "parameters": absurd(self.request.clients, stacked["parameters"].clone())}, numbers


@pytest.fixture
def attacked(digits_tables, run_experiment):
    """Run nine clients, two of them attackers; return the run folder."""

    def run(client, defence=None, nodes=2, **experiment):
        chosen = {"client": f"{__name__}:{client.__name__}"} if client else {}
        tables = {
            **digits_tables,
            "experiment": {**digits_tables["experiment"], "rounds": 3, **chosen, **experiment},
            "data": {**digits_tables["data"], "clients": 9, "partition": "iid"},
            "graph": {"source": "complete"},
            "train": {**digits_tables["train"], "batch-size": 8, "local-epochs": 3},
            "defence": defence or {},
        }
        del tables["data"]["shards"]
        return run_experiment(tables, nodes=nodes)

    return run


def honest(folder):
    values = folder.summary()["per_client"]["test"]["accuracy"]
    found = [value for name, value in values.items() if name not in ATTACKERS]
    return sum(found) / len(found)


DEFENCES = [{"clip": 2.0}, {"krum": 0.2}, {"average": "median"}, {"average": "trimmed-mean", "trim": 0.3}]


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: next(iter(defence.values())))
@pytest.mark.parametrize(
    ("client", "chosen"),
    [
        (AbsurdSFL, {"method": "sfl"}),
        (AbsurdModels, {"method": None, "strategy": "fedgraph.algorithms.global_model:GlobalModel"}),
    ],
    ids=["sfl", "global"],
)
def test_two_of_nine_clients_do_not_spoil_the_others(attacked, client, chosen, defence):
    assert honest(attacked(client, **chosen)) < 0.35
    folder = attacked(client, defence, **chosen)
    assert honest(folder) > 0.7
    notes = [note for note in folder.summary().get("notes", ()) if "krum left out" in note]
    assert [("'client-1', 'client-4' in every round" in note) for note in notes] == [True] * ("krum" in defence)


@pytest.mark.process
@pytest.mark.parametrize("nodes", [2, 9])
def test_a_stock_strategy_is_defended_client_by_client(attacked, nodes):
    assert honest(attacked(AbsurdStock, nodes=nodes, method="fedavg")) < 0.35
    for defence in ({"clip": 2.0}, {"krum": 0.2}):
        folder = attacked(AbsurdStock, defence, nodes=nodes, method="fedavg")
        assert honest(folder) > 0.7
    assert folder.summary()["defence"]["left-out"]["client-1"] == 3


def test_means_of_nodes_are_watched_too(attacked, caplog):
    with caplog.at_level(logging.WARNING, "fedgraph"):
        attacked(AbsurdStock, nodes=9, method="fedavg", rounds=1)
    assert "the parameters of 'client-1', 'client-4' changed up to" in caplog.text


def test_what_is_unusual_is_said_without_any_defence(attacked, caplog):
    with caplog.at_level(logging.WARNING, "fedgraph"):
        folder = attacked(AbsurdSFL, rounds=1)
    assert "the parameters of 'client-1', 'client-4' changed up to" in caplog.text
    assert folder.summary()["defence"] == {"unusual": {"client-1": 1, "client-4": 1}}
    caplog.clear()
    assert "defence" not in attacked(None).summary()
    assert "changed up to" not in caplog.text


def test_where_nothing_is_aggregated_there_is_nothing_to_defend(attacked, caplog):
    with caplog.at_level(logging.WARNING, "fedgraph"):
        folder = attacked(AbsurdModels, {"clip": 2.0}, method="local")
    assert "changed up to" not in caplog.text
    assert "defence" not in folder.summary()

    class Mixing(LocalOnly):
        def aggregate(self, clients, state, answers):
            return answers.parameters.mean(0).expand_as(answers.parameters)

    assert Mixing(Settings()).aggregates, "a subclass may mix models after all"


def test_honest_clients_keep_their_models_bit_for_bit(attacked):
    plain, watched = attacked(None), attacked(None, {"clip": 50.0})
    assert plain.summary()["weights_sha256"] == watched.summary()["weights_sha256"]


def test_what_is_usual_is_remembered():
    names, counts = tuple(f"client-{number}" for number in range(9)), torch.ones(9, dtype=torch.int64)
    task = TaskSpec("regression", (), (1,))
    federation = Federation(names, {0: torch.arange(9)}, task, "x", {"train": counts})
    rows = torch.randn(9, 4)
    first, second = (Defence(DefenceTable(clip=2.0), federation, 4) for _ in range(2))
    first.judged(1, federation.names, {"parameters": rows}, torch.zeros(9, 4))
    second.load_state(json.loads(json.dumps(first.state())))
    later = {"parameters": 5 * rows}
    found = [
        defence.judged(2, federation.names, later, torch.zeros(9, 4))[0]["parameters"] for defence in (first, second)
    ]
    assert torch.equal(*found)
    assert first.facts() == second.facts()
    # All clients move further than before: what was usual holds them back.
    assert found[0].norm() < later["parameters"].norm()


@pytest.mark.parametrize(
    ("method", "defence", "message"),
    [
        ("ipa", {"clip": 2.0}, "clip .*'ipa'"),
        ("fedavg", {"average": "median"}, "warn, clip, krum"),
        ("fedatt", {"average": "median"}, "average is not supported by 'fedatt'"),
        ("sfl", {"krum": 0.4}, "needs at least 11 clients"),
    ],
)
def test_what_a_method_would_ignore_is_refused(attacked, method, defence, message):
    with pytest.raises(ExperimentError, match=message):
        attacked(None, defence, method=method)


@pytest.mark.process
def test_one_owner_of_four_does_not_spoil_the_fusion(patches_tables, run_experiment):
    tables = {**patches_tables, "f3": {**patches_tables["f3"], "epochs": 20}}
    tables["train"] = {**patches_tables["train"], "local-epochs": 20}

    def accuracy(**more):
        """Over three seeds: what is left of an attacked fusion is a matter of chance."""
        found = []
        for seed in range(3):
            changed = {**tables, **more}
            changed["experiment"] = {**changed["experiment"], "seed": seed}
            found.append(run_experiment(changed).summary()["metrics"]["test"]["accuracy"]["mean"])
        return sum(found) / len(found)

    attack = {"experiment": {**tables["experiment"], "client": f"{__name__}:AbsurdOwner"}}
    fair = accuracy()
    assert accuracy(**attack) < 0.5 * fair
    assert accuracy(**attack, defence={"clip": 5.0}) > 0.7 * fair
