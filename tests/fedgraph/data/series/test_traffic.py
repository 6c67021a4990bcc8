from __future__ import annotations

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from fedgraph.data.series.traffic import (
    TRAFFIC,
    MetrLaSettings,
    Pems04Settings,
    Pems08Settings,
    PemsBaySettings,
    TrafficSource,
)
from fedgraph.support.errors import DataError

REAL = Path(os.environ.get("FEDGRAPH_DATA", Path(__file__).parents[4] / ".." / "shared" / "data"))
needs_metr_la = pytest.mark.skipif(
    not (REAL / "metr-la/metr_la_full_29.npz").exists(), reason="the METR-LA subset is not in FEDGRAPH_DATA"
)
needs_pems_bay = pytest.mark.skipif(
    not (REAL / "pems-bay/pems_bay_full_67.npz").exists(), reason="the PEMS-BAY subset is not in FEDGRAPH_DATA"
)


def speeds(steps: int, sensors: int) -> np.ndarray:
    values = np.random.default_rng(0).uniform(20.0, 70.0, (steps, sensors))
    values[::10, 0] = 0.0
    return values


def write_official_metr_la(folder: Path, names: list[str], graph_names: list[str]) -> np.ndarray:
    (folder / "metr-la").mkdir()
    values = speeds(100, len(names))
    with h5py.File(folder / "metr-la/metr-la.h5", "w") as file:
        frame = file.create_group("df")
        frame["axis0"] = frame["block0_items"] = np.array(names, dtype="S6")
        times = np.datetime64("2012-03-01", "ns") + np.arange(100) * np.timedelta64(300_000_000_000, "ns")
        frame["axis1"] = times.astype(np.int64)
        frame["block0_values"] = values
    weights = np.eye(len(graph_names), dtype=np.float32)
    weights[0, 1] = 0.25
    index = {name: number for number, name in enumerate(graph_names)}
    with (folder / "metr-la/adj_mx.pkl").open("wb") as file:
        pickle.dump([graph_names, index, weights], file, protocol=2)
    return values


def test_the_official_files(tmp_path: Path) -> None:
    values = write_official_metr_la(tmp_path, ["11", "22", "33"], ["33", "11", "22"])
    source = TrafficSource(MetrLaSettings(covariates=("time-of-day",)), tmp_path)
    assert source.client_names() == ["11", "22", "33"]
    cohort = source.load(["22", "11"])
    assert cohort.task.features == ("speed", "time-of-day")
    assert (cohort.task.unit, cohort.task.step_minutes) == ("mph", 5.0)
    valid = values[:70, 0][values[:70, 0] != 0.0]
    np.testing.assert_allclose([cohort.mean[1], cohort.std[1]], [valid.mean(), valid.std()], rtol=1e-5)
    weights = cohort.splits["train"].batch(torch.tensor([[0], [0]])).weights
    assert weights[1, 0].tolist() == [float(step % 10 != 0) for step in range(12, 24)]
    graph = source.given_graph()
    assert graph.names == ("11", "22", "33")
    assert graph.dense()[2, 0] == 0.25
    assert graph.dense()[0, 2] == 0.0


def test_the_official_files_are_read_first(tmp_path: Path) -> None:
    write_official_metr_la(tmp_path, ["11"], ["11", "22"])
    folder = tmp_path / "metr-la"
    np.savez(folder / "metr_la_full_29.npz", speed=speeds(100, 2), sensor_ids=np.array([11, 22]))
    np.savez(folder / "adj_mx.npz", adj=np.eye(2, dtype=np.float32), sensor_ids=np.array([11, 22]))
    assert TrafficSource(MetrLaSettings(), tmp_path).part().name == "full"
    assert TrafficSource(MetrLaSettings(part="29"), tmp_path).client_names() == ["11", "22"]
    (folder / "adj_mx.pkl").unlink()
    assert TrafficSource(MetrLaSettings(), tmp_path).part().name == "29"


