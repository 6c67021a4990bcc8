import json
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.graph import read_graph
from fedgraph.runs.folder import RunFolder
from fedgraph.strategies.engine import scales
from fedgraph.support.errors import DataError, ExperimentError

COLD = ["sensor-003", "sensor-006", "sensor-008"]
TRAIN, DAY = 2016, 288


@pytest.fixture
def tables():
    """A week of training that begins on a Monday: all that cold sensors have is a Sunday, which has no rush hours."""
    return {
        "experiment": {"method": "fedavg", "rounds": 3},
        "data": {"set": "synthetic-traffic", "sensors": 12, "days": 10, "cold-clients": COLD, "cold-trains": False},
        "model": {"name": "gru", "hidden": 8},
        "train": {"learning-rate": 0.1, "momentum": 0.9, "local-steps": 30, "batch-size": 32, "workers": 1},
        "graph": {"source": "data"},
        "evaluation": {"splits": ["test"], "every": 3},
    }


def with_data(tables, **keys):
    return {**tables, "data": {**tables["data"], **keys}}


def scales_of(folder):
    return json.loads((folder.path / "scales.json").read_text())


def by_hand(tables, matrix):
    """Mean and deviation of the cold sensors, from the readings and a graph with self loops, sensor by sensor."""
    source = open_source(parse_data(tables["data"]), None)
    names = sorted(source.client_names())
    table = source.table()
    readings = {name: table.values[table.names.index(name), :TRAIN, 0].astype(np.float64) for name in names}
    warm = [name for name in names if name not in COLD]
    found = {}
    for name in COLD:
        walk = matrix[names.index(name)]
        k = np.array([walk[names.index(other)] / walk.sum() + 0.3 / 12 for other in warm])
        estimates = []
        for of in (np.nanmean, lambda values: np.log(np.nanstd(values))):
            x, y = (
                np.array([of(readings[other][part]) for other in warm]) for part in (slice(-DAY, None), slice(None))
            )
            slope, start = np.polyfit(x, y, 1, w=np.sqrt(k))
            own = of(readings[name][-DAY:])
            estimates.append(np.clip(start + slope * own, min(own, y.min()), max(own, y.max())))
        found[name] = [estimates[0], np.exp(estimates[1])]
    return found


def test_a_scale_inferred_over_the_graph_is_better_than_that_of_an_unusual_day(tables, run_experiment):
    own, graph = (run_experiment(with_data(tables, **{"cold-scale": scale})) for scale in ("own", "graph"))
    expected = by_hand(tables, read_graph(graph.path / "graph.npz").dense().double().numpy())
    found = scales_of(graph)
    assert list(found) == COLD
    for name in COLD:
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    assert not (own.path / "scales.json").exists()
    error = {
        scale: {group: folder.summary()["per_group"]["test"][group]["mae"]["mean"] for group in ("cold", "warm")}
        for scale, folder in (("own", own), ("graph", graph))
    }
    assert error["graph"]["cold"] < 0.8 * error["own"]["cold"]
    assert error["graph"]["warm"] == error["own"]["warm"]
    assert "scale of 3 cold clients inferred over the client graph" in (graph.path / "logs" / "run.log").read_text()
    assert "3 cold with the last 288 steps of training readings, never trained, their scale" in graph.summary()["data"]


def test_the_same_scales_given_by_hand_make_the_same_run_and_the_experiment_stays_as_it_was(tables, run_experiment):
    tables["data"]["cold-trains"] = True
    everybody = run_experiment(with_data(tables, **{"cold-scale": "everybody"}))
    written = tomllib.loads((everybody.path / "experiment.toml").read_text())["data"]
    assert "scales" not in written
    assert written["cold-scale"] == "everybody"
    given = run_experiment(with_data(tables, scales=scales_of(everybody)))
    assert given.summary()["weights_sha256"] == everybody.summary()["weights_sha256"]
    assert given.summary()["metrics"] == everybody.summary()["metrics"]
    over_graph = run_experiment(with_data(tables, **{"cold-scale": "graph"}))
    assert scales_of(over_graph) != scales_of(everybody)


