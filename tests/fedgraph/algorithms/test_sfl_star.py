import json

import numpy as np
import pytest
import torch

from fedgraph.algorithms.sfl_star import SFLStar, SFLStarSettings
from fedgraph.data import open_source
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.graph.learning import combine_graphs, kernel_graph, smooth_graph
from fedgraph.graph.pairwise import squared_distances
from fedgraph.models.parameters import Layout
from fedgraph.runs.folder import RunFolder
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.files import load_state, save_state
from fedgraph.support.settings import parse

NAMES = tuple("abcdefgh")
RUNNING = Layout.of({"running": torch.zeros(2), "w": torch.zeros(5)}, buffers=["running"])


def ring(names=NAMES):
    weights = torch.eye(len(names)).roll(1, 0)
    return ClientGraph.from_dense(names, 3 * (weights + weights.T), directed=False)


@pytest.fixture(scope="session")
def strategy(serve):
    def of(graph=None, layout=RUNNING, **table):
        algorithm = SFLStar(parse(SFLStarSettings, table, "[sfl-star]"))
        initial = layout.row_state(torch.zeros(layout.num_parameters))
        return serve(algorithm, [1] * len(NAMES), initial, set(initial) & {"running"}, graph)

    return of


def related(served, server_round, replies):
    """The graph of a round, which is remembered."""
    clients, before = served.clients, served.state
    graph, own = served.algorithm.relations(clients, before, replies.answers(), server_round)
    served.state = {**before, **own}
    return graph


def models(seed=0):
    return torch.randn(8, 7, generator=torch.Generator().manual_seed(seed))


def replies(theta, graph=None, positions=None, absent=()):
    positions = torch.arange(len(NAMES)) if positions is None else torch.tensor(positions)
    names = tuple(NAMES[i] for i in positions.tolist())
    graph = None if graph is None else graph.subgraph(names)
    reasons = dict.fromkeys(absent, "no reply in time")
    return Replies(positions, names, {"parameters": theta}, {}, graph, torch.ones(len(names)), reasons)


def rows_add_up(weights, total):
    return (total * weights / weights.sum(dim=1, keepdim=True)).float()


def test_without_a_given_graph_the_learned_one_is_alone(strategy):
    theta = models()
    served = strategy(neighbours=3)
    expected = smooth_graph(squared_distances(theta[:, :5]), 3).weights  # running statistics do not count
    torch.testing.assert_close(related(served, 1, replies(theta)).dense(), rows_add_up(expected, 3.0))
    torch.testing.assert_close(served.learned_graph().dense(), expected.float())
    assert served.learned_graph().names == NAMES


def test_beside_a_graph_without_edges_the_learned_one_is_alone(strategy):
    theta, graph = models(), ClientGraph.empty(NAMES).with_self_loops()
    alone = related(strategy(neighbours=3), 1, replies(theta)).dense()
    beside = related(strategy(graph, neighbours=3), 1, replies(theta, graph)).dense()
    torch.testing.assert_close(beside, alone)


def test_with_a_given_graph_beta_of_it_is_learned(strategy):
    theta, graph = models(), ring()
    served = strategy(graph, neighbours=3, beta=0.2, learner="kernel")
    learned = kernel_graph(squared_distances(theta[:, :5]), 3)
    expected = 0.8 * graph.dense() + 0.2 * rows_add_up(learned, 6.0)
    torch.testing.assert_close(related(served, 1, replies(theta, graph)).dense(), expected)
    default = related(strategy(graph, learner="kernel", neighbours=3), 1, replies(theta, graph)).dense()
    torch.testing.assert_close(default.double(), combine_graphs(graph.dense().double(), learned, 0.05))


def test_aggregation_goes_over_the_learned_graph(strategy, aggregated):
    theta = models()
    got = aggregated(strategy(neighbours=3, hops=2, alpha=0.4), 1, replies(theta))
    a = rows_add_up(smooth_graph(squared_distances(theta[:, :5]), 3).weights, 3.0).numpy() + np.eye(8)
    a_hat = a / a.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(got.numpy(), 0.6 * theta.numpy() + 0.4 * a_hat @ a_hat @ theta.numpy(), atol=1e-5)


