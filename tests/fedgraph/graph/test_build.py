from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.graph import ClientGraph as Graph
from fedgraph.graph import distances as distance_blocks
from fedgraph.support.errors import GraphError

quick = settings(max_examples=30, derandomize=True)


def named(count: int) -> list[str]:
    return [f"client-{at}" for at in range(count)]


def distances(count: int, seed: int = 0) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, 2))
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def numpy_knn(d: np.ndarray, k: int) -> np.ndarray:
    """Union over both triangles of 'j is among the k nearest others of i'; ties to the smaller index."""
    d = np.where(np.eye(len(d)) == 1, np.inf, d)
    chosen = np.zeros(d.shape, bool)
    for i in range(len(d)):
        chosen[i, np.argsort(d[i], kind="stable")[:k]] = True
    return chosen | chosen.T


# Gaussian kernel


def test_gaussian_kernel_equals_numpy():
    d = distances(12)
    expected = np.exp(-((d / d.std()) ** 2))
    expected[expected < 0.1] = 0
    assert (expected == 0).any(), "the cut must matter here"
    result = Graph.from_distances(d, named(12))
    assert not result.directed
    np.testing.assert_allclose(result.dense().numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(
        Graph.from_distances(d, named(12), sigma=0.5, cut=0.3).dense().numpy(),
        np.where(np.exp(-4 * d**2) < 0.3, 0, np.exp(-4 * d**2)),
        rtol=1e-6,
    )


def test_infinite_and_missing_distances_are_no_edges_and_no_part_of_sigma():
    d = np.array([[0, 1, np.inf], [1, 0, np.nan], [np.inf, np.nan, 0.0]])
    sigma = np.std([0, 1, 1, 0, 0])
    expected = np.diag([1.0, 1, 1])
    expected[0, 1] = expected[1, 0] = np.exp(-1 / sigma**2)
    np.testing.assert_allclose(Graph.from_distances(d, "abc", cut=0).dense().numpy(), expected, rtol=1e-6)
    assert Graph.from_distances(np.full((2, 2), np.inf), "ab").num_edges == 0


def test_asymmetric_distances_need_directed():
    d = np.array([[np.inf, 1.0], [2.0, np.inf]])
    with pytest.raises(GraphError, match=r"'a' to 'b' weighs .* but 'b' to 'a' weighs"):
        Graph.from_distances(d, "ab", sigma=2.0)
    dense = Graph.from_distances(d, "ab", sigma=2.0, directed=True).dense()
    np.testing.assert_allclose(dense.numpy(), [[0, np.exp(-0.25)], [np.exp(-1), 0]], rtol=1e-6)


def test_distance_list_leaves_others_out_before_sigma():
    sources, targets, lengths = list("abcaz"), list("bcaaa"), [1.0, 2.0, 4.0, 0.0, 500.0]
    sigma = np.std(lengths[:4])
    result = Graph.from_distance_list(sources, targets, lengths, names="cab", cut=0, directed=True)
    expected = np.zeros((3, 3))
    for source, target, length in zip("abca", "bcaa", lengths[:4], strict=True):
        expected["cab".index(source), "cab".index(target)] = np.exp(-((length / sigma) ** 2))
    np.testing.assert_allclose(result.dense().numpy(), expected, rtol=1e-6)
    assert Graph.from_distance_list(sources, targets, lengths, directed=True).names == tuple("abcz")


def test_undirected_distance_list_may_list_a_pair_once():
    once = Graph.from_distance_list(["a", "b", "a"], ["b", "c", "a"], [1.0, 2.0, 0.0])
    assert once == Graph.from_distance_list(list("abbca"), list("bacba"), [1.0, 1.0, 2.0, 2.0, 0.0])
    assert once == Graph.from_distances([[0, 1, np.inf], [1, np.inf, 2], [np.inf, 2, np.inf]], "abc")
    with pytest.raises(GraphError, match="not symmetric: 'a' to 'b'"):
        Graph.from_distance_list(["a", "b"], ["b", "a"], [1.0, 9.0], sigma=2.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Graph.from_distances(np.zeros((2, 2)), "abc"), r"shape \[3, 3\]; got \[2, 2\]"),
        (lambda: Graph.from_distances([[0, -2], [-2, 0]], "ab"), "from 'a' to 'b' is negative: -2"),
        (lambda: Graph.from_distances([[0, 2], [np.inf, 0]], "ab", sigma=2), "not symmetric: 'a' to 'b'"),
        (lambda: Graph.from_distance_list("ab", "ba", [2, np.inf], sigma=2), "not symmetric: 'a' to 'b'"),
        (lambda: Graph.from_distances([[0, 1], [1, 0]], "ab", sigma=0), "above 0; got 0"),
        (lambda: Graph.from_distances([[0, 1], [1, 0]], "ab", cut=2), "between 0 and 1.*got 2"),
        (lambda: Graph.from_distances([[np.inf, 1], [1, np.inf]], "ab"), "all distances are equal.*set sigma"),
        (lambda: Graph.from_distances(0.1 + np.diag([np.inf] * 3), "abc"), "all distances are equal"),
        (lambda: Graph.from_distance_list(["a"], ["b"], [1, 2]), "got 1, 1 and 2"),
        (lambda: Graph.from_coordinates([[0, 0]], "ab"), r"coordinates .*\[2, 2\]; .*\[1, 2\]"),
        (lambda: Graph.from_coordinates([[0, 0], [np.nan, 0]], "ab"), "coordinates of 'b' are not finite"),
        (lambda: Graph.from_coordinates([[0, 0], [-118, 34]], "ab"), r"\[-118.0, 34.0\] of 'b'.*kind='plane'"),
        (lambda: Graph.from_coordinates([[0, 0], [1, 1]], "ab", kind="polar"), "got 'polar'"),
        (lambda: Graph.from_coordinates([[0, 0], [1, 1]], "ab", method="delaunay"), "got 'delaunay'"),
        (lambda: Graph.from_coordinates([[0, 0], [1, 1]], "ab", method="knn"), "needs k"),
        (lambda: Graph.nearest(None, "abc", 1, metric="cosine"), "'euclidean' or 'precomputed'; got 'cosine'"),
        (lambda: Graph.nearest(np.eye(3), "abc", 3), "between 1 and 2, .*3"),
        (lambda: Graph.nearest(np.eye(3), "abc", 1, weights="cosine"), "got 'cosine'"),
        (lambda: Graph.nearest([[0], [np.inf]], "ab", 1), "features of 'b' are not finite"),
        (lambda: Graph.nearest([[0, -1], [-1, 0]], "ab", 1, metric="precomputed"), "negative: -1"),
        (lambda: Graph.nearest(np.eye(3), "abc", 1, weights="gaussian"), "all distances are equal"),
        (lambda: Graph.from_labels([[1, -1], [0, 1]], "ab"), "finite and non-negative"),
        (lambda: Graph.from_labels([[1, 1], [0, 1]], "ab", main=0), "at least 1; got 0"),
        (lambda: Graph.from_labels([[1, 1], [0, 1]], "ab", weights="jaccard"), "got 'jaccard'"),
        (lambda: Graph.from_labels([[1, 1], [0, 1]], "abc"), "label counts for 3 clients"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(GraphError, match=message):
        call()


# Coordinates


def haversine(a, b):
    (lat1, lon1), (lat2, lon2) = np.radians(a), np.radians(b)
    h = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6_371_008.8 * np.arcsin(np.sqrt(h))


def test_geographic_distances_are_haversine_metres():
    places = np.array([[34.15497, -118.31829], [34.15498, -118.31829], [34.11621, -118.23799], [-33.0, 151.0]])
    d = np.array([[haversine(a, b) for b in places] for a in places])
    np.fill_diagonal(d, np.inf)
    assert 1.0 < d[0, 1] < 1.2, "a hundred-thousandth of a degree of latitude is about 1.1 m"
    sigma = 5000.0
    result = Graph.from_coordinates(places, named(4), sigma=sigma, cut=0)
    np.testing.assert_allclose(result.dense().numpy(), np.exp(-((d / sigma) ** 2)), rtol=1e-5)


def test_plane_coordinates_leave_the_diagonal_out():
    points = np.array([[0.0, 0], [3, 4], [6, 8]])
    sigma = np.std([5, 10, 5, 5, 10, 5])
    expected = np.exp(-((np.array([[np.inf, 5, 10], [5, np.inf, 5], [10, 5, np.inf]]) / sigma) ** 2))
    dense = Graph.from_coordinates(points, "abc", kind="plane", cut=0).dense().numpy()
    np.testing.assert_allclose(dense, expected, rtol=1e-6, atol=1e-12)
    nearest = Graph.from_coordinates(points, "abc", kind="plane", method="knn", k=1, weights="binary")
    np.testing.assert_array_equal(nearest.dense().numpy(), [[0, 1, 0], [1, 0, 1], [0, 1, 0]])


# Nearest neighbours


@quick
@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 10_000), st.booleans())
def test_knn_equals_numpy(count, k, seed, ties):
    k = min(k, count - 1)
    points = np.random.default_rng(seed).normal(size=(count, 2))
    if ties:
        points = points.round()  # coinciding and equally distant clients
    d = ((points[:, None] - points[None]) ** 2).sum(-1) ** 0.5
    graph = Graph.nearest(points, named(count), k)
    np.testing.assert_array_equal(graph.dense().numpy(), numpy_knn(d, k))
    assert graph == Graph.nearest(d, named(count), k, metric="precomputed")
    assert not graph.directed
    assert graph.without_self_loops() == graph
    assert int(graph.degree().min()) >= k


