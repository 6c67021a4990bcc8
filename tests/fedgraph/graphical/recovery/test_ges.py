"""Greedy equivalence search against enumeration, and on units of features."""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
import pytest
import torch

from fedgraph.data.tables.bif import parse_bif
from fedgraph.graph.feature_graph import FeatureGraph
from fedgraph.graphical.recovery.ges import (
    _cliques,
    _Pattern,
    _Score,
    _sets,
    as_categories,
    equivalence_search,
    moral_graph_by_search,
)
from fedgraph.support.randomness import generator


def networks(nodes):
    """All directed acyclic graphs of so many nodes."""
    pairs = list(combinations(range(nodes), 2))
    found = {}
    for order in permutations(range(nodes)):
        for chosen in product((False, True), repeat=len(pairs)):
            edges = np.zeros((nodes, nodes), dtype=bool)
            for (first, second), there in zip(pairs, chosen, strict=True):
                edges[order[first], order[second]] = there
            found[edges.tobytes()] = edges
    return list(found.values())


def independences(edges):
    """Skeleton and colliders, which determine the class (Verma, Pearl 1990)."""
    linked = edges | edges.T
    colliders = {
        (first, child, second)
        for child in range(len(edges))
        for first, second in combinations(np.flatnonzero(edges[:, child]).tolist(), 2)
        if not linked[first, second]
    }
    return linked.tobytes(), frozenset(colliders)


def random_network(random, nodes, density=0.5):
    order = random.permutation(nodes)
    return (np.triu(random.random((nodes, nodes)) < density, 1))[np.ix_(order, order)]


def rows_of(edges, rows, random):
    """Categories of three, of which parents change the odds much."""
    table = np.zeros((rows, len(edges)), dtype=np.int64)
    remaining = set(range(len(edges)))
    while remaining:
        node = next(each for each in sorted(remaining) if not remaining & set(np.flatnonzero(edges[:, each])))
        parents = np.flatnonzero(edges[:, node])
        shares = random.dirichlet([0.5] * 3, 3 ** len(parents))
        cumulative = shares[table[:, parents] @ (3 ** np.arange(len(parents)))].cumsum(1)
        table[:, node] = (random.random((rows, 1)) > cumulative).sum(1).clip(max=2)
        remaining.remove(node)
    return table


def test_a_pattern_has_the_directions_that_all_networks_of_its_class_have():
    classes = {}
    for edges in networks(4):
        classes.setdefault(independences(edges), []).append(edges)
    assert (sum(map(len, classes.values())), len(classes)) == (543, 185)
    for members in classes.values():
        directed = np.logical_and.reduce(members)
        for member in members:
            pattern = _Pattern.of(member)
            assert np.array_equal(pattern.directed, directed)
            assert np.array_equal(pattern.linked, member | member.T)
            assert independences(pattern.extension()) == independences(member)


def test_larger_patterns_have_a_network_of_their_class():
    random = np.random.default_rng(0)
    for _ in range(50):
        edges = random_network(random, 8, random.random())
        assert independences(_Pattern.of(edges).extension()) == independences(edges)


def test_the_score_is_the_likelihood_less_half_a_logarithm_for_each_parameter():
    table = np.array([[0, 0], [0, 0], [0, 2], [1, 2], [1, 2], [1, 2]])
    score = _Score(table)
    alone = 2 * np.log(1 / 3) + 4 * np.log(2 / 3) - 0.5 * np.log(6)
    given = 2 * np.log(2 / 3) + np.log(1 / 3) - 0.5 * np.log(6) * 2
    assert score(1, frozenset()) == pytest.approx(alone), "a category that nobody has is none"
    assert score(1, frozenset([0])) == pytest.approx(given)


def test_no_network_has_a_better_score():
    every = networks(4)
    for seed in range(8):
        random = np.random.default_rng(seed)
        table = rows_of(random_network(random, 4), 20_000, random)
        score = _Score(table)

        def whole(edges, score=score):
            return sum(score(node, frozenset(np.flatnonzero(edges[:, node]).tolist())) for node in range(4))

        assert whole(equivalence_search(table)) == pytest.approx(max(map(whole, every)))


