import json

import pytest
import torch

from fedgraph.algorithms.ipa import IPA, IPASettings
from fedgraph.clients.ipa import IPAClient
from fedgraph.graph import ClientGraph, read_graph, write_graph
from fedgraph.models import build, initial_model
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError, IdentityError, RunError
from fedgraph.support.randomness import derive_seed
from fedgraph.support.settings import parse

RATE, STEPS = 0.2, 3


def slope(d, power):
    return power * d.abs() ** (power - 1) * d.sign()


def own_initial(problem):
    """What each peer draws for itself."""
    task = TaskSpec("classification", (1, 8, 8), (10,))
    model = build(problem.tables["model"], task)
    return torch.stack([
        initial_model(model, derive_seed(0, "own initial model", name)) for name in problem.names
    ]).double()  # fmt: skip


def turn(problem, theta, i, c, power, strength, moves):
    """One peer's steps; all parameters before a step count in it. The loss is a sum, and divided by the examples."""
    theta = theta.clone()
    for _ in range(STEPS):
        pull = strength / problem.sizes[i] * c[i][:, None] * slope(theta[i] - theta, power)
        step = problem.gradient(i, theta[i]) + pull.sum(0)
        if moves:
            theta += RATE * pull
        theta[i] -= RATE * step
    return theta


def by_hand(problem, theta, present=lambda i, r: True, alike=False, power=1, strength=2.0, moves=True):
    """Algorithm 1 with turns in a ring; also every peer's loss after its last turn."""
    share = torch.ones(3) if alike else problem.sizes / problem.sizes.sum()
    c = share * (1 - torch.eye(3))
    losses = {}
    for server_round in (1, 2, 3):
        for i in range(3):
            if present(i, server_round):
                theta = turn(problem, theta, i, c, power, strength, moves)
                losses[i] = problem.loss(i, theta[i]).item()
    return theta, losses