@pytest.mark.parametrize("start", ["personalised", "read-out"])
def test_updates_are_what_training_changed(start, strategy):
    theta = models()
    served = strategy(learner="kernel", features="updates", neighbours=3, start=start)
    served.replace_models(5 * models(seed=1))
    began = served.models if start == "personalised" else served.models.mean(dim=0)
    expected = kernel_graph(squared_distances((theta - began)[:, :5]), 3)
    torch.testing.assert_close(related(served, 1, replies(theta)).dense(), rows_add_up(expected, 3.0))


def test_updates_of_some_clients_are_against_their_own_models(strategy):
    served = strategy(learner="kernel", features="updates", neighbours=2)
    served.replace_models(5 * models(seed=1))
    present = [1, 2, 5, 7]
    theta = models()[present]
    expected = kernel_graph(squared_distances((theta - served.models[present])[:, :5]), 2)
    torch.testing.assert_close(
        related(served, 1, replies(theta, positions=present)).dense(), rows_add_up(expected, 2.0)
    )


def test_absent_clients_keep_their_last_known_weights(strategy):
    served = strategy(neighbours=3)
    related(served, 1, replies(models()))
    before = served.learned_graph().dense()
    present = [0, 2, 3, 4, 6]
    graph = related(served, 2, replies(models(seed=1)[present], positions=present))
    assert graph.names == tuple("acdeg")
    after = served.learned_graph().dense()
    among = torch.zeros(8, 8, dtype=torch.bool)
    among[torch.tensor(present)[:, None], torch.tensor(present)] = True
    assert torch.equal(before[~among], after[~among])
    expected = smooth_graph(squared_distances(models(seed=1)[present, :5]), 3).weights.float()
    torch.testing.assert_close(after[present][:, present], expected)
    for few in ([5], [5, 7]):
        assert related(served, 3, replies(models()[few], positions=few)).num_clients == len(few)


def test_a_reply_of_an_earlier_round_teaches_nothing(strategy):
    served = strategy(neighbours=3)
    theta = models()
    related(served, 1, replies(theta))
    before = served.learned_graph().dense()
    again = torch.cat([models(seed=1)[:7], theta[7:]])
    graph = related(served, 2, replies(again, absent=["h"]))
    assert graph.num_clients == 8
    after = served.learned_graph().dense()
    assert torch.equal(before[7], after[7])
    torch.testing.assert_close(after[:7, :7], smooth_graph(squared_distances(again[:7, :5]), 3).weights.float())


@pytest.mark.parametrize("features", ["parameters", "updates"])
def test_numbers_too_large_to_compare_leave_a_client_out_and_the_run_alive(features, strategy):
    theta = models()
    served = strategy(neighbours=3, features=features)
    diverged = theta.clone()
    diverged[7] = 1e30
    graph = related(served, 1, replies(diverged))
    assert graph.neighbours("h") == ()
    expected = smooth_graph(squared_distances(theta[:7, :5]), 3).weights
    torch.testing.assert_close(graph.dense()[:7, :7], rows_add_up(expected, 3.0))
    diverged[1:] = 1e30
    assert related(served, 2, replies(diverged)).num_clients == len(NAMES)


def test_a_client_not_seen_before_is_learned_at_once(strategy):
    served = strategy(**{"neighbours": 2})
    some = [0, 1, 2, 3, 4]
    related(served, 1, replies(models()[some], positions=some))
    graph = related(served, 2, replies(models(1)))
    assert all(graph.neighbours(name) for name in NAMES)


def test_released_stands_for_other_settings():
    settings = parse(SFLStarSettings, {"released": True, "momentum": 0.5, "features": "updates"}, "[sfl-star]")
    assert (settings.lambda_global, settings.lambda_personal, settings.start) == (0.0, 0.0, "read-out")
    assert (settings.learner, settings.features, settings.momentum) == ("encoder", "parameters", 0.0)


@pytest.mark.parametrize("loops", [0.0, 2.0])
def test_released_the_learned_graph_has_a_share_of_exactly_beta_of_what_each_client_hears(loops, strategy, aggregated):
    graph = ring() if not loops else ring().with_self_loops(loops)
    served = strategy(graph, released=True, beta=0.05, alpha=0.4, hops=1)
    got = aggregated(served, 1, replies(models(), graph))
    learned = served.learned_graph().dense().double().numpy()
    assert (learned * learned.T == 0).all()
    given = graph.dense().double().numpy() + np.eye(8) * (loops == 0)
    given /= given.sum(axis=1, keepdims=True)
    learned /= learned.sum(axis=1, keepdims=True)
    mixed = 0.95 * given + 0.05 * learned
    theta = models().double().numpy()
    np.testing.assert_allclose(got, 0.6 * theta + 0.4 * mixed @ theta, atol=1e-6)


