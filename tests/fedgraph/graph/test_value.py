from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgraph.graph import ClientGraph
from fedgraph.support.errors import GraphError

quick = settings(max_examples=40, derandomize=True)
weights = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 3.0])
matrices = st.integers(1, 7).flatmap(lambda n: arrays(np.float32, (n, n), elements=weights))


def named(count: int) -> list[str]:
    return [f"client-{at}" for at in range(count)]


def road() -> ClientGraph:
    """a listens to b (0.5) and c (0.25), c to a (1), d to itself only (2)."""
    return ClientGraph.from_lists(
        "abcd", ["c", "a", "d", "a"], ["a", "c", "d", "b"], [1.0, 0.25, 2.0, 0.5], directed=True
    )


def test_edges_become_rows_that_listen_to_columns():
    expected = np.zeros((4, 4), np.float32)
    expected[0, 1], expected[0, 2], expected[2, 0], expected[3, 3] = 0.5, 0.25, 1, 2
    np.testing.assert_array_equal(road().dense().numpy(), expected)
    assert road().neighbours("a") == ("b", "c")
    assert road().neighbours("b") == ()
    assert road().neighbours("d") == (), "a self loop is no neighbour"
    assert road().num_edges == 4
    assert road().degree().tolist() == [0.75, 0, 1, 2]


def test_undirected_edges_may_be_listed_once_or_twice():
    once = ClientGraph.from_lists("abc", ["a", "b", "c"], ["b", "c", "c"], [0.5, 1, 2], directed=False)
    twice = ClientGraph.from_lists("abc", list("abbcc"), list("bacbc"), [0.5, 0.5, 1, 1, 2], directed=False)
    assert once == twice
    assert once.num_edges == 3
    np.testing.assert_array_equal(once.dense().numpy(), [[0, 0.5, 0], [0.5, 0, 1], [0, 1, 2]])


@quick
@given(matrices)
def test_dense_round_trip(matrix):
    graph = ClientGraph.from_dense(named(len(matrix)), matrix, directed=True)
    np.testing.assert_array_equal(graph.dense().numpy(), matrix)
    assert graph.num_edges == np.count_nonzero(matrix)
    np.testing.assert_allclose(graph.degree().numpy(), matrix.sum(1), rtol=1e-6)
    assert graph.is_symmetric == bool((matrix == matrix.T).all())
    for kind in (torch.from_numpy(matrix).to_sparse(), torch.from_numpy(matrix).to_sparse_csr()):
        assert ClientGraph.from_dense(named(len(matrix)), kind, directed=True) == graph