TABLE = {"order": "ring", "lambda-alignment": 2.0}
KINDS = {
    "plain": ({}, {}),
    "squared": ({"power": 2}, {"power": 2}),
    "other-power": ({"power": 1.5}, {"power": 1.5}),
    "fixed": ({"moves-others": False}, {"moves": False}),
    "alike": ({"weights": "all-alike"}, {"alike": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whole_run(problem, close, kind):
    table, more = KINDS[kind]
    folder = problem.run("ipa", {**TABLE, **table})
    theta, losses = by_hand(problem, own_initial(problem), **more)
    close(problem.own_models(folder), theta)
    after_turn = pytest.approx([losses[i] for i in range(3)], rel=1e-4)
    assert problem.measured(folder) == after_turn
    summary, moves = folder.summary(), table.get("moves-others", True)
    at_the_end = summary["per_client"]["train"]
    assert list(at_the_end["loss-after-turn" if moves else "loss"].values()) == after_turn
    assert list(at_the_end["loss"].values()) == problem.losses(theta), "the models that are saved"
    assert summary["exchanges"] == 1 + 1 + 3 * 3 + moves
    assert float((theta[0] - theta[1]).abs().max()) > 0.01, "peers stay different"


def test_the_same_start_for_all(problem, close):
    folder = problem.run("ipa", {**TABLE, "power": 2, "initialisation": "same"})
    close(problem.own_models(folder), by_hand(problem, problem.initial.expand(3, -1), power=2)[0])


@pytest.mark.parametrize("how", ["away", "lost"])
def test_a_peer_that_fails_keeps_its_parameters_among_the_others_and_comes_back(problem, close, how):
    folder = problem.run("ipa", TABLE, **{how: (2,)})
    theta, _ = by_hand(problem, own_initial(problem), present=lambda i, r: (i, r) != (1, 2))
    close(problem.own_models(folder), theta)


@pytest.mark.parametrize("what", ["parameters", "others"])
def test_a_turn_that_diverges_changes_nobody(problem, close, monkeypatch, what):
    """Also where only what it did to the others is not finite."""
    train = IPAClient.train

    def diverging(self):
        stacked, numbers = train(self)
        if (self.request.round, self.request.clients) == (2, (problem.names[1],)):
            stacked[what] = stacked[what].clone()
            stacked[what][..., 3] = torch.nan
        return stacked, numbers

    monkeypatch.setattr(IPAClient, "train", diverging)
    folder = problem.run("ipa", TABLE, experiment={"on-missing": "skip"})
    theta, _ = by_hand(problem, own_initial(problem), present=lambda i, r: (i, r) != (1, 2))
    close(problem.own_models(folder), theta)
    with pytest.raises(RunError, match="if training diverged, a smaller"):
        problem.run("ipa", TABLE, experiment={"on-missing": "fail"})


def test_a_run_that_was_stopped_before_its_last_measuring_tells_both_all_the_same(problem):
    folder = problem.run("ipa", TABLE)
    whole, lines = folder.summary(), folder.metrics.read_text()
    (folder.path / "summary.json").unlink()
    again = problem.run("ipa", TABLE, folder=folder)
    assert again.summary()["per_client"] == whole["per_client"]
    assert again.metrics.read_text() == lines


def test_every_peer_keeps_one_adam_over_the_parameters_of_all(problem):
    train = {"optimizer": "adam", "learning-rate": 0.01, "keep-optimizer": True}
    folder = problem.run("ipa", {**TABLE, "power": 2}, train)
    c = problem.sizes / problem.sizes.sum() * (1 - torch.eye(3))
    theta = own_initial(problem)
    own = [theta.clone().requires_grad_() for _ in range(3)]
    optimisers = [torch.optim.Adam([parameters], 0.01) for parameters in own]
    for _ in (1, 2, 3):
        for i in range(3):
            own[i].data.copy_(theta)
            for _ in range(STEPS):
                optimisers[i].zero_grad()
                distance = (c[i] * (own[i][i] - own[i]).square().sum(1)).sum()
                (problem.loss(i, own[i][i]) + 2.0 / problem.sizes[i] * distance).backward()
                optimisers[i].step()
            theta = own[i].detach().clone()
    torch.testing.assert_close(problem.own_models(folder), theta, rtol=1e-3, atol=1e-5)


def test_moments_are_not_sent(problem):
    train = {"optimizer": "adam", "learning-rate": 0.01, "keep-optimizer": True}
    kept = problem.run("ipa", TABLE, train)
    files = {path.parent.parent.name for path in (kept.path / "nodes").rglob("round-*")}
    assert {"alignment-optimiser", "optimiser"} <= files
    forgotten = problem.run("ipa", TABLE, {**train, "keep-optimizer": False})
    assert not torch.equal(problem.own_models(kept), problem.own_models(forgotten))
    size = 4 * 650
    assert kept.summary()["bytes_up"] < 9 * (3 * size + 600), "theta*, without any moments"


def test_all_at_once_align_with_the_last_round(problem, close):
    folder = problem.run("ipa", {**TABLE, "turns": "simultaneous"})
    theta, c = own_initial(problem), problem.sizes / problem.sizes.sum() * (1 - torch.eye(3))
    for _ in (1, 2, 3):
        before, after = theta, []
        for i in range(3):
            v = before[i]
            for _ in range(STEPS):
                pull = 2.0 / problem.sizes[i] * c[i][:, None] * slope(v - before, 1)
                v = v - RATE * (problem.gradient(i, v) + pull.sum(0))
            after.append(v)
        theta = torch.stack(after)
    close(problem.own_models(folder), theta)
    assert folder.summary()["exchanges"] == 1 + 3 + 1


@pytest.fixture(scope="session")
def strategy(serve):
    def of(graph=None, peers=3, **table):
        if graph is not None:
            graph = ClientGraph.from_dense(tuple("abcdefg"[:peers]), graph, directed=False)
        algorithm = IPA(parse(IPASettings, table, "[ipa]"))
        return serve(algorithm, torch.arange(1, peers + 1), {"w": torch.zeros(4)}, graph=graph)

    return of


def weights(served, server_round=1):
    return served.algorithm.weights(served.clients, server_round)


def test_initial_weights_of_deviation_root_two_by_inputs(problem):
    table = {**TABLE, "initial-weights": "kaiming-normal"}
    found = problem.own_models(problem.run("ipa", table, experiment={"rounds": 0}))
    assert found[:, :-10].std() == pytest.approx((2 / 64) ** 0.5, rel=0.05)
    assert torch.equal(found[:, -10:], own_initial(problem)[:, -10:]), "biases are the model's"
    assert not torch.allclose(found[0], found[1])
    same = problem.own_models(problem.run("ipa", {**table, "initialisation": "same"}, experiment={"rounds": 0}))
    assert torch.equal(same[0], same[2])


def test_weights_are_shares_of_the_examples_of_the_others(strategy):
    torch.testing.assert_close(weights(strategy()), torch.tensor([[0, 2, 3], [1, 0, 3], [1, 2, 0]]) / 6)
    assert weights(strategy(weights="all-alike")).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_neighbours_only(problem, close, tmp_path, strategy):
    joined = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    served = strategy(graph=joined, **{"neighbours-only": True})
    torch.testing.assert_close(weights(served), torch.tensor([[0, 2, 0], [1, 0, 0], [0, 0, 0]]) / 6)
    write_graph(ClientGraph.from_dense(problem.names, joined, directed=False), tmp_path / "graph.npz")
    problem.tables["graph"] = {"source": "file", "path": str(tmp_path / "graph.npz")}
    folder = problem.run("ipa", {**TABLE, "neighbours-only": True})
    theta, c = own_initial(problem), problem.sizes / problem.sizes.sum() * (1 - torch.eye(3)) * joined
    for i in (0, 1, 2) * 3:
        theta = turn(problem, theta, i, c, 1, 2.0, True)
    close(problem.own_models(folder), theta)


def test_neighbours_along_the_graph_that_another_run_has_learned(digits_tables, run_experiment):
    digits_tables["graph"] = {}
    learned = run_experiment({**digits_tables, "experiment": {"name": "first", "method": "sfl-star", "rounds": 2}})
    digits_tables["graph"] = {"source": "run", "path": str(learned.path), "neighbours": 2}
    digits_tables["ipa"] = {"neighbours-only": True}
    digits_tables["experiment"] = {"name": "second", "method": "ipa", "rounds": 1}
    over = [run_experiment(digits_tables)]
    digits_tables["graph"]["permute-seed"] = 1
    over.append(run_experiment(digits_tables))
    used, permuted = (read_graph(folder.path / "graph.npz") for folder in over)
    assert used == read_graph(learned.path / "learned-graph.npz").strongest(2)
    assert all(len(used.neighbours(name)) == 2 for name in used.names)
    assert permuted != used
    assert over[0].summary()["weights_sha256"] != over[1].summary()["weights_sha256"]


def test_orders(strategy):
    ring, random = strategy(peers=6, order="ring"), strategy(peers=6)
    assert [ring.algorithm.order(ring.clients, r) for r in (1, 2)] == [list(range(6))] * 2
    orders = [random.algorithm.order(random.clients, r) for r in range(1, 6)]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert len({tuple(order) for order in orders}) > 2
    assert orders == [random.algorithm.order(random.clients, r) for r in range(1, 6)], "a resumed run takes the same"


def test_one_that_joins_late_enters_with_its_own_parameters(problem, close):
    late = problem.names[1]
    folder = problem.run("ipa", {**TABLE, "joins": {late: 2}})
    theta = own_initial(problem)
    share = problem.sizes / (problem.sizes[0] + problem.sizes[2])
    alone = share * (1 - torch.eye(3)) * torch.tensor([1.0, 0.0, 1.0])
    theta = turn(problem, turn(problem, theta, 0, alone, 1, 2.0, True), 2, alone, 1, 2.0, True)
    assert torch.equal(theta[1], own_initial(problem)[1])
    c = problem.sizes / problem.sizes.sum() * (1 - torch.eye(3))
    for i in (0, 1, 2) * 2:
        theta = turn(problem, theta, i, c, 1, 2.0, True)
    close(problem.own_models(folder), theta)
    assert folder.summary()["exchanges"] == 1 + 1 + 2 + 3 + 3 + 1


def test_one_that_joins_late_has_moments_of_its_own_age(problem):
    """The others' go on; with PyTorch's Adam over all that are there, which is given the newcomer when it comes."""
    train = {"optimizer": "adam", "learning-rate": 0.01, "keep-optimizer": True}
    late = problem.names[1]
    folder = problem.run("ipa", {**TABLE, "power": 2, "joins": {late: 3}}, train)
    theta, there = own_initial(problem), torch.tensor([1.0, 0.0, 1.0])
    own = [[row.clone().requires_grad_() for row in theta] for _ in range(3)]
    optimisers = [torch.optim.Adam([parameters[0], parameters[2]], 0.01) for parameters in own]
    for server_round in (1, 2, 3):
        if server_round == 3:
            there = torch.ones(3)
            for i in (0, 2):
                optimisers[i].add_param_group({"params": [own[i][1]]})
            optimisers[1] = torch.optim.Adam(own[1], 0.01)
        sizes = problem.sizes * there
        c = sizes / sizes.sum() * (1 - torch.eye(3))
        for i in there.nonzero().flatten().tolist():
            for row, value in zip(own[i], theta, strict=True):
                row.data.copy_(value)
            for _ in range(STEPS):
                optimisers[i].zero_grad()
                distance = sum(c[i, j] * (own[i][i] - own[i][j]).square().sum() for j in range(3) if c[i, j])
                (problem.loss(i, own[i][i]) + 2.0 / problem.sizes[i] * distance).backward()
                optimisers[i].step()
            theta = torch.stack(own[i]).detach().clone()
    torch.testing.assert_close(problem.own_models(folder), theta, rtol=1e-3, atol=1e-5)


def test_who_may_join_when(strategy):
    served = strategy(peers=4, joins={"c": 5}, order="ring")
    assert [served.algorithm.order(served.clients, r) for r in (1, 4, 5)] == [[0, 1, 3], [0, 1, 3], [0, 1, 2, 3]]
    random = strategy(peers=4, joins={"c": 5})
    assert sorted(random.algorithm.order(random.clients, 4)) == [0, 1, 3]
    torch.testing.assert_close(weights(served, 4)[0], torch.tensor([0, 2, 0, 4]) / 7)
    assert weights(strategy(joins={"c": 2}, weights="all-alike")).tolist() == [[0, 1, 0], [1, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize("turns", ["sequential", "simultaneous"])
def test_noise_on_shared_parameters_has_the_deviation_asked_for(problem, turns):
    """In one round, on the peer's own parameters alone; what is measured has none."""
    table, one = {**TABLE, "turns": turns, "lambda-alignment": 0.0}, {"rounds": 1}
    clean, noisy = (problem.run("ipa", {**table, "noise": noise}, experiment=one) for noise in (0.0, 0.01))
    difference = problem.own_models(noisy) - problem.own_models(clean)
    assert difference.std(1) == pytest.approx([0.01] * 3, rel=0.1)
    assert not torch.allclose(difference[0], difference[1])
    if turns == "sequential":
        assert problem.measured(noisy, 1) == pytest.approx(problem.measured(clean, 1))
    again = problem.run("ipa", {**table, "noise": 0.01}, experiment=one)
    assert torch.equal(problem.own_models(again), problem.own_models(noisy))


PRIVACY = {"clip-norm": 0.5, "noise-multiplier": 1e-4, "releases": 3}
UNMEASURED = {"splits": []}


@pytest.mark.parametrize("turns", ["sequential", "simultaneous"])
def test_a_private_update_is_clipped_as_a_whole(problem, turns):
    """The noise is too small to see: a turn's change of all parameters has the norm that it is shortened to."""
    table, one = {**TABLE, "turns": turns, "privacy": PRIVACY}, {"rounds": 1}
    folder = problem.run("ipa", table, experiment=one, evaluation=UNMEASURED)
    clean = problem.run("ipa", {**TABLE, "turns": turns}, experiment=one, evaluation=UNMEASURED)
    start, theta = own_initial(problem), problem.own_models(folder)
    if turns == "simultaneous":
        assert (theta - start).norm(dim=1) == pytest.approx([0.5] * 3, rel=0.05)
        direction = torch.nn.functional.cosine_similarity(theta - start, problem.own_models(clean) - start)
        assert direction.min() > 0.95
    else:
        # Three turns, each of them of this length, over the parameters of all peers.
        assert 0.5 < float((theta - start).norm()) < 1.5
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    training = [line for line in lines if line["phase"] == "training"]
    assert {value for line in training for value in line["per_client"]["loss"].values()} == {None}


def test_a_mean_of_the_last_models_is_measured_beside_them(problem, close):
    folder = problem.run("ipa", TABLE, evaluation={"average-last": 2})
    every = [problem.own_models(problem.run("ipa", TABLE, experiment={"rounds": rounds})) for rounds in (2, 3)]
    mean = (every[0] + every[1]) / 2
    close(problem.own_models(folder), mean)
    measured = folder.summary()["per_client"]["train"]
    assert list(measured["loss"].values()) == problem.losses(mean)
    assert list(measured["loss-last"].values()) == problem.losses(every[1])
    assert list(measured["loss-after-turn"].values()) == pytest.approx(problem.measured(folder))
    assert len({tuple(measured[name].values()) for name in ("loss", "loss-last", "loss-after-turn")}) == 3
    assert folder.summary()["training"]["minibatches"] == 3 * 3 * STEPS


def test_what_privacy_costs_and_guarantees_is_in_the_summary(problem):
    table = {**TABLE, "privacy": {"clip-norm": 1.0, "epsilon": 5.0, "delta": 1e-4, "releases": 3}}
    facts = problem.run("ipa", table, evaluation=UNMEASURED).summary()["privacy"]
    assert facts["epsilon"] == pytest.approx(5.0, rel=1e-3)
    # Three Gaussian releases are one with a noise smaller by the root of three (Balle and Wang 2018, theorem 8).
    mu = 3**0.5 / facts["noise_multiplier"]
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0).cdf
    delta = normal(torch.tensor(mu / 2 - 5.0 / mu)) - torch.e**5.0 * normal(torch.tensor(-mu / 2 - 5.0 / mu))
    assert float(delta) == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"peers": 1}, "two clients"),
        ({"neighbours-only": True}, "neighbours-only needs a client graph"),
        ({"joins": {"z": 2}}, "there is no client z"),
        ({"joins": {"a": 2, "b": 3, "c": 2}}, "no peer is present in the first round"),
        ({"joins": {"a": 2}, "turns": "simultaneous"}, "sequential turns"),
        ({"noise": 0.1, "privacy": PRIVACY}, "either noise or privacy"),
    ],
)
def test_what_cannot_be_is_refused(strategy, table, message):
    with pytest.raises(ExperimentError, match=message):
        strategy(**table)


