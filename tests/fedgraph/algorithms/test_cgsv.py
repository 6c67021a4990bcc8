import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph.algorithms.cgsv import CGSV, CGSVSettings
from fedgraph.clients.engine.base import CohortClient
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.files import load_state
from fedgraph.support.settings import parse
from fedgraph.training.cohort import Cohort

SHAPES = {"first": (3, 4), "gain": (), "mean": (2,)}
LAYERS, TRAINABLE = (12, 1), 13


@pytest.fixture(scope="session")
def strategy(serve):
    def of(counts=(5, 1, 3, 9), **table):
        random = torch.Generator().manual_seed(0)
        state = {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}
        return serve(CGSV(parse(CGSVSettings, table, "[cgsv]")), counts, state, ["mean"])

    return of


def one_round(served, updates, server_round=1, absent=(), stale=()):
    """Clients that are not ``absent`` send their model and their row of ``updates`` on top."""
    names = served.federation.names
    positions = torch.tensor([row for row, name in enumerate(names) if name not in absent])
    models = (served.models + updates)[positions]
    reasons = dict.fromkeys((*absent, *stale), "no reply in time")
    replies = Replies.of(served.federation, positions, {"parameters": models}, {}, reasons)
    begun, _ = served.algorithm.begin(served.clients, served.state, server_round)
    with pytest.raises(StopIteration) as end:
        begun.send(replies.answers())
    served.state = served.algorithm.after(served.state, end.value.value)


def importance(served):
    return served.state["importance"]


def updates(seed, clients=4):
    return torch.randn(clients, 15, generator=torch.Generator().manual_seed(seed))


def by_hand(w, found, r, away=0.0, groups=(TRAINABLE,), alpha=0.95, beta=1.0, gamma=0.5, floor=0.0, first=False):
    """The equations for those present: their next models and importances.

    away : the importance of somebody else; groups : sizes of what is ranked together; first : earlier importance has
    no part in the new one.
    """
    u, shares = [], r / r.sum()
    for before, after in zip(w, found, strict=True):
        change = (after - before)[:TRAINABLE]
        u.append(gamma * change / np.sqrt(change @ change))
    total = sum(share * each for share, each in zip(shares, u, strict=True))
    cosines = np.array([each @ total / np.sqrt(each @ each) / np.sqrt(total @ total) for each in u])
    mixed = np.maximum((0 if first else alpha * shares) + (1 - alpha) * cosines, floor)
    r = r.sum() * mixed / mixed.sum()
    best = np.tanh(beta * max(*r, away))
    given = np.array([largest(total, np.tanh(beta * own) / best, groups) for own in r])
    statistics = np.tile(shares @ found[:, TRAINABLE:], (len(w), 1))
    return np.concatenate([w[:, :TRAINABLE] + given, statistics], axis=1), r


def largest(total, share, groups):
    given, start = np.zeros_like(total), 0
    for size in groups:
        order = np.argsort(-np.abs(total[start : start + size])) + start
        given[order[: math.ceil(share * size)]] = total[order[: math.ceil(share * size)]]
        start += size
    return given


@pytest.mark.parametrize(
    "table", [{}, {"alpha": 0.5, "beta": 8, "update-norm": 2.0}], ids=lambda table: "-".join(table) or "defaults"
)
def test_two_rounds_are_the_equations(table, strategy):
    served = strategy(**table)
    how = {"gamma" if key == "update-norm" else key: value for key, value in table.items()}
    r, w = np.full(4, 1 / 4), served.models.double().numpy()
    for server_round in (1, 2):
        before = w
        w, r = by_hand(w, w + updates(server_round).double().numpy(), r, **how)
        one_round(served, updates(server_round), server_round)
        np.testing.assert_allclose(importance(served), r, rtol=1e-5)
        np.testing.assert_allclose(served.models, w, rtol=1e-5, atol=1e-6)
    assert len(set((w != before).sum(1).tolist())) > 1, "not all are given the same"


def test_two_rounds_are_those_of_the_released_program(strategy):
    served = strategy(released=True)
    r, w = np.array([5, 1, 3, 9]) / 18, served.models.double().numpy()
    for server_round in (1, 2):
        found = w + updates(server_round).double().numpy()
        w, r = by_hand(w, found, r, groups=LAYERS, floor=1e-3, first=server_round == 1)
        one_round(served, updates(server_round), server_round)
        np.testing.assert_allclose(importance(served), r, rtol=1e-5)
        np.testing.assert_allclose(served.models, w, rtol=1e-5, atol=1e-6)