def test_knn_is_symmetrised_over_both_triangles():
    # On a line, with one nearest neighbour each: a -> b and b -> c above the diagonal, e -> d below it, c <-> d.
    graph = Graph.nearest([[10.0], [6.0], [4.0], [3.0], [1.0]], "abcde", 1)
    expected = np.diag([1.0, 1, 1, 1], 1) + np.diag([1.0, 1, 1, 1], -1)
    np.testing.assert_array_equal(graph.dense().numpy(), expected)


def test_knn_in_blocks_is_the_same(monkeypatch):
    points = np.random.default_rng(0).normal(size=(30, 3))
    whole = Graph.nearest(points, named(30), 4, weights="gaussian")
    labels = np.random.default_rng(0).integers(0, 9, (30, 5))
    whole_labels = Graph.from_labels(labels, named(30), main=2, weights="overlap")
    monkeypatch.setattr(distance_blocks, "_BLOCK_ENTRIES", 30 * 7)
    assert Graph.nearest(points, named(30), 4, weights="gaussian") == whole
    assert Graph.from_labels(labels, named(30), main=2, weights="overlap") == whole_labels


def test_knn_gaussian_weights():
    d = distances(10)
    sigma = d[~np.eye(10, dtype=bool)].std()
    expected = np.where(numpy_knn(d, 3), np.exp(-((d / sigma) ** 2)), 0)
    graph = Graph.nearest(d, named(10), 3, metric="precomputed", weights="gaussian")
    np.testing.assert_allclose(graph.dense().numpy(), expected, rtol=1e-5)


