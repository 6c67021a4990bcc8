"""The network of a chest clinic that comes along."""

import pytest

from fedgraph.data.tables import asia_network, read_bif
from fedgraph.graphical.inference import posterior


def test_its_marginals_are_the_published_ones():
    """Lauritzen and Spiegelhalter 1988, table 2."""
    network = asia_network()
    published = {"tub": 0.0104, "lung": 0.055, "bronc": 0.45, "either": 0.0648, "xray": 0.1103, "dysp": 0.4360}
    for name, expected in published.items():
        assert network.variables[name].categories == ("yes", "no")
        assert float(posterior(network, name, {})[0]) == pytest.approx(expected, abs=5e-5)


def test_it_is_the_published_file(data_dir):
    path = data_dir / "graph-truth" / "asia.bif.gz"
    if not path.exists():
        pytest.skip("needs asia.bif.gz")
    own, published = asia_network(), read_bif(path)
    assert own.variables.keys() == published.variables.keys()
    assert own.moral_graph == published.moral_graph
    for name in own.variables:
        for given in ({}, {"dysp": 0, "smoke": 1}, {"xray": 0}):
            if name not in given:
                assert posterior(own, name, given).tolist() == pytest.approx(posterior(published, name, given).tolist())