def given_to(served, change):
    """How many numbers of each client's model a round changes."""
    before = served.models
    one_round(served, change)
    return (served.models != before)[:, :TRAINABLE].sum(1).tolist()


def test_the_more_important_are_given_more_and_altruism_levels_it(strategy):
    shared = updates(1, 1) + 0.1 * updates(2)
    for beta, expected in ((1.0, [2, 4, 7, 13]), (1000.0, [13] * 4)):
        served = strategy(alpha=1 - 1e-9, beta=beta)
        served.state["importance"] = torch.tensor([0.05, 0.15, 0.25, 0.55], dtype=torch.float64)
        assert given_to(served, shared) == expected
    assert (served.models[:, :TRAINABLE] == served.models[0, :TRAINABLE]).all()


def test_who_goes_against_the_others_is_given_less_and_less_and_finally_nothing(strategy):
    served, direction = strategy(), updates(1, 1)
    change = torch.cat([direction, direction, direction, -direction])
    got = [given_to(served, change)[3] for _ in range(5)]
    assert got == sorted(got, reverse=True)
    assert len(set(got)) > 2
    assert got[-1] == 0
    torch.testing.assert_close(importance(served), torch.tensor([1, 1, 1, 0]).double() / 3)


def test_in_the_released_program_nobody_is_given_nothing(strategy):
    served, direction = strategy(released=True), updates(1, 1)
    for server_round in range(1, 6):
        one_round(served, torch.cat([direction, direction, direction, -direction]), server_round)
    assert 0 < float(importance(served)[3]) < 0.001


@pytest.mark.parametrize("alpha", [0.95, 0.0])
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_updates_of_no_length_or_beyond_all_measure_move_nobody(alpha, released, size, strategy):
    served = strategy(alpha=alpha, released=released)
    served.replace_models(torch.zeros(4, 15))
    one_round(served, torch.full((4, 15), size))
    assert float(served.models[:, :TRAINABLE].abs().max()) < 1e-15
    assert importance(served).isfinite().all()
    assert float(importance(served).sum()) == pytest.approx(1)


def test_who_has_not_moved_is_given_less(strategy):
    served = strategy()
    change = updates(1, 1).repeat(4, 1)
    change[2] = 0
    for server_round in range(1, 6):
        one_round(served, change, server_round)
    assert served.models.isfinite().all()
    assert float(importance(served)[2]) < 0.6 * float(importance(served)[0])


def test_clients_without_examples_contribute_nothing_and_are_given_nothing(strategy):
    served, alone = strategy(counts=(5, 0, 2, 9)), strategy(counts=(5, 2, 9))
    before = served.models
    change = updates(1)
    change[1] = 0
    one_round(served, change)
    one_round(alone, change[[0, 2, 3]])
    torch.testing.assert_close(served.models[[0, 2, 3]], alone.models)
    torch.testing.assert_close(importance(served)[[0, 2, 3]], importance(alone))
    assert torch.equal(served.models[1, :TRAINABLE], before[1, :TRAINABLE])
    assert importance(served)[1] == 0


def test_where_nobody_has_examples_nobody_moves(strategy):
    served = strategy(counts=(0, 0, 0, 0))
    before = served.models
    one_round(served, torch.zeros(4, 15))
    assert torch.equal(served.models, before)
    assert importance(served).tolist() == [0] * 4
    assert served.algorithm.shares(importance(served)).tolist() == [0] * 4


@pytest.mark.parametrize("how", ["absent", "stale"])
def test_clients_that_are_away_keep_model_and_importance_and_the_others_go_on(how, strategy):
    served = strategy(alpha=0.5)
    one_round(served, updates(1))
    models, before = served.models.clone(), importance(served).clone()
    one_round(served, updates(2), 2, **{how: ("b",)})
    assert torch.equal(served.models[1], models[1])
    assert importance(served)[1] == before[1]
    assert float(importance(served).sum()) == pytest.approx(1)
    rest = [0, 2, 3]
    w = models[rest].double().numpy()
    found = w + updates(2)[rest].double().numpy()
    w, r = by_hand(w, found, before[rest].numpy(), away=float(before[1]), alpha=0.5)
    np.testing.assert_allclose(importance(served)[rest], r, rtol=1e-5)
    np.testing.assert_allclose(served.models[rest], w, rtol=1e-5, atol=1e-6)