def test_missing_files_are_said_with_address_and_place(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        TrafficSource(MetrLaSettings(), tmp_path).client_names()
    message = str(caught.value)
    for part in (
        "metr-la.h5: published at https://drive.google.com/",
        str(tmp_path / "metr-la/metr-la.h5"),
        "https://raw.githubusercontent.com/liyaguang/DCRNN/",
        str(tmp_path / "metr-la/adj_mx.pkl"),
        "fedgraph data --download metr-la",
        "metr_la_full_29.npz",
    ):
        assert part in message
    with pytest.raises(DataError) as caught:
        TrafficSource(MetrLaSettings(part="week"), tmp_path).client_names()
    assert str(tmp_path / "metr-la/metr_la_week1_207.npz") in str(caught.value)
    assert "metr-la.h5" not in str(caught.value)


def write_pems(folder: Path, name: str, rows: str) -> None:
    (folder / name).mkdir()
    data = np.random.default_rng(0).uniform(0.0, 100.0, (80, 4, 3))
    np.savez(folder / name / f"{name}.npz", data=data)
    (folder / name / "distance.csv").write_text(f"from,to,cost\n{rows}")


def test_flows_and_their_roads(tmp_path: Path) -> None:
    write_pems(tmp_path, "pems04", "0,1,100.5\n1,0,100.5\n3,2,7\n3,2,7\n")
    source = TrafficSource(Pems04Settings(), tmp_path)
    assert source.client_names() == ["000", "001", "002", "003"]
    assert source.load(["002"]).task.features == ("flow",)
    every = source.load(["002"]).task
    assert every.unit == "vehicles per 5 minutes"
    all_three = TrafficSource(Pems04Settings(features=(0, 1, 2)), tmp_path).load(["002"])
    assert all_three.task.features == ("flow", "occupancy", "speed")
    graph = source.given_graph()
    expected = torch.zeros(4, 4)
    expected[0, 1] = expected[1, 0] = expected[2, 3] = expected[3, 2] = 1.0
    assert torch.equal(graph.dense(), expected)
    assert not graph.directed
    assert source.describe().startswith("PEMS04, 4 of 307 sensors, 80 five-minute steps: not comparable")


@pytest.mark.parametrize(("rows", "message"), [("0,9,1\n", "names sensor 9"), ("a,b,1\n", "cannot be read as lines")])
def test_a_wrong_list_of_roads_is_named(rows: str, message: str, tmp_path: Path) -> None:
    write_pems(tmp_path, "pems08", rows)
    with pytest.raises(DataError, match=rf"distance\.csv: {message}"):
        TrafficSource(Pems08Settings(), tmp_path).given_graph()


def test_a_file_of_another_shape_is_named(tmp_path: Path) -> None:
    write_pems(tmp_path, "pems08", "0,1,1\n")
    np.savez(tmp_path / "pems08/pems08.npz", data=np.ones((80, 4)))
    with pytest.raises(DataError, match=r"pems08\.npz: PEMS08"):
        TrafficSource(Pems08Settings(), tmp_path).client_names()


def test_the_catalogue_knows_every_set() -> None:
    assert [entry.name for entry in TRAFFIC] == ["metr-la", "pems-bay", "pems04", "pems08"]
    for entry in TRAFFIC:
        assert all(entry.alternatives)
        assert entry.licence
        for files in entry.alternatives:
            for file in files:
                assert file.path.parts[0] == entry.name
                assert file.url or (file.sha256 and not file.download)


@needs_metr_la
def test_real_metr_la_subset() -> None:
    source = TrafficSource(MetrLaSettings(part="29"), REAL)
    assert source.describe() == (
        "METR-LA, 29 of 207 sensors, 34,272 five-minute steps: "
        "not comparable with published tables over all 207 sensors"
    )
    names = source.client_names()
    cohort = source.load(names)
    assert cohort.splits["train"].num_examples.tolist() == [23990 - 23] * 29
    speed = np.load(REAL / "metr-la/metr_la_full_29.npz")["speed"]
    train = np.ma.masked_equal(speed[:23990], 0.0)
    np.testing.assert_allclose(cohort.mean, train.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(cohort.std, train.std(axis=0), rtol=1e-3)
    graph = source.given_graph()
    assert graph.names == tuple(names)
    published = np.load(REAL / "metr-la/adj_mx.npz")
    position = {str(sensor): row for row, sensor in enumerate(published["sensor_ids"])}
    rows = [position[name] for name in names]
    np.testing.assert_array_equal(graph.dense(), published["adj"][np.ix_(rows, rows)])


def test_a_cold_start_is_not_comparable_even_with_all_sensors(tmp_path: Path) -> None:
    names = [f"{number:03d}" for number in range(207)]
    write_official_metr_la(tmp_path, names, names)
    every = "METR-LA, 207 sensors, 100 five-minute steps"
    assert TrafficSource(MetrLaSettings(), tmp_path).describe() == every
    cold = TrafficSource(MetrLaSettings(cold_clients=("003",), cold_steps=30), tmp_path).describe()
    assert cold == (
        "METR-LA, 207 sensors, of them 1 cold with the last 30 steps of training readings, 100 five-minute steps: "
        "not comparable with published tables, where no sensor starts cold"
    )


@needs_metr_la
def test_a_cold_start_is_said() -> None:
    source = TrafficSource(MetrLaSettings(part="29", cold_share=0.2), REAL)
    assert source.describe().startswith(
        "METR-LA, 29 of 207 sensors, of them 6 cold with the last 288 steps of training readings, 34,272 five-minute"
    )
    week = TrafficSource(MetrLaSettings(part="week", cold_share=0.2), REAL)
    assert "41 cold" in week.describe()


@needs_metr_la
def test_real_metr_la_week() -> None:
    source = TrafficSource(MetrLaSettings(part="week"), REAL)
    assert len(source.client_names()) == source.given_graph().num_clients == 207
    assert source.describe().endswith(
        "missing readings interpolated: not comparable with published tables over all time steps"
    )


@needs_pems_bay
def test_real_pems_bay_subset_skips_the_daylight_saving_hour() -> None:
    source = TrafficSource(PemsBaySettings(part="67", covariates=("time-of-day",)), REAL)
    assert source.describe().startswith("PEMS-BAY, 67 of 325 sensors, 52,116 five-minute steps: not comparable")
    corridors = np.load(REAL / "pems-bay/pems_bay_full_67.npz")["corridor"]
    names = source.client_names()
    assert source.load([names[66], names[0]]).groups == (corridors[66], corridors[0])
    times = source.table().times
    assert times is not None
    assert times[-1] == np.datetime64("2017-06-30T23:55:00")
    assert (np.diff(times) == np.timedelta64(3900, "s")).sum() == 1
    # Speeds of the morning rush, before and after: with the right clock the lowest speed stays at the same hour.
    hour = (times.astype(np.int64) % 86_400) // 3600
    speed = np.nanmean(source.table().values[:, :, 0], axis=0)
    spring = times < np.datetime64("2017-03-12")
    slowest = [
        min(range(24), key=lambda h, part=part: float(speed[part & (hour == h)].mean())) for part in (spring, ~spring)
    ]
    assert slowest[0] == slowest[1]
