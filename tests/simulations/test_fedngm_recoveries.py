"""The ways of recovering graphs, of a small network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.data.tables.bif import parse_bif
from fedgraph.graph import FeatureGraph
from fedgraph.graphical.recovery import RecoverySettings, UnitSums, recover_from_sums
from fedgraph.simulations.fedngm.recoveries import ClientRows, Graphs, recovered

GARDEN = """network garden { }
variable rain { type discrete [ 2 ] { yes, no }; }
variable sprinkler { type discrete [ 2 ] { on, off }; }
variable grass { type discrete [ 4 ] { dry, damp, wet, blue }; }
variable shoes { type discrete [ 2 ] { wet, dry }; }
variable sky { type discrete [ 1 ] { above }; }
probability ( rain ) { table 0.4, 0.6; }
probability ( sprinkler ) { table 0.5, 0.5; }
probability ( sky ) { table 1.0; }
probability ( grass | rain, sprinkler ) {
  (yes, on) 0.02, 0.08, 0.9, 0.0;
  (yes, off) 0.1, 0.8, 0.1, 0.0;
  (no, on) 0.2, 0.7, 0.1, 0.0;
  (no, off) 0.9, 0.08, 0.02, 0.0;
}
probability ( shoes | grass ) { (dry) 0.1, 0.9; (damp) 0.5, 0.5; (wet) 0.95, 0.05; (blue) 0.5, 0.5; }
"""


@pytest.fixture(scope="module")
def network():
    return parse_bif(GARDEN)


@pytest.fixture(scope="module")
def clients(network):
    return [ClientRows.drawn(network, f"client-{place}", 1500, 0) for place in range(3)]


def test_rows_are_those_of_the_client_and_the_seed(network, clients):
    again = ClientRows.drawn(network, "client-1", 1500, 0)
    assert torch.equal(again.categories, clients[1].categories)
    assert not torch.equal(again.categories, clients[0].categories)
    assert not torch.equal(again.categories, ClientRows.drawn(network, "client-1", 1500, 1).categories)


def test_a_network_is_held_against_either_graph():
    directed = np.zeros((3, 3), dtype=bool)
    directed[0, 2] = directed[1, 2] = True
    moral, skeleton = Graphs.of_network("abc", directed)
    assert skeleton == FeatureGraph(tuple("abc"), (("a", "c"), ("b", "c")))
    assert moral == FeatureGraph(tuple("abc"), (("a", "b"), ("a", "c"), ("b", "c")))


def test_equivalence_search_finds_both_graphs(network, clients):
    found = recovered("ges", clients, 0)
    assert {how: len(graphs) for how, graphs in found.items()} == {"own": 3, "union": 1, "votes": 1, "pooled": 1}
    for how in ("votes", "pooled"):
        assert found[how][0].moral.score(network.moral_graph).shd == 0
        assert found[how][0].skeleton.score(network.skeleton).shd == 0
    union = set(map(frozenset, found["union"][0].skeleton.edges))
    assert union == {frozenset(edge) for graphs in found["own"] for edge in graphs.skeleton.edges}


def test_the_graph_from_sums_is_that_of_all_rows(network, clients):
    found = recovered("graphical-lasso", clients, 0)
    assert list(found) == ["own", "union", "votes", "sums"]
    pooled = UnitSums.of(torch.cat([client.table.units for client in clients]), network.schema)
    assert found["sums"][0].moral == recover_from_sums(RecoverySettings(), network.schema, pooled).graph
    assert found["sums"][0].moral == found["sums"][0].skeleton


def test_what_nobody_has_is_no_unit_of_linear_models(network, clients):
    (graphs,) = recovered("notears-admm", clients, 0)["agreed"]
    assert "sky" in graphs.skeleton.names
    assert not any("sky" in edge for edge in graphs.skeleton.edges)
    assert graphs.skeleton.score(network.skeleton).recall >= 2 / 3