def test_released_without_a_given_graph_nobody_listens_to_itself(strategy, aggregated):
    alone = strategy(released=True, hops=1)
    theta = models()
    got = aggregated(alone, 1, replies(theta))
    learned = alone.learned_graph().dense().double().numpy()
    assert (learned.sum(axis=1) > 0).all()
    assert (np.diag(learned) == 0).all()
    np.testing.assert_allclose(got, learned / learned.sum(axis=1, keepdims=True) @ theta.double().numpy(), atol=1e-6)
    counted = aggregated(strategy(released=True, hops=1, weighting="examples"), 1, replies(theta))
    torch.testing.assert_close(counted, got)


@pytest.mark.parametrize("learner", ["smoothness", "encoder"])
def test_state_is_everything_it_needs(learner, tmp_path, strategy, aggregated):
    table = {"learner": learner, "momentum": 0.5, "neighbours": 3}
    whole, part, resumed = (strategy(**table) for _ in range(3))
    aggregated(whole, 1, replies(models(1)))
    expected = aggregated(whole, 2, replies(models(2)))
    aggregated(part, 1, replies(models(1)))
    save_state(tmp_path / "state", part.saved())
    resumed.load(load_state(tmp_path / "state"))
    assert torch.equal(aggregated(resumed, 2, replies(models(2))), expected)
    assert resumed.learned_graph() == whole.learned_graph()


# ---- on real data

STAR = {"strategy": "fedgraph.strategies.sfl:SFLStar", "client": "fedgraph.clients.sfl:SFLClient"}


def same_classes(tables, data_dir):
    """Bool ``[N, N]`` each: the pairs of different clients that share a class, and those that do not."""
    source = open_source(parse_experiment(tables).data, data_dir)
    counts = source.load(source.client_names()).label_counts
    same = ((counts > 0).double() @ (counts > 0).double().T) > 0
    return same & ~torch.eye(12, dtype=torch.bool), ~same


@pytest.fixture
def tables(digits_tables):
    """12 clients of two classes each, many of which share one."""
    digits_tables["experiment"] = {**STAR, "rounds": 3}
    digits_tables["data"]["clients"] = 12
    digits_tables["train"] |= {"batch-size": 16, "local-epochs": 3}
    digits_tables["SFLStar"] = {"hops": 1, "neighbours": 3}
    del digits_tables["sfl"]
    return digits_tables


@pytest.mark.parametrize("learner", ["smoothness", "kernel", "encoder"])
def test_clients_that_share_classes_are_found_without_a_given_graph(tables, run_experiment, data_dir, learner):
    tables["graph"] = {"source": "none"}
    tables["SFLStar"]["learner"] = learner
    folder = run_experiment(tables)
    assert not (folder.path / "graph.npz").exists()
    learned = read_graph(folder.path / "learned-graph.npz")
    inside, across = (learned.dense()[pairs].mean() for pairs in same_classes(tables, data_dir))
    assert inside > 3 * across


def test_it_resumes_to_the_same_weights(tables, run_experiment):
    tables["graph"] = {"source": "none"}
    tables["SFLStar"] |= {"learner": "encoder", "momentum": 0.3}
    tables["experiment"]["rounds"] = 4
    whole = run_experiment(tables)
    tables["experiment"]["rounds"] = 2
    part = run_experiment(tables)
    (part.path / "summary.json").unlink()
    tables["experiment"]["rounds"] = 4
    (part.path / "experiment.toml").write_text(parse_experiment(tables).as_toml())
    resumed = run_experiment(tables, folder=RunFolder.open(part.path))
    one, other = (json.loads((folder.path / "summary.json").read_text()) for folder in (whole, resumed))
    assert one["weights_sha256"] == other["weights_sha256"]
    assert read_graph(whole.path / "learned-graph.npz") == read_graph(resumed.path / "learned-graph.npz")


def test_it_does_not_depend_on_the_packing(tables, run_experiment):
    tables["graph"] = {"source": "none"}
    one, three = (read_graph(run_experiment(tables, nodes=n).path / "learned-graph.npz") for n in (1, 3))
    torch.testing.assert_close(one.dense(), three.dense(), rtol=1e-3, atol=1e-4)