def test_a_round_without_anybody_changes_nothing(strategy):
    served = strategy()
    one_round(served, updates(1))
    before = served.models.clone(), importance(served).clone()
    one_round(served, updates(2), 2, stale=tuple("abcd"))
    assert torch.equal(served.models, before[0])
    assert torch.equal(importance(served), before[1])


# ---- whole runs


@pytest.mark.parametrize(("policy", "lost"), [("fail", ()), ("skip", (2,)), ("keep-last", (2,))])
def test_whole_run(problem, close, policy, lost):
    folder = problem.run("cgsv", {"beta": 2.0}, experiment={"on-missing": policy}, lost=lost)
    w, r = problem.initial.expand(3, -1).clone(), torch.full((3,), 1 / 3).double()
    for server_round in (1, 2, 3):
        rows = [0, 2] if server_round in lost else [0, 1, 2]
        u = torch.stack([problem.train(client, w[client]) - w[client] for client in rows])
        u = 0.5 * u / u.norm(dim=1, keepdim=True)
        total = r[rows] / r[rows].sum() @ u
        r[rows] = r[rows].sum() * (mixed := 0.95 * r[rows] / r[rows].sum() + 0.05 * u @ total / total.norm() / 0.5)
        r[rows] /= mixed.sum()
        q = (2 * r).tanh() / (2 * r).tanh().max()
        for client in rows:
            largest = total.abs().topk(math.ceil(q[client] * 650)).indices
            w[client, largest] += total[largest]
    close(problem.own_models(folder), w)
    close(problem.strategy_state(folder)["importance"], r)
    close(problem.global_model(folder), w.mean(0))


def digits(method, partition, rounds, **table):
    return {
        "experiment": {"name": "digits", "method": method, "rounds": rounds},
        "data": {"set": "digits", "clients": 10, "partition": partition, "test": "shared", "validation-share": 0.0},
        "model": {"name": "mlp", "hidden": []},
        "train": {"optimizer": "sgd", "learning-rate": 0.1, "batch-size": 16, "local-epochs": 1, "workers": 1},
        method: table,
    }


def accuracies(folder, server_round):
    """Of every client on the whole test set."""
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    wanted = {"phase": "evaluation", "split": "test", "round": server_round}
    (found,) = [line for line in lines if wanted.items() <= line.items()]
    return np.array(list(found["per_client"]["accuracy"].values()))


@pytest.mark.parametrize(
    ("partition", "rounds", "table"),
    [("class-imbalance", 20, {"alpha": 0.5}), ("power-law", 5, {"released": True})],
)
def test_clients_rank_as_they_do_alone(run_experiment, partition, rounds, table):
    alone = accuracies(run_experiment(digits("local", partition, 20)), 20)
    found = accuracies(run_experiment(digits("cgsv", partition, rounds, **table)), rounds)
    assert 100 * np.corrcoef(alone, found)[0, 1] > 60
    assert found.mean() > alone.mean() + 0.05


class Mislabelled(CohortClient):
    """The examples of ``client-0`` have each other's labels."""

    def train(self):
        data = self.cohort.data
        split = data.splits["train"]
        rows = split.rows[data.names.index("client-0")]
        rows, targets = rows[rows >= 0], split.targets.clone()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        targets[rows] = targets[rows[order]]
        data = replace(data, splits={**data.splits, "train": replace(split, targets=targets)})
        cohort = Cohort(self.cohort.model, data, self.cohort.settings, self.cohort.seed)
        result = self.train_from(self.start(), cohort=cohort)
        return {"parameters": result.parameters}, {"loss": result.loss}


def test_who_trains_on_wrong_labels_is_given_less_and_less_and_falls_behind(run_experiment):
    importance = []
    for rounds in (1, 2, 10):
        tables = digits("cgsv", "iid", rounds, alpha=0.9)
        tables["data"]["clients"] = 5
        tables["experiment"]["client"] = f"{__name__}:Mislabelled"
        folder = run_experiment(tables, nodes=1)
        importance.append(load_state(folder.checkpoint)["strategy"]["importance"])
    wrong, right = torch.stack(importance)[:, 0].tolist(), torch.stack(importance)[:, 1:]
    assert 0.19 > wrong[0] > wrong[1] > wrong[2]
    assert float(right.min()) > 0.2
    found = accuracies(folder, 10)
    assert found[1:].min() > 0.85
    assert found[0] < found[1:].min() - 0.05