def test_a_scale_of_the_experiment_is_kept(tables, run_experiment):
    tables["experiment"]["rounds"] = 0
    mixed = run_experiment(with_data(tables, **{"cold-scale": "graph", "scales": {COLD[1]: [55.0, 8.0]}}))
    assert list(scales_of(mixed)) == [COLD[0], COLD[2]]
    alike = run_experiment(with_data(tables, scales={**scales_of(mixed), COLD[1]: [55.0, 8.0]}))
    assert mixed.summary()["per_client"] == alike.summary()["per_client"]


def test_neither_packing_nor_a_stop_changes_the_scales(tables, run_experiment):
    asking = with_data(tables, **{"cold-scale": "graph"})
    whole = run_experiment(asking, nodes=1)
    hosts = [{"clients": f"{COLD[2]},sensor-000"}, {"clients": ",".join(sorted(
        {f"sensor-{number:03d}" for number in range(12)} - {COLD[2], "sensor-000"}, reverse=True))}]  # fmt: skip
    asking["experiment"] = {**asking["experiment"], "rounds": 1}
    part = run_experiment(asking, node_configs=hosts)
    for name, scale in scales_of(part).items():
        assert scale == pytest.approx(scales_of(whole)[name], rel=1e-12)

    before = scales_of(part)
    (part.path / "summary.json").unlink()
    (part.path / "scales.json").unlink()
    text = (part.path / "experiment.toml").read_text()
    (part.path / "experiment.toml").write_text(text.replace("rounds = 1\n", "rounds = 3\n"))
    run_experiment(None, folder=RunFolder.open(part.path), node_configs=hosts)
    assert scales_of(part) == before
    assert part.summary()["per_client"]["test"]["mae"] == pytest.approx(
        whole.summary()["per_client"]["test"]["mae"], rel=1e-3
    )


def test_a_pooled_scale_is_one_for_all_however_they_are_packed(tables, run_experiment):
    tables["data"] = {"set": "synthetic-traffic", "sensors": 12, "days": 10, "scaling": "pooled"}
    whole, dealt = run_experiment(tables, nodes=1), run_experiment(tables, nodes=5)
    source = open_source(parse_data(tables["data"]), None)
    readings = source.table().values[:, :TRAIN, 0].astype(np.float64)
    for folder in (whole, dealt):
        scales = scales_of(folder)
        assert sorted(scales) == sorted(source.client_names())
        for scale in scales.values():
            assert scale == pytest.approx([np.nanmean(readings), np.nanstd(readings)], rel=1e-6)
    assert dealt.summary()["per_client"]["test"]["mae"] == pytest.approx(
        whole.summary()["per_client"]["test"]["mae"], rel=1e-3
    )
    own = run_experiment(with_data(tables, scaling="client"))
    assert own.summary()["metrics"] != whole.summary()["metrics"]
    assert "scales" not in tomllib.loads((whole.path / "experiment.toml").read_text())["data"]


def test_a_claimed_number_of_readings_does_not_decide_a_pooled_scale():
    federation = SimpleNamespace(
        names=tuple("abcd"),
        moments=torch.tensor([[0.0, 1.0, 5.0, 1.0, 100.0]] * 3 + [[0.0, 1.0, 90.0, 1.0, 2.0**40]], dtype=torch.float64),
        most_examples=None,
    )
    assert scales._pooled(federation)["a"][0] == pytest.approx((3 * 5 + 3 * 90) / 6)
    federation.most_examples = 0
    assert scales._pooled(federation)["a"][0] == pytest.approx(90)


def test_nobody_cold_is_nothing_to_infer(tables, run_experiment):
    tables["experiment"]["rounds"] = 0
    folder = run_experiment(with_data(tables, **{"cold-scale": "graph", "cold-clients": []}))
    assert not (folder.path / "scales.json").exists()


def test_a_graph_is_needed_for_a_scale_over_it(tables, run_experiment):
    tables["graph"] = {"source": "none"}
    with pytest.raises(ExperimentError, match='cold-scale = "graph" .*client graph'):
        run_experiment(with_data(tables, **{"cold-scale": "graph"}))


def test_somebody_must_be_warm(tables, run_experiment):
    everybody = [f"sensor-{number:03d}" for number in range(12)]
    with pytest.raises(DataError, match="sensor-000, sensor-001"):
        run_experiment(with_data(tables, **{"cold-scale": "everybody", "cold-clients": everybody, "cold-trains": True}))