@pytest.mark.parametrize(("seed", "deleted"), [(1, 1), (2, 1), (16, 1), (28, 2), (37, 4)])
def test_the_class_of_a_larger_network_is_found_and_what_was_inserted_too_much_is_deleted(seed, deleted, monkeypatch):
    random = np.random.default_rng(seed)
    edges = random_network(random, 6, 0.45)
    table = rows_of(edges, 20_000, random)
    assert independences(equivalence_search(table)) == independences(edges)
    monkeypatch.setattr("fedgraph.graphical.recovery.ges._deletions", lambda pattern, score: iter(()))
    assert equivalence_search(table).sum() == edges.sum() + deleted


def test_paths_are_followed_in_their_direction():
    directed, undirected = np.zeros((4, 4), dtype=bool), np.zeros((4, 4), dtype=bool)
    directed[1, 2] = directed[3, 0] = True
    undirected[0, 1] = undirected[1, 0] = True
    pattern = _Pattern(directed, undirected)
    assert not pattern.is_blocked(0, 2, frozenset())
    assert pattern.is_blocked(0, 2, frozenset([1]))
    assert pattern.is_blocked(2, 0, frozenset())
    assert pattern.is_blocked(0, 3, frozenset())


def test_cliques_are_those_with_the_base():
    linked = np.zeros((4, 4), dtype=bool)
    for pair in ((0, 1), (0, 2), (1, 2), (0, 3)):
        linked[pair] = linked[pair[::-1]] = True
    sets = _sets(linked)
    found = set(_cliques(frozenset([0]), [1, 2, 3], sets))
    assert found == {frozenset(), frozenset([1]), frozenset([2]), frozenset([3]), frozenset([1, 2])}
    assert not list(_cliques(frozenset([1, 3]), [0], sets))


LAWN = """network lawn { }
variable rain { type discrete [ 2 ] { yes, no }; }
variable sprinkler { type discrete [ 2 ] { on, off }; }
variable grass { type discrete [ 3 ] { dry, damp, wet }; }
variable news { type discrete [ 2 ] { good, bad }; }
probability ( rain ) { table 0.4, 0.6; }
probability ( sprinkler ) { table 0.5, 0.5; }
probability ( news ) { table 0.5, 0.5; }
probability ( grass | rain, sprinkler ) {
  (yes, on) 0.02, 0.08, 0.9;
  (yes, off) 0.1, 0.8, 0.1;
  (no, on) 0.2, 0.7, 0.1;
  (no, off) 0.9, 0.08, 0.02;
}
"""


def test_units_become_categories():
    nan = torch.nan
    units = torch.tensor(
        [
            [0.1, 0, 1, 0, 0, nan],
            [0.2, 1, 0, 1, 0, nan],
            [0.3, 1, nan, nan, nan, nan],
            [0.4, nan, 0, 1, 0, nan],
            [0.5, 1, 0, 0, 1, nan],
            [nan, 0, 0, 1, 0, nan],
        ]
    )
    found = as_categories(units, torch.tensor([0, 1, 2, 2, 2, 3]), 4, 2)
    assert found[:, 0].tolist() == [0, 0, 0, 1, 1, 0], "at the median 0.3; the gap is the commonest"
    assert found[:, 1].tolist() == [0, 1, 1, 1, 1, 0]
    assert found[:, 2].tolist() == [0, 1, 1, 1, 2, 1]
    assert found[:, 3].tolist() == [0] * 6
    thirds = as_categories(torch.arange(9.0)[:, None], torch.tensor([0]), 1, 3)
    assert thirds[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_parents_of_one_child_are_found_and_linked():
    network = parse_bif(LAWN)
    rows = network.sample(2000, generator(0, "lawn"))
    units = torch.cat([rows[:, :2], torch.nn.functional.one_hot(rows[:, 2], 3), rows[:, 3:]], 1).float()
    names = tuple(network.variables)
    found = moral_graph_by_search(names, units, torch.tensor([0, 1, 2, 2, 2, 3]), 3)
    assert found == network.moral_graph
    assert found == FeatureGraph(names, (("rain", "sprinkler"), ("rain", "grass"), ("sprinkler", "grass")))
