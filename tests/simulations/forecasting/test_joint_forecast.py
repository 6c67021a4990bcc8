"""One network that sees the windows of all clients, on the one node that has them."""

import pytest

from fedgraph.support.errors import FedgraphError


@pytest.fixture
def tables(road_tables):
    del road_tables["experiment"]["method"]
    road_tables["experiment"]["strategy"] = "fedgraph.simulations.forecasting.joint_forecast:JointForecast"
    del road_tables["f3-forecast"]
    road_tables["JointForecast"] = {"steps": 150, "evaluate-every": 50, "learning-rate": 0.01}
    return road_tables


@pytest.mark.process
@pytest.mark.parametrize("network", ["graph-wavenet", "perceptron"])
def test_a_network_that_sees_all_knows_what_comes_down_the_road(tables, run_experiment, network):
    tables["JointForecast"]["network"] = network
    summary = run_experiment(tables, nodes=1).summary()
    errors = summary["metrics"]["test"]["mae"]["mean"]
    del tables["experiment"]["strategy"], tables["JointForecast"]
    tables["experiment"]["method"] = "simple-forecast"
    alone = run_experiment(tables, nodes=1).summary()["metrics"]["test"]["mae"]["mean"]
    assert errors < 0.75 * alone
    assert summary["exchanges"] == 2


def test_the_given_graph_is_used_in_both_directions(tables, run_experiment, tmp_path):
    tables["JointForecast"]["steps"] = 2
    without = run_experiment(tables, nodes=1).summary()["metrics"]["test"]["mae"]["mean"]
    tables["graph"] = {"source": "file", "path": str(tmp_path / "edges.csv")}
    found = run_experiment(tables, nodes=1).summary()["metrics"]["test"]["mae"]["mean"]
    assert found != without


def test_it_takes_one_node_with_the_readings_of_all(tables, run_experiment):
    with pytest.raises(FedgraphError, match="here 2 nodes host them: run it with --nodes 1"):
        run_experiment(tables, nodes=2)
