import gzip
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph.data.tables.bif import read_bif
from fedgraph.graph.feature_graph import FeatureGraph, read_feature_graph, write_feature_graph
from fedgraph.graphical.recovery import RecoverySettings, UnitTable, recover
from fedgraph.support.errors import ExperimentError, GraphError, RunError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import parse

QUICK = {"graphical-lasso": RecoverySettings(), "uglad": RecoverySettings(method="uglad", epochs=40)}


def published(data_dir, name):
    path = data_dir / "graph-truth" / name
    if not path.exists():
        pytest.skip(f"{path} is not there: real data is looked for under FEDGRAPH_DATA")
    return path


@pytest.mark.parametrize("method", QUICK)
def test_a_chain_is_recovered(chain, method):
    table, truth = chain(8, 1000)
    logarithms = replace(table, client="south", units=(2 * table.units).exp())
    first, second = recover(QUICK[method], [table, logarithms], seed=0)
    assert first.graph == second.graph == truth
    linked, strengths = truth.adjacency, first.strengths
    assert strengths.shape == first.partial_correlations.shape == (8, 8)
    # In the middle of the chain it is 0.7 / (1 + 0.7^2), and penalties make it smaller.
    assert 0.3 < float(strengths[3, 4]) < 0.52
    assert float(strengths[~linked].max()) < 0.5 * float(strengths[linked].min())


def test_outliers_count_without_a_transformation(chain):
    table, truth = chain(8, 1000)
    (raw,) = recover(RecoverySettings(transform="none"), [replace(table, units=(2 * table.units).exp())], seed=0)
    assert raw.graph.score(truth).f1 < 0.9


