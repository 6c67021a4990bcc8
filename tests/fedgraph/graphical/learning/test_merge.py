import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.graph.feature_graph import FeatureGraph
from fedgraph.graphical.learning.merge import MergeSettings, merge, vote_shares
from fedgraph.support.errors import ExperimentError, GraphError
from fedgraph.support.settings import parse

quick = settings(max_examples=50, derandomize=True)
GRAPHS = {
    "north": FeatureGraph(("b", "a", "c", "own"), (("a", "b"), ("b", "c"), ("c", "own"))),
    "south": FeatureGraph(("a", "b", "c"), (("a", "b"),)),
    "west": FeatureGraph(("c", "b", "a"), (("a", "c"),)),
}
ROWS = {"north": 10, "south": 30, "west": 60}


def test_union_of_edges_over_common_features():
    common = merge(MergeSettings(), GRAPHS, ROWS)
    assert common == FeatureGraph(("a", "b", "c"), (("a", "b"), ("a", "c"), ("b", "c")))


def test_votes_by_client_or_by_example():
    assert vote_shares(GRAPHS, dict.fromkeys(GRAPHS, 1)) == {("a", "b"): 2 / 3, ("a", "c"): 1 / 3, ("b", "c"): 1 / 3}
    assert vote_shares(GRAPHS, ROWS) == {("a", "b"): 0.4, ("a", "c"): 0.6, ("b", "c"): 0.1}
    for weights, share, edges in (
        ("equal", 0.5, (("a", "b"),)),
        ("equal", 1 / 3, (("a", "b"), ("a", "c"), ("b", "c"))),
        ("equal", 1.0, ()),
        ("examples", 0.5, (("a", "c"),)),
        ("examples", 0.4, (("a", "b"), ("a", "c"))),
    ):
        asked = MergeSettings(edges="votes", weights=weights, share=share)
        assert merge(asked, GRAPHS, ROWS).edges == edges, (weights, share)


@quick
@given(
    st.lists(st.lists(st.sampled_from(["ab", "ac", "ad", "bc", "bd", "cd"])), min_size=1, max_size=5),
    st.randoms(),
    st.sampled_from([0.2, 0.5, 0.75, 1.0]),
)
def test_merging_is_a_mean_of_adjacencies_in_any_order(edges, random, share):
    graphs = {str(at): FeatureGraph(tuple("abcd"), tuple(map(tuple, each))) for at, each in enumerate(edges)}
    mean = np.mean([graph.adjacency.numpy() for graph in graphs.values()], axis=0)
    for kind, expected in (("union", mean > 0), ("votes", mean >= share)):
        asked = MergeSettings(edges=kind, share=share, min_clients=1)
        common = merge(asked, graphs, {})
        np.testing.assert_array_equal(common.adjacency, expected)
        clients = list(graphs)
        random.shuffle(clients)
        shuffled = {client: graphs[client].subgraph(random.sample(graphs[client].names, 4)) for client in clients}
        assert merge(asked, shuffled, {}) == common


def test_too_few_clients_make_no_common_graph():
    alone = {"north": GRAPHS["north"]}
    with pytest.raises(GraphError, match="1 of at least 2 clients .* that of one of them"):
        merge(MergeSettings(), alone, ROWS)
    with pytest.raises(GraphError, match="3 of at least 4 clients"):
        merge(MergeSettings(min_clients=4), GRAPHS, ROWS)
    with pytest.raises(GraphError, match="0 of at least 1 clients"):
        merge(MergeSettings(min_clients=1), {}, {})
    assert merge(MergeSettings(min_clients=1), alone, ROWS).names == ("a", "b", "c", "own")


def test_clients_without_a_common_feature_make_no_common_graph():
    with pytest.raises(GraphError, match="east, north"):
        merge(MergeSettings(), {"north": GRAPHS["north"], "east": FeatureGraph(("z",))}, ROWS)


@pytest.mark.parametrize(
    "table", [{"share": 0}, {"share": 1.5}, {"edges": "all"}, {"min-clients": 0}, {"weights": "x"}]
)
def test_wrong_settings_are_refused(table):
    with pytest.raises(ExperimentError):
        parse(MergeSettings, table, "[merge]")