@quick
@given(matrices, st.randoms(use_true_random=False))
def test_reindex_is_a_permutation(matrix, random):
    names = named(len(matrix))
    graph = ClientGraph.from_dense(names, matrix, directed=True)
    order = list(range(len(names)))
    random.shuffle(order)
    moved = graph.reindex([names[at] for at in order])
    np.testing.assert_array_equal(moved.dense().numpy(), matrix[np.ix_(order, order)])
    assert moved.reindex(names) == graph
    some = order[: max(1, len(order) // 2)]
    np.testing.assert_array_equal(
        graph.subgraph([names[at] for at in some]).dense().numpy(), matrix[np.ix_(some, some)]
    )


@quick
@given(matrices)
def test_symmetrised_equals_numpy(matrix):
    graph = ClientGraph.from_dense(named(len(matrix)), matrix, directed=True)
    for how, expected in (
        ("maximum", np.maximum(matrix, matrix.T)),
        ("mean", (matrix + matrix.T) / 2),
        ("minimum", np.minimum(matrix, matrix.T)),
    ):
        result = graph.symmetrised(how)
        assert not result.directed
        np.testing.assert_array_equal(result.dense().numpy(), expected)


@quick
@given(matrices)
def test_self_loops_and_binarised(matrix):
    graph = ClientGraph.from_dense(named(len(matrix)), matrix, directed=True)
    np.testing.assert_array_equal(graph.binarised().dense().numpy(), (matrix != 0).astype(np.float32))
    bare = matrix * (1 - np.eye(len(matrix), dtype=np.float32))
    np.testing.assert_array_equal(graph.without_self_loops().dense().numpy(), bare)
    looped = np.where((np.eye(len(matrix)) == 1) & (matrix == 0), np.float32(0.7), matrix)
    np.testing.assert_array_equal(graph.with_self_loops(0.7).dense().numpy(), looped)


def test_the_strongest_neighbours_of_each_client():
    matrix = torch.tensor([[5.0, 1.0, 3.0, 3.0], [2.0, 0.0, 2.0, 2.0], [0.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    graph = ClientGraph.from_dense("abcd", matrix, directed=True)
    assert graph.strongest(1).dense().tolist() == [[5, 0, 3, 0], [2, 0, 0, 0], [0, 4, 0, 0], [0, 0, 0, 0]]
    assert graph.strongest(2).dense().tolist() == [[5, 0, 3, 3], [2, 0, 2, 0], [0, 4, 0, 0], [0, 0, 0, 0]]
    assert graph.strongest(3) == graph
    one_way = ClientGraph.from_lists("abc", "ab", "bc", [1, 2], directed=False).strongest(1)
    assert one_way.directed
    assert one_way.dense().tolist() == [[0, 1, 0], [0, 0, 2], [0, 2, 0]]
    assert ClientGraph.empty("ab").strongest(1).num_edges == 0


def test_an_edge_given_twice_counts_once():
    graph = ClientGraph.from_lists("ab", list("aaa"), list("bbb"), [2, 2, 2], directed=True)
    assert graph.num_edges == 1
    assert graph.degree().tolist() == [2, 0]


def test_edges_are_pairs_with_weights_or_without():
    expected = ClientGraph.from_lists("abc", "ab", "bc", [1.0, 0.5], directed=False)
    assert ClientGraph.from_edges([("a", "b"), ("b", "c", 0.5)]) == expected
    assert ClientGraph.from_edges({("a", "b"): 1.0, ("b", "c"): 0.5}) == expected
    one_way = ClientGraph.from_edges([(1, 0)], range(3), directed=True)
    assert one_way.names == ("0", "1", "2")
    assert one_way.neighbours("1") == ("0",)
    assert one_way.neighbours("2") == one_way.neighbours("0") == ()
    for wrong in ("ab", ("a",), ("a", "b", 1, 2)):
        with pytest.raises(GraphError, match="source, target"):
            ClientGraph.from_edges([wrong])
    matrix = [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]]
    assert ClientGraph.from_adjacency(matrix, "abc") == expected
    assert ClientGraph.from_adjacency([[0, 1], [0, 0]]).directed


def test_other_libraries_graphs_and_places():
    import networkx as nx

    assert ClientGraph.from_networkx(nx.DiGraph([("a", "b")])).neighbours("a") == ("b",), "u listens to v"
    features = [[0.0], [0.1], [5.0], [5.1]]
    assert ClientGraph.nearest(features, "abcd", 1).neighbours("a") == ("b",)
    distances = np.abs(np.subtract.outer([0.0, 1.0, 9.0], [0.0, 1.0, 9.0]))
    assert ClientGraph.from_distances(distances, "abc").without_self_loops().neighbours("a") == ("b",)


def test_complete_and_empty():
    np.testing.assert_array_equal(ClientGraph.complete(named(4)).dense().numpy(), 1 - np.eye(4))
    assert ClientGraph.complete(named(4)).num_edges == 6
    assert ClientGraph.empty(named(4)).num_edges == 0
    assert ClientGraph.empty(named(4)).is_symmetric
    assert ClientGraph.complete(["alone"]) == ClientGraph.empty(["alone"])


def test_equality_sees_names_weights_and_direction():
    graph = ClientGraph.complete("abc")
    assert graph == ClientGraph.from_dense("abc", 1 - torch.eye(3), directed=False)
    assert hash(graph) == hash(ClientGraph.from_dense("abc", 1 - torch.eye(3), directed=False))
    assert graph != ClientGraph.complete("abd")
    assert graph != ClientGraph.from_dense("abc", 1 - torch.eye(3), directed=True)
    assert graph != ClientGraph.from_dense("abc", 2 - 2 * torch.eye(3), directed=False)
    assert graph != "abc"


def test_the_value_does_not_share_memory_with_what_it_was_made_from():
    index, values = torch.tensor([[0, 1], [1, 0]]), torch.ones(2)
    graph = ClientGraph(("a", "b"), index, values)
    values.fill_(9)
    index.fill_(0)
    np.testing.assert_array_equal(graph.dense().numpy(), [[0, 1], [1, 0]])


def test_tiny_asymmetry_is_averaged_into_exact_symmetry():
    matrix = torch.tensor([[0, 1.0], [1.0 + 3e-6, 0]])
    dense = ClientGraph.from_dense("ab", matrix, directed=False).dense()
    assert torch.equal(dense, dense.T)
    assert 1 < float(dense[0, 1]) < 1 + 3e-6


def test_a_small_one_way_edge_is_an_asymmetry():
    matrix = torch.tensor([[0, 1.0, 0], [1.0, 0, 1e-6], [0, 0, 0]])
    assert not ClientGraph.from_dense("abc", matrix, directed=True).is_symmetric
    matrix[1, 2] = 1e-8
    assert ClientGraph.from_dense("abc", matrix, directed=True).is_symmetric, "rounding error beside a weight of 1"


def test_asymmetry_names_the_worst_pair_with_both_weights():
    matrix = torch.tensor([[0, 0.5, 0.25], [0.4, 0, 1.0], [0.25, 0.125, 0]])
    with pytest.raises(GraphError, match="'b' to 'c' .*'c' to 'b' .*symmetrise"):
        ClientGraph.from_dense("abc", matrix, directed=False)


def test_missing_clients_are_named_or_isolated():
    with pytest.raises(GraphError, match=r"no client 'client-x'[^;]*; correct .*missing = \"isolate\""):
        ClientGraph.complete(named(3)).reindex([*named(3), "client-x"])
    # The name to correct is that in the graph.
    with pytest.raises(GraphError, match="'station-a' .*'staton-a'"):
        ClientGraph.complete(["staton-a", "station-b"]).reindex(["station-a", "station-b"])
    wider = road().reindex(["e", "a", "b", "c", "d"], missing="isolate")
    np.testing.assert_array_equal(wider.dense()[1:, 1:].numpy(), road().dense().numpy())
    assert float(wider.dense()[0].sum() + wider.dense()[:, 0].sum()) == 0


def test_extra_clients_are_named_or_dropped():
    with pytest.raises(GraphError, match=r"'d' .*extra = \"drop\""):
        road().reindex("abc")
    assert road().reindex("abc", extra="drop") == road().subgraph("abc")
    with pytest.raises(GraphError, match="no client 'z'"):
        road().subgraph("az")
    with pytest.raises(GraphError, match="'isolate' and extra"):
        road().reindex("abcd", missing="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ClientGraph.empty([]), "one or more client names"),
        (lambda: ClientGraph.empty(["a", "b", "a"]), "must be unique; given more than once: 'a'"),
        (lambda: ClientGraph.empty([773869]), r"client names are text; got 773869 \(int\)"),
        (lambda: ClientGraph.empty(["a", ""]), "not empty"),
        (lambda: ClientGraph.from_dense("ab", torch.ones(2, 3), directed=False), r"square; got shape \[2, 3\]"),
        (lambda: ClientGraph.from_dense("abc", torch.ones(2, 2), directed=False), "2 rows but 3 client names"),
        (
            lambda: ClientGraph.from_dense("ab", torch.tensor([[0, np.nan], [0, 0]]), directed=True),
            "'a' to 'b'.*finite",
        ),
        (lambda: ClientGraph.from_dense("ab", np.array([[0, 1e300], [0, 0]]), directed=True), "'a' to 'b'.*finite"),
        (
            lambda: ClientGraph.from_dense("ab", -torch.ones(2, 2), directed=False),
            "'a' to 'a' weighs -1: .*allow_negative=True",
        ),
        (
            lambda: ClientGraph.from_lists("ab", ["a"], ["x"], [1], directed=True),
            "unknown client name in the graph: 'x'; its 2 clients are 'a', 'b'",
        ),
        (lambda: ClientGraph.from_lists("ab", ["a"], ["b"], [1, 2], directed=True), "1, 1 and 2"),
        (
            lambda: ClientGraph.from_lists("ab", ["a", "a"], ["b", "b"], [1, 2], directed=True),
            "'a' to 'b' is given twice, with weights 1 and 2",
        ),
        (lambda: ClientGraph(("a",), torch.tensor([[0], [1]]), torch.ones(1)), "client number 1, but the 1 clients"),
        (lambda: ClientGraph(("a", "b"), torch.tensor([[0.7], [1.0]]), torch.ones(1)), "whole numbers .* has 0.7"),
        (lambda: ClientGraph(("a",), torch.tensor([[0], [0]]), torch.ones(2)), r"\[2, 1\] and \[2\]"),
        (lambda: road().neighbours("z"), "unknown client name in the graph: 'z'"),
        (lambda: road().symmetrised("median"), "'maximum', 'mean' or 'minimum'; got 'median'"),
    ],
)
def test_errors_say_what_is_wrong(build, message):
    with pytest.raises(GraphError) as error:
        build()
    assert re.search(message, str(error.value), re.DOTALL), str(error.value)


def test_negative_weights_when_they_are_meant():
    matrix = torch.tensor([[0, -0.5], [-0.5, 0]])
    graph = ClientGraph.from_dense("ab", matrix, directed=False, allow_negative=True)
    assert torch.equal(graph.dense(), matrix)
    assert torch.equal(graph.reindex("ba").dense(), matrix)


def test_a_graph_of_ten_thousand_clients_stays_sparse():
    count = 10_000
    start = torch.arange(count)
    ring = ClientGraph(
        tuple(named(count)),
        torch.stack([torch.cat([start, (start + 1) % count]), torch.cat([(start + 1) % count, start])]),
        torch.ones(2 * count),
    )
    assert ring.num_edges == count
    assert ring.weights.numel() == 2 * count
    assert ring.reindex(named(count)[::-1]).neighbours("client-0") == ("client-9999", "client-1")


def test_what_is_said_of_a_graph_is_what_one_hop_does():
    weights = torch.tensor([[2.0, 1, 1, 0], [3, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0.5]])
    graph = ClientGraph.from_dense(tuple("abcd"), weights, directed=True)
    # Self loops: 2 of 4, an added 1 of 4, and two clients alone.
    kept = (2 / 4 + 1 / 4 + 1 + 1) / 4
    assert graph.describe() == (
        f"4 clients with 0.8 neighbours on average, 2 of them with none; after one hop {kept:.0%} of a model is the "
        "client's own"
    )
    assert kept == pytest.approx(float(graph.propagate(torch.eye(4), 1, "random-walk").diagonal().mean()))


def test_agreement_with_groups():
    graph = ClientGraph.from_edges([("a", "b", 3.0), ("b", "c", 1.0), ("c", "c", 5.0)], ["a", "b", "c", "d"])
    found = graph.agreement(["x", "x", "y", "y"])
    # Of two edges one is within a group, and has three of four parts of the weights; of two pairs one is linked.
    assert found == {"precision": 0.5, "recall": 0.5, "weight": 0.75}
    assert graph.agreement([1, 1, "y", "y"]) == found
    lonely = ClientGraph.from_edges([], ["a", "b"]).agreement(["x", "y"])
    assert all(math.isnan(value) for value in lonely.values())
    with pytest.raises(GraphError, match="groups"):
        graph.agreement(["x"])


def test_edges_as_a_data_frame():
    graph = ClientGraph.from_edges([("a", "b", 0.5), ("b", "c", 2.0)])
    assert graph.to_pandas().to_dict("records") == [
        {"client": "a", "neighbour": "b", "weight": 0.5},
        {"client": "b", "neighbour": "c", "weight": 2.0},
    ]
    directed = ClientGraph.from_edges([("a", "b", 0.5), ("b", "a", 2.0)], directed=True)
    assert directed.to_pandas()["weight"].tolist() == [0.5, 2.0]


def test_a_notebook_shows_a_table_in_which_names_are_no_markup():
    shown = ClientGraph.from_edges([("<b>", "&"), ("<b>", "c")])._repr_html_()
    assert "<td>&lt;b&gt;</td>" in shown
    assert "<b>&" not in shown
    assert "ClientGraph(3 clients, 2 edges, undirected)" in shown
    many = ClientGraph.empty([f"client-{number}" for number in range(20)])._repr_html_()
    assert many.count("<tr>") == 9
    assert "and 12 more clients" in many
