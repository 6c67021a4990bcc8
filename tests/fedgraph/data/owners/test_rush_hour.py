"""Hourly windows of the speed data sets, against loops over the readings."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.data.owners.rush_hour import MetrLaRushHourSettings, PemsBayRushHourSettings, RushHourSource
from fedgraph.support.errors import DataError

REAL = Path(os.environ.get("FEDGRAPH_DATA", Path(__file__).parents[4] / ".." / "shared" / "data"))
needs_metr_la = pytest.mark.skipif(
    not (REAL / "metr-la/metr_la_full_29.npz").exists(), reason="the METR-LA subset is not in FEDGRAPH_DATA"
)
needs_pems_bay = pytest.mark.skipif(
    not (REAL / "pems-bay/pems_bay_full_67.npz").exists(), reason="the PEMS-BAY subset is not in FEDGRAPH_DATA"
)


def write(folder: Path, steps: int = 30 * 12, start: str | None = "2012-03-01T00:00") -> np.ndarray:
    """Three sensors; the last has no reading in the hour 2."""
    values = np.random.default_rng(0).uniform(20.0, 70.0, (steps, 3)).astype(np.float32)
    values[::10, 0] = 0.0
    values[24:36, 2] = 0.0
    (folder / "metr-la").mkdir()
    names = np.array(["11", "22", "33"])
    times = {} if start is None else {"start": np.array(start), "step_minutes": np.array(5)}
    np.savez(folder / "metr-la/metr_la_full_29.npz", speed=values, sensor_ids=names, **times)
    adjacency = np.eye(3, dtype=np.float32)
    adjacency[0, 2] = 0.5
    np.savez(folder / "metr-la/adj_mx.npz", adj=adjacency, sensor_ids=names)
    return values


def test_windows_on_the_hour(tmp_path):
    values = write(tmp_path)
    data = RushHourSource(MetrLaRushHourSettings(scaling="none"), tmp_path).load_owners(["33", "11"])
    assert len(data.keys) == 30
    assert (data.keys[0], data.keys[7], data.keys[29]) == ("2012-03-01T00", "2012-03-01T07", "2012-03-02T05")
    assert data.tasks[0].input_shape == (12, 1)
    assert data.tasks[0].classes == ("other hour", "rush hour")
    assert [hour for hour in range(24) if data.labels[hour]] == [7, 8, 9, 16, 17, 18]
    training = [hour for hour in range(30) if data.split[hour] == 0]
    for owner, column in ((0, 2), (1, 0)):
        windows = values[:, column].reshape(30, 12).astype(np.float64)
        windows[windows == 0.0] = np.nan
        filled = np.where(np.isnan(windows), np.nanmean(windows[training]), windows)
        np.testing.assert_allclose(data.inputs[owner][..., 0], filled, rtol=1e-6)
    assert data.present.all()


def test_incomplete_hours_are_left_out_wherever_they_are(tmp_path):
    write(tmp_path, steps=40, start="2012-03-01T06:35")
    data = RushHourSource(MetrLaRushHourSettings(), tmp_path).load_owners(["11"])
    assert data.keys == ("2012-03-01T07", "2012-03-01T08")
    first = RushHourSource(MetrLaRushHourSettings(first_steps=28), tmp_path).load_owners(["11"])
    assert first.keys == ("2012-03-01T07",)
    with pytest.raises(DataError, match="all 12 five-minute steps"):
        RushHourSource(MetrLaRushHourSettings(first_steps=16), tmp_path).load_owners(["11"])


def test_an_hour_with_a_step_left_out_is_not_complete(tmp_path):
    write(tmp_path)
    folder = tmp_path / "metr-la"
    times = np.datetime64("2012-03-01T06:00") + 5 * np.arange(60).astype("timedelta64[m]")
    lines = [f"{str(time).replace('T', ' ')}:00,{row},{row},{row}" for row, time in enumerate(times) if row != 17]
    (folder / "METR-LA.csv").write_text("\n".join(["time,11,22,33", *lines]))
    with (folder / "adj_mx.pkl").open("wb") as file:
        names = ["11", "22", "33"]
        pickle.dump([names, {name: row for row, name in enumerate(names)}, np.eye(3, dtype=np.float32)], file)
    source = RushHourSource(MetrLaRushHourSettings(missing=None, scaling="none"), tmp_path)
    data = source.load_owners(["22"])
    assert [key[-2:] for key in data.keys] == ["06", "08", "09", "10"]
    assert data.inputs[0][1].flatten().tolist() == list(range(24, 36))


def test_times_of_a_file_without_them_come_from_the_settings(tmp_path):
    write(tmp_path, start=None)
    settings = parse_data({"set": "metr-la-rush-hour", "start": "2012-03-05T16:00:00"})
    data = open_source(settings, tmp_path).load_owners(["22"])
    assert data.keys[0] == "2012-03-05T16"
    assert data.labels[:4].tolist() == [1, 1, 1, 0]


def test_clients_graph_and_description(tmp_path):
    write(tmp_path)
    source = RushHourSource(MetrLaRushHourSettings(clients=("33", "11")), tmp_path)
    assert source.client_names() == ["33", "11"]
    graph = source.given_graph()
    assert graph.names == ("33", "11")
    assert graph.dense()[1, 0] == 0.5
    assert source.describe() == (
        "rush hours of METR-LA, 2 of 207 sensors, 360 five-minute steps, 30 hourly windows: "
        "not comparable with published tables over all 207 sensors"
    )
    fewer = RushHourSource(MetrLaRushHourSettings(without=("22",)), tmp_path)
    assert fewer.describe() == source.describe()
    with pytest.raises(DataError, match=r"metr-la\.h5: published at"):
        RushHourSource(MetrLaRushHourSettings(), tmp_path / "empty").client_names()


@needs_metr_la
def test_the_published_number_of_windows_of_metr_la():
    source = RushHourSource(MetrLaRushHourSettings(), REAL)
    cohort = source.load(source.client_names()[:3])
    assert int(sum(split.num_examples[0] for split in cohort.splits.values())) == 2856
    data = source.load_owners(source.client_names()[:3])
    assert int(data.labels.sum()) == 2856 // 4
    assert len(source.client_names()) == 29
    # Rush hours are slower: labels and readings lie at the same hours.
    assert (data.inputs[0][data.labels == 1].mean() < data.inputs[0][data.labels == 0].mean() - 0.2).item()


@needs_pems_bay
def test_the_published_number_of_windows_of_pems_bay():
    source = RushHourSource(PemsBayRushHourSettings(), REAL)
    data = source.load_owners(source.client_names()[:1])
    assert len(data.keys) == 4343
    # The clock went forward at two that night.
    assert {"2017-03-12T01", "2017-03-12T03"} <= set(data.keys)
    assert "2017-03-12T02" not in data.keys
    assert torch.equal(data.labels, torch.tensor([int(key[-2:]) in (7, 8, 9, 16, 17, 18) for key in data.keys]).long())


def splits_of_days(folder, **changed):
    """By day, which splits its hours stand in."""
    settings = MetrLaRushHourSettings(**{"split": "blocks", "block_days": 2, "shares": (0.5, 0.2, 0.3), **changed})
    data = RushHourSource(settings, folder).load_owners(["11"])
    days: dict[str, set[int]] = {}
    for key, split in zip(data.keys, data.split.tolist(), strict=True):
        days.setdefault(key[:10], set()).add(split)
    return [days[day] for day in sorted(days)]


def test_blocks_of_days_stand_in_one_split(tmp_path):
    write(tmp_path, steps=20 * 288)
    found = [splits_of_days(tmp_path, split_seed=seed) for seed in range(4)]
    for days in found:
        assert all(len(splits) == 1 for splits in days)
        assert days[::2] == days[1::2]
        assert [days.count({split}) for split in range(3)] == [10, 4, 6]
    assert len({str(days) for days in found}) > 1
    # Hours drawn one by one stand beside hours of other splits.
    assert max(len(splits) for splits in splits_of_days(tmp_path, split="hours")) == 3


def test_blocks_in_order_end_with_those_to_be_tested(tmp_path):
    write(tmp_path, steps=20 * 288)
    days = splits_of_days(tmp_path, split="in-order", split_seed=3)
    assert days == [{0}] * 10 + [{1}] * 4 + [{2}] * 6


def test_too_few_blocks_for_a_split(tmp_path):
    write(tmp_path, steps=20 * 288)
    with pytest.raises(DataError, match="3 blocks .*block-days"):
        splits_of_days(tmp_path, block_days=7, shares=(0.7, 0.1, 0.2))
