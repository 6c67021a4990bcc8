import pytest

import fedgraph
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.experiment.yardsticks import yardsticks
from fedgraph.strategies.engine.chosen import ChosenMethod

TABLES = {
    "experiment": {"name": "small", "method": "sfl", "rounds": 1, "seed": 3, "on-missing": "skip"},
    "data": {"set": "synthetic-traffic", "sensors": 4, "days": 3, "covariates": ["time-of-day"]},
    "model": {"name": "gru", "hidden": 4},
    "train": {"local-steps": 2},
    "graph": {"source": "data"},
    "sfl": {"alpha": 0.5},
    "evaluation": {"splits": ["test"], "horizons": [3], "yardsticks": True, "every": 5},
}


def changed(**tables):
    return parse_experiment({**TABLES, **{name: {**TABLES[name], **table} for name, table in tables.items()}})


def test_what_a_forecast_has_to_beat():
    experiment = changed()
    *simple, permuted = yardsticks(experiment)
    forecasters = [each.method_table["forecaster"] for each in simple]
    assert forecasters == ["last-reading", "weekly-profile", "ridge"]
    for each in [*simple, permuted]:
        assert each.data == experiment.data
        assert not each.evaluation.yardsticks
        assert (each.evaluation.splits, each.evaluation.horizons) == (("test",), (3,))
        assert (each.experiment.seed, each.experiment.on_missing, each.experiment.name) == (3, "skip", "small")
    assert (permuted.method.name, permuted.graph.permute_seed, permuted.method_table["alpha"]) == ("sfl", 0, 0.5)


@pytest.mark.parametrize("graph", [{"source": "complete"}, {"permute-seed": 1}])
def test_a_graph_that_cannot_be_permuted_anew_has_no_control(graph):
    assert [each.method.name for each in yardsticks(changed(graph=graph))] == ["simple-forecast"] * 3


def test_none_by_default():
    assert yardsticks(changed(evaluation={"yardsticks": False})) == []


def test_they_stand_beside_the_methods_of_a_comparison(tmp_path):
    compared = fedgraph.run_methods(TABLES, [None, "local"], out=tmp_path, progress=False)
    assert compared.labels == [
        "sfl", "local", "simple-forecast (last-reading)", "simple-forecast (weekly-profile)",
        "simple-forecast (ridge)", "sfl (permute-seed=0)",
    ]  # fmt: skip
    assert compared.metrics.loc["test/mae-15min"].notna().all()
    alone = fedgraph.run(TABLES, out=tmp_path, progress=False)
    assert (alone.method, (alone.path / "comparison.html").is_file()) == ("sfl", True)


@pytest.mark.parametrize(
    ("method", "permuted"),
    [
        ("sfl", True),
        ("fedgraph.simulations.forecasting.cnfgnn:CNFGNN", True),
        ("local", False),
        ("fedavg", False),
        ("pfedgraph", False),
        ("fedavg-ft", False),
        ("f3-forecast", False),
        ("f3-forecast over the given graph", True),
    ],
)
def test_over_a_permuted_graph_where_the_method_uses_it(method, permuted):
    tables = {name: table for name, table in TABLES.items() if name != "sfl"}
    del (head := dict(tables["experiment"]))["method"]
    tables["experiment"] = {**head, "strategy" if ":" in method else "method": method.partition(" ")[0]}
    if "given" in method:
        tables["f3-forecast"] = {"graph": "given"}
    experiment = parse_experiment(tables)
    found = yardsticks(experiment, ChosenMethod(experiment).uses_graph)
    assert [each.graph.permute_seed for each in found] == [None] * 3 + [0] * permuted