def test_knn_takes_no_unreachable_neighbours():
    d = np.array([[0, 1, np.inf], [1, 0, np.nan], [np.inf, np.nan, 0]])
    np.testing.assert_array_equal(
        Graph.nearest(d, "abc", 2, metric="precomputed").dense().numpy(), [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    )
    assert Graph.nearest(np.full((3, 3), np.inf), "abc", 1, metric="precomputed", weights="gaussian").num_edges == 0


# Labels


def test_clients_are_linked_by_their_main_labels():
    counts = [[9, 1, 0], [8, 0, 5], [0, 7, 7], [0, 0, 0], [0, 2, 3]]
    # Largest labels: 0, 0, 1 (tie to the smaller index), none, 2.
    expected = np.zeros((5, 5))
    expected[0, 1] = expected[1, 0] = 1
    np.testing.assert_array_equal(Graph.from_labels(counts, "abcde").dense().numpy(), expected)
    # Two largest: {0, 1}, {0, 2}, {1, 2}, {}, {1, 2}: all but d share one.
    expected = 1 - np.eye(5)
    expected[3] = expected[:, 3] = 0
    np.testing.assert_array_equal(Graph.from_labels(counts, "abcde", main=2).dense().numpy(), expected)
    # More labels than classes: all labels that occur.
    assert Graph.from_labels(counts, "abcde", main=7).num_edges == 6


def test_overlap_is_the_cosine_of_the_label_distributions():
    counts = np.array([[9.0, 1, 0], [8, 0, 5], [0, 7, 7]])
    dense = Graph.from_labels(torch.from_numpy(counts), "abc", weights="overlap").dense().numpy()
    cosine = counts[0] @ counts[1] / np.linalg.norm(counts[0]) / np.linalg.norm(counts[1])
    np.testing.assert_allclose(dense, [[0, cosine, 0], [cosine, 0, 0], [0, 0, 0]], rtol=1e-6)


# Data frames


def test_rows_of_a_data_frame_go_by_label():
    d = pd.DataFrame([[0, 1, 9.0], [1, 0, 4], [9, 4, 0]], index=list("abc"), columns=list("abc"))
    shuffled = d.loc[list("bca"), list("cab")]
    assert Graph.from_distances(shuffled, "cba") == Graph.from_distances(d.to_numpy(), "abc").reindex("cba")
    nearest = Graph.nearest(d.to_numpy(), "abc", 1, metric="precomputed").reindex("cba")
    assert Graph.nearest(shuffled, "cba", 1, metric="precomputed") == nearest
    places = pd.DataFrame({"x": [0.0, 1, 5], "y": [0.0, 0, 0]}, index=list("abc"))
    assert Graph.nearest(places, "cba", 1) == Graph.nearest(places.to_numpy(), "abc", 1).reindex("cba")
    plane = Graph.from_coordinates(places.to_numpy(), "abc", kind="plane").reindex("cba")
    assert Graph.from_coordinates(places, "cba", kind="plane") == plane
    counts = pd.DataFrame([[9, 0], [8, 1], [0, 3]], index=list("abc"))
    assert Graph.from_labels(counts, "cba") == Graph.from_labels(counts.to_numpy(), "abc").reindex("cba")
    assert Graph.nearest(places.reset_index(drop=True), "cba", 1) == Graph.nearest(places.to_numpy(), "cba", 1)
    for make in (lambda: Graph.nearest(places, "abx", 1), lambda: Graph.from_distances(d, "abx")):
        with pytest.raises(GraphError, match="only the labels have 'c', only the names have 'x'"):
            make()


@pytest.mark.parametrize("heads", [("latitude", "longitude"), ("LAT", "Lon")])
def test_latitude_and_longitude_of_a_data_frame_go_by_name(heads):
    places = np.array([[34.15, -118.3], [34.1, -118.2], [-33.0, 151.0]])
    expected = Graph.from_coordinates(places, "abc", sigma=5000.0)
    frame = pd.DataFrame(places, columns=heads)
    frame.insert(0, "altitude", 7.0)
    assert Graph.from_coordinates(frame[[heads[1], "altitude", heads[0]]], "abc", sigma=5000.0) == expected


def test_coordinates_with_negative_strides():
    swapped = np.array([[-118.3, 34.15], [-118.2, 34.1], [151.0, -33.0]])
    expected = Graph.from_coordinates(swapped[:, ::-1].copy(), "abc", sigma=5000.0)
    assert Graph.from_coordinates(swapped[:, ::-1], "abc", sigma=5000.0) == expected


def test_what_is_not_numbers_is_said_in_words():
    with pytest.raises(GraphError, match=r"distances must be numbers \[1, 1\]"):
        Graph.from_distances([["far"]], "a")
