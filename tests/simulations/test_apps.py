"""The apps of simulations/apps, in the form that users of Flower know."""

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedgraph
from fedgraph import strategies
from fedgraph.federation.grids import run_app_on_flower
from fedgraph.starting.flower_app import FlowerApp
from fedgraph.support.errors import RunError

APPS = Path(__file__).resolve().parents[2] / "simulations" / "apps"
MEASURED = {**dict.fromkeys(("pytorch", "scikit-learn", "graphs", "lora"), "accuracy"), "patients": "error"}


def test_every_app_is_tried_and_told_of():
    assert {path.parent.name for path in APPS.glob("*/pyproject.toml")} == MEASURED.keys()
    page = (APPS / "README.md").read_text()
    assert [name for name in MEASURED if f"## {name}\n" not in page] == []


@pytest.mark.parametrize("name", MEASURED)
def test_an_app_learns_and_repeats_bit_for_bit(name):
    run_config = {"num-server-rounds": 2, **({"local-epochs": 1} if name == "pytorch" else {})}
    first, second = (
        fedgraph.simulate(APPS / name, num_nodes=6, run_config=run_config, on_error="raise") for _ in range(2)
    )
    # All say who they are, and train and evaluate twice.
    assert first.answered == 6 + 2 * 2 * 6
    measured = [metrics[MEASURED[name]] for metrics in first.returned.evaluate_metrics_clientapp.values()]
    assert len(measured) == 2
    # Ten digits by chance: 0.1; an error of 0.8 is that of always telling the mean.
    assert measured[-1] < 0.7 if MEASURED[name] == "error" else measured[-1] > 0.25
    arrays, again = first.returned.arrays, second.returned.arrays
    assert {key: array.data for key, array in arrays.items()} == {key: array.data for key, array in again.items()}


@pytest.mark.parametrize("name", MEASURED)
def test_an_app_has_data_for_many_clients(name):
    run_config = {"num-server-rounds": 1, "num-clients": 30}
    done = fedgraph.simulate(APPS / name, num_nodes=30, run_config=run_config, on_error="raise")
    assert done.answered == 3 * 30


class Averaged(FedAvg):
    """FedAvg, where an app names SFL."""

    def __init__(self, graph, hops):
        super().__init__(min_available_nodes=graph.num_clients)


@pytest.mark.parametrize("name", ["pytorch", "graphs", pytest.param("lora", marks=pytest.mark.process)])
def test_clients_that_are_related_gain_from_the_graph(name, monkeypatch):
    def measured():
        done = fedgraph.simulate(APPS / name, num_nodes=6, run_config={"num-server-rounds": 3}, on_error="raise")
        return done.returned.evaluate_metrics_clientapp[3]["accuracy"]

    over_the_graph = measured()
    monkeypatch.setattr(strategies, "SFL", Averaged, raising=False)
    assert over_the_graph > measured() + 0.1


def test_an_app_says_how_many_clients_its_graph_has():
    with pytest.raises(RunError, match="4 nodes are connected, fewer than min_available_nodes = 6: start more"):
        fedgraph.simulate(APPS / "patients", num_nodes=4)


def test_the_low_rank_app_exchanges_adapters_alone():
    run_config = {"num-server-rounds": 1, "num-clients": 2}
    arrays = fedgraph.simulate(APPS / "lora", run_config=run_config, on_error="raise").returned.arrays
    assert {name.rpartition(".")[2] for name in arrays} == {"down", "up"}
    with FlowerApp.open(APPS / "lora").imported() as (_, client):
        import task

        assert isinstance(client, ClientApp)
        model = task.adapted(4)
        exchanged = sum(array.numpy().size for array in arrays.values())
        assert exchanged == 4 * sum(sum(layer.frozen.weight.shape) for layer in (model[0], model[2], model[4]))
        assert exchanged < sum(parameter.numel() for parameter in model.parameters()) / 4
        # Where everybody begins is the network itself, which has not seen turned images.
        upright, turned = (task.load_data(partition, 3, 50, 0)[1] for partition in (0, 2))
        assert task.accuracy(model, upright) > 0.8 > 0.5 > task.accuracy(model, turned)


def test_clients_of_a_group_are_alike():
    with FlowerApp.open(APPS / "pytorch").imported():
        import task

        seen = [
            {int(label) for _, labels in task.load_data(partition, 6, 500, 0)[0] for label in labels}
            for partition in range(6)
        ]
        assert seen == [set(task.GROUPS[partition % 3]) for partition in range(6)]
    with FlowerApp.open(APPS / "scikit-learn").imported():
        import task

        shares = [1 - task.load_data(partition, 6)[1].mean() for partition in range(6)]
        assert max(shares[0], shares[3]) < min(shares[1], shares[4]) < min(shares[2], shares[5])
    with FlowerApp.open(APPS / "patients").imported():
        import task

        ages = [task.load_table(partition, 5)["age"] for partition in range(5)]
        assert all(younger.max() <= older.min() for younger, older in pairwise(ages))
        assert sum(map(len, ages)) == 442


@pytest.mark.process
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("name", ["pytorch", *(pytest.param(app, marks=pytest.mark.slow) for app in [*MEASURED][1:])])
def test_an_app_runs_by_flwr_run_with_the_same_results(name, tmp_path):
    log, run_config = tmp_path / "flower.log", {"num-server-rounds": 2, "num-clients": 3}
    here = fedgraph.simulate(APPS / name, num_nodes=3, run_config=run_config, on_error="raise").returned
    run_app_on_flower(APPS / name, run_config, 3, log, {})
    told = log.read_text(errors="replace")
    assert "Strategy execution finished" in told, told[-9000:]
    wanted = [f"{metrics[MEASURED[name]]:.4e}" for metrics in here.evaluate_metrics_clientapp.values()]
    assert [value for value in wanted if f"'{MEASURED[name]}': '{value}'" not in told] == []


def test_projects_name_what_they_import():
    for name in MEASURED:
        project = tomllib.loads((APPS / name / "pyproject.toml").read_text())["project"]
        assert any(each.startswith("flwr[simulation]") for each in project["dependencies"])
        assert project["name"] == name
