"""One client of ten claims 2^40 examples: what its model then weighs, method by defence."""

from dataclasses import replace

import pytest
import torch

import fedgraph
from fedgraph.clients import app
from fedgraph.training import Cohort

CLAIMED = 2**40
ATTACKER = "client-00"
TABLES = {
    "data": {"set": "digits", "clients": 10, "partition": "iid"},
    "model": {"name": "mlp", "hidden": [32]},
    "train": {"optimizer": "sgd", "learning-rate": 0.1, "batch-size": 16, "local-epochs": 2, "compile": False},
}
METHODS = {
    "fedavg": {},
    "sfl": {"graph": {"source": "complete"}, "sfl": {"weighting": "examples"}},
    "pfedgraph": {},
}
DEFENCES = {"none": {}, "clip": {"clip": 2.0}, "krum": {"krum": 0.1}}
COUNTED = {"none": 433, "clip": 162, "krum": 433}
UPDATES = {"unchanged": 1.0, "zero": 0.0, "reversed": -1.0}


def run(folder, method, defence, rounds=30, nodes=2, seed=0):
    head = {"name": "claims", "method": method, "rounds": rounds, "seed": seed}
    data = TABLES["data"] | {"partition-seed": seed}
    tables = {**TABLES, **METHODS[method], "experiment": head, "data": data}
    return fedgraph.run({**tables, "defence": defence}, nodes=nodes, out=folder, progress=False)


def accuracy(found):
    """Return the mean test accuracy of the honest clients."""
    return float(found.clients.drop(ATTACKER)["test/accuracy"].mean())


def attack(patch, factor):
    """Have the attacker claim its examples, and send ``factor`` times its update."""
    identity, train = app._identity, Cohort.train

    def claim(message, node):
        found = identity(message, node)
        claims = torch.tensor([name == ATTACKER for name in found.clients])
        counts = found.num_examples["train"].masked_fill(claims, CLAIMED)
        return replace(found, num_examples={**found.num_examples, "train": counts})

    def falsify(self, start, *more):
        found = train(self, start, *more)
        attacker = torch.tensor([name == ATTACKER for name in self.data.names])[:, None]
        other = start + factor * (found.parameters - start)
        return replace(found, parameters=torch.where(attacker, other, found.parameters))

    patch.setattr(app, "_identity", claim)
    patch.setattr(Cohort, "train", falsify)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("defence", DEFENCES)
@pytest.mark.parametrize("method", METHODS)
def test_a_claim_costs_honest_clients_no_more_than_two_points(method, defence, seed, tmp_path):
    """Unless the update is reversed, too, and there is no defence: one in ten, which counts as three of twelve."""
    honest = accuracy(run(tmp_path, method, DEFENCES[defence], seed=seed))
    found = {}
    for update, factor in UPDATES.items():
        with pytest.MonkeyPatch.context() as patch:
            attack(patch, factor)
            one = run(tmp_path, method, DEFENCES[defence], seed=seed)
        found[update] = accuracy(one)
        counted = f"'client-00' counted as {COUNTED[defence]} examples"
        assert any(counted in note for note in one.summary["notes"])
    print(
        f"{method}, {defence}, seed {seed}: {honest:.3f} without the attacker;",
        {each: round(found[each], 3) for each in found},
    )
    assert min(found["unchanged"], found["zero"]) > honest - 0.02
    assert found["reversed"] > honest - (0.07 if defence == "none" else 0.02)


def test_without_the_bound_the_claim_decides(tmp_path, monkeypatch):
    attack(monkeypatch, 0.0)
    found = run(tmp_path, "fedavg", {"most-examples": 0, "clip": 2.0}, rounds=5)
    assert accuracy(found) < 0.3
    assert not any("most-examples" in note for note in found.summary.get("notes", []))


def test_a_claim_counts_alike_however_clients_are_divided_among_nodes(tmp_path, monkeypatch):
    """A node would weight its own clients by what they claim, so that it is asked for their models, not for a mean."""
    attack(monkeypatch, -1.0)
    alone, together = (run(tmp_path, "fedavg", {}, rounds=2, nodes=nodes).models for nodes in (10, 1))
    for name, values in alone[ATTACKER].items():
        torch.testing.assert_close(values, together[ATTACKER][name])
