"""Graphs that are made up have what they are said to have."""

import numpy as np
import pytest

from fedgraph.data import open_source, parse_data
from fedgraph.support.errors import ExperimentError


def planted(**keys):
    return open_source(parse_data({"set": "stochastic-blocks", **keys}), None)


def test_degrees_classes_and_means_are_as_asked_for():
    source = planted(clients=4, regions=2, nodes=[400, 400], classes=3, features=50, imbalance=100.0, signal=4.0)
    degrees, alike, means = [], [], []
    for name in source.client_names():
        raw = source.graphs(name)
        ends = raw["y"][raw["edge_index"]]
        degrees.append(raw["edge_index"].shape[1] / 400)
        alike.append((ends[0] == ends[1]).mean())
        means.append(np.stack([raw["x"][raw["y"] == label].mean(0) for label in range(3)]))
        pairs = set(zip(*raw["edge_index"], strict=True))
        assert all((two, one) in pairs for one, two in pairs)
    assert np.mean(degrees) == pytest.approx(5.0, rel=0.1)
    assert np.mean(alike) == pytest.approx(0.7, abs=0.03)
    near, far = (np.linalg.norm(means[0] - means[other]) for other in (2, 1))
    assert near < far / 3, "clients 0 and 2 are of one region"
    assert np.linalg.norm(means[0], axis=1).mean() == pytest.approx(4.0, rel=0.3)


def test_regions_that_are_alike():
    source = planted(clients=2, regions=2, nodes=[400, 400], difference=0.0, imbalance=100.0)
    one, two = (source.graphs(name) for name in source.client_names())
    for label in range(4):
        between = one["x"][one["y"] == label].mean(0) - two["x"][two["y"] == label].mean(0)
        assert np.abs(between).max() < 0.6


def test_the_client_graph_counts_edges_that_are_lost():
    source = planted(clients=40, regions=4, joined=6.0, joined_far=1.0)
    graph = source.given_graph()
    weights = graph.dense().numpy()
    region = np.arange(40) % 4
    same = region[:, None] == region[None]
    np.fill_diagonal(same, False)
    other = region[:, None] != region[None]
    assert weights[same].mean() == pytest.approx(6.0, rel=0.1)
    assert weights[other].mean() == pytest.approx(1.0, rel=0.15)
    assert source.load(["client-05"]).groups == ("region-1",)


def test_the_seed_decides_everything_and_clients_nothing_of_each_other():
    one, two = planted(clients=20), planted(clients=16)
    same, other = one.graphs("client-03"), planted(clients=20, seed=1).graphs("client-03")
    assert np.array_equal(same["x"], planted(clients=20).graphs("client-03")["x"])
    assert np.array_equal(same["edge_index"], two.graphs("client-03")["edge_index"])
    assert same["x"].shape != other["x"].shape or not np.array_equal(same["x"], other["x"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"level": "graph"}, "stochastic-blocks has classes of nodes"),
        ({"nodes": [9, 5]}, "fewest and the most of a client"),
    ],
)
def test_keys_that_do_not_fit(keys, message):
    with pytest.raises(ExperimentError, match=message):
        planted(**keys)