@pytest.mark.parametrize("method", QUICK)
def test_gaps_are_allowed_for(chain, method):
    table, truth = chain(6, 1500)
    gaps = torch.rand(table.units.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    (found,) = recover(QUICK[method], [replace(table, units=table.units.masked_fill(gaps, torch.nan))], seed=0)
    assert found.graph == truth


def test_the_order_of_features_and_the_other_clients_do_not_matter(chain):
    first, second = chain(5, 300, seed=1, client="a")[0], chain(5, 200, seed=2, client="b")[0]
    for settings in QUICK.values():
        quick = settings.model_copy(update={"epochs": 20, "threshold": 0.1})
        together = recover(quick, [first, second], seed=0)
        alone = recover(quick, [second], seed=0)[0]
        torch.testing.assert_close(together[1].strengths, alone.strengths, atol=1e-4, rtol=0)
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = UnitTable("a", tuple(first.names[at] for at in order), first.units[:, order], torch.arange(5))
    here, there = recover(RecoverySettings(), [first, moved], seed=0)
    assert there.graph.subgraph(first.names) == here.graph
    torch.testing.assert_close(there.strengths, here.strengths[order][:, order], atol=1e-3, rtol=0)


@pytest.mark.parametrize("method", QUICK)
def test_categories_share_a_node(method):
    # colour -> shape -> size, and a number that goes with colour; noise goes with nothing.
    draw = torch.Generator().manual_seed(0)

    def follow(parent, categories):
        other = torch.randint(categories, parent.shape, generator=draw)
        return torch.where(torch.rand(parent.shape, generator=draw) < 0.7, parent % categories, other)

    colour = torch.randint(4, (2000,), generator=draw)
    shape = follow(colour, 3)
    size = follow(shape, 2)
    number = torch.randn(2000, generator=draw) + 2 * (colour == 2)
    noise = torch.randint(3, (2000,), generator=draw)
    hot = torch.nn.functional.one_hot
    units = torch.cat([hot(colour, 4), hot(shape, 3), size[:, None], number[:, None], hot(noise, 3)], 1).float()
    feature = torch.tensor([0] * 4 + [1] * 3 + [2, 3] + [4] * 3)
    names = ("colour", "shape", "size", "number", "noise")
    (found,) = recover(QUICK[method], [UnitTable("a", names, units, feature)], seed=0)
    assert found.graph == FeatureGraph(names, (("colour", "shape"), ("shape", "size"), ("colour", "number")))
    left_out = found.partial_correlations.isnan().all(1)
    # The commonest category of each.
    assert [int(left_out[feature == at].sum()) for at in range(5)] == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("method", QUICK)
def test_features_that_hardly_vary_have_no_edges_and_a_warning(chain, method, caplog):
    table, _ = chain(3, 200)
    flat = torch.full((200, 1), 7.0)
    rare = torch.zeros(200, 1)
    rare[:4] = 1
    units = torch.cat([table.units[:, :1], flat, table.units[:, 1:], rare, rare, torch.full((200, 1), torch.nan)], 1)
    names = ("x0", "flat", "x1", "x2", "rare", "same", "gone")
    with caplog.at_level(logging.WARNING, "fedgraph"):
        (found,) = recover(QUICK[method], [UnitTable("north", names, units, torch.arange(7))], seed=0)
    assert found.graph == FeatureGraph(names, (("x0", "x1"), ("x1", "x2")))
    assert "client 'north': 'flat', 'rare', 'same', 'gone' differ" in caplog.text
    assert "of 200 rows, and have no edges" in caplog.text
    one = UnitTable("south", ("x0", "flat"), torch.cat([table.units[:, :1], flat], 1), torch.arange(2))
    with caplog.at_level(logging.WARNING, "fedgraph"):
        recover(QUICK[method], [one], seed=0)
    assert "client 'south': 'flat' differs from its most common value in fewer than" in caplog.text
    assert "of 200 rows, and has no edges" in caplog.text
    for width in (0, 1):
        few = UnitTable("north", ("flat", "x"), torch.cat([flat, table.units[:, :width]], 1), torch.arange(1 + width))
        assert recover(QUICK[method], [few], seed=0)[0].graph == FeatureGraph(("flat", "x"))


def test_chance_in_a_small_table_makes_no_edge():
    noise = [torch.randn(40, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    tables = [UnitTable(str(at), tuple("abcdefgh"), each, torch.arange(8)) for at, each in enumerate(noise)]

    def edges(deviations):
        settings = RecoverySettings(penalty=0.01, deviations=deviations)
        return sum(len(found.graph.edges) for found in recover(settings, tables, seed=0))

    assert edges(0) > 60
    assert edges(3) < 6


def test_an_expert_knows_the_graph(tmp_path, chain):
    table, _ = chain(3, 10)
    write_feature_graph(FeatureGraph(("x2", "x1", "x0", "more"), (("x0", "x2"), ("x1", "more"))), tmp_path / "g.json")
    settings = RecoverySettings(method="expert", file=str(tmp_path / "g.json"))
    (found,) = recover(settings, [table], seed=0)
    assert found.graph == FeatureGraph(("x0", "x1", "x2"), (("x0", "x2"),))
    assert found.strengths is None
    with pytest.raises(GraphError, match="unknown features: 'age'"):
        recover(settings, [replace(table, names=("x0", "x1", "age"))], seed=0)


def test_solvers_that_fail_say_what_to_set(chain, monkeypatch):
    table, _ = chain(4, 50)

    def fails(*_):
        raise FloatingPointError("ill-conditioned")

    monkeypatch.setattr("sklearn.covariance.graphical_lasso", fails)
    with pytest.raises(RunError, match=r"'north': .*penalty 0\.001"):
        recover(RecoverySettings(penalty=0.001), [table], seed=0)
    with pytest.raises(RunError, match=r"learning-rate .*1e\+30"):
        recover(RecoverySettings(method="uglad", learning_rate=1e30, epochs=5), [table], seed=0)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"method": "guess"}, "method"),
        ({"method": "expert"}, ".expert. needs a file"),
        ({"file": "g.json"}, "no other method takes one"),
        ({"threshold": 1.0}, "threshold"),
        ({"steps": 0}, "steps"),
        ({"lambda": 1}, "no key 'lambda'; known keys: .*penalty"),
    ],
)
def test_wrong_settings_are_refused(table, problem):
    with pytest.raises(ExperimentError, match=problem):
        parse(RecoverySettings, table, "[recovery]")


@pytest.mark.parametrize("method", QUICK)
def test_proteins_are_recovered_better_than_by_chance(data_dir, method):
    path = published(data_dir, "sachs.continuous.txt.gz")
    with gzip.open(path, "rt") as lines:
        names = tuple(next(lines).split())
        units = torch.from_numpy(np.loadtxt(lines, dtype=np.float32))
    truth = read_feature_graph(published(data_dir, "sachs.ground.truth.graph.txt"), moral=True)
    (found,) = recover(QUICK[method], [UnitTable("lab", names, units, torch.arange(11))], seed=0)
    score = found.graph.score(truth)
    # The graph of all 55 edges has a precision of 0.4.
    assert score.precision > 0.47
    assert score.recall > 0.6


@pytest.mark.parametrize("method", QUICK)
def test_the_child_network_is_recovered(data_dir, method):
    network = read_bif(published(data_dir, "child.bif.gz"))
    rows = network.sample(2000, generator(0, "child"))
    columns = []
    for at, feature in enumerate(network.schema.features):
        one_hot = torch.nn.functional.one_hot(rows[:, at], len(feature.categories)).float()
        columns.append(one_hot if feature.width > 1 else one_hot[:, 1:])
    table = UnitTable("a", network.schema.names, torch.cat(columns, 1), network.schema.unit_feature)
    (found,) = recover(QUICK[method], [table], seed=0)
    assert found.graph.score(network.moral_graph).f1 > 0.8