@pytest.mark.parametrize(
    ("privacy", "evaluation", "message"),
    [({"releases": 2}, UNMEASURED, "3 rounds .*releases = 2"), ({}, {}, r"\(train, test\)")],
)
def test_a_private_run_has_a_release_for_each_round_and_measures_no_own_data(problem, privacy, evaluation, message):
    with pytest.raises(ExperimentError, match=message):
        problem.run("ipa", {**TABLE, "privacy": {**PRIVACY, **privacy}}, evaluation=evaluation)


def test_a_private_run_has_a_graph_of_labels_only_if_it_needs_one_which_is_refused(digits_tables, run_experiment):
    digits_tables["experiment"] |= {"method": "ipa", "rounds": 1}
    digits_tables |= {"evaluation": UNMEASURED, "graph": {"source": "labels"}, "ipa": {"privacy": PRIVACY}}
    assert not (run_experiment(digits_tables).path / "graph.npz").exists()
    digits_tables["ipa"]["neighbours-only"] = True
    with pytest.raises(IdentityError, match="does not cover the numbers of their labels"):
        run_experiment(digits_tables)


def test_a_node_ends_releases_when_they_are_spent(problem, monkeypatch):
    monkeypatch.setattr(IPA, "_check_privacy", lambda *_: None)
    with pytest.raises(RunError, match="no such updates are sent of .*as many as was promised"):
        problem.run("ipa", {**TABLE, "privacy": {**PRIVACY, "releases": 2}}, evaluation=UNMEASURED)


def test_metrics_are_written_once_per_round(problem):
    folder = problem.run("ipa", TABLE)
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if line["phase"] == "evaluation" and line["split"] == "train"]
    assert [(line["round"], line.get("restored", False)) for line in measured] == [
        (0, False), (1, False), (2, False), (3, False), (3, True),
    ]  # fmt: skip
