from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components

import fedgraph.data.series.synthetic as synthetic
from fedgraph.data.series.synthetic import SYNTHETIC, SyntheticTrafficSettings, SyntheticTrafficSource, road_network
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import parse


def readings(**keys: object) -> np.ndarray:
    return SyntheticTrafficSource(SyntheticTrafficSettings(**keys)).table().values[:, :, 0]  # type: ignore[arg-type]


def test_everything_follows_from_the_seed() -> None:
    first = readings(days=2)
    synthetic._simulate.cache_clear()
    synthetic.road_network.cache_clear()
    np.testing.assert_array_equal(first, readings(days=2))
    assert not np.array_equal(first, readings(days=2, seed=1), equal_nan=True)


def test_global_random_state_is_neither_used_nor_changed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    readings(days=1, seed=77)
    assert torch.equal(states[0], torch.get_rng_state())
    np.testing.assert_array_equal(states[1], np.random.get_state()[1])  # type: ignore[index]


def test_a_sensor_keeps_its_own_noise_and_losses_when_others_are_added() -> None:
    few, many = readings(sensors=10, days=2), readings(sensors=20, days=2)
    np.testing.assert_array_equal(np.isnan(few), np.isnan(many[:10]))
    assert np.isnan(few).any()


def test_shapes_and_names() -> None:
    source = SyntheticTrafficSource(SyntheticTrafficSettings(sensors=12, days=3, step_minutes=15))
    assert source.client_names()[:2] == ["sensor-000", "sensor-001"]
    assert source.table().values.shape == (12, 288, 1)
    assert source.describe() == "synthetic traffic, 12 sensors, 288 15-minute steps (simulated, seed 0)"
    cohort = source.load(source.client_names())
    assert (cohort.task.unit, cohort.task.step_minutes, cohort.task.features) == ("mph", 15.0, ("speed",))
    values = source.table().values
    assert np.nanmin(values) >= 3.0
    assert np.nanmax(values) <= 80.0


@pytest.mark.parametrize("sensors", [2, 3, 4, 30])
def test_the_road_network_is_connected_and_sparse(sensors: int) -> None:
    network = road_network(sensors, 3)
    assert connected_components(network.roads, directed=False)[0] == 1
    assert (network.roads != network.roads.T).nnz == 0
    assert network.roads.nnz / 2 <= max(1, 3 * sensors - 6)  # a planar graph has no more edges
    assert np.isfinite(network.distances).all()
    ends = network.roads.tocoo()
    straight = np.linalg.norm(network.points[ends.row] - network.points[ends.col], axis=1)
    np.testing.assert_allclose(ends.data, straight)
    np.testing.assert_allclose(network.distances[ends.row, ends.col], straight)


def test_the_given_graph_is_the_kernel_of_road_distances() -> None:
    source = SyntheticTrafficSource(SyntheticTrafficSettings(sensors=10, clients=("sensor-007", "sensor-002")))
    distances = road_network(10, 0).distances
    weights = np.exp(-((distances / distances.std()) ** 2))
    weights[weights < 0.1] = 0.0
    graph = source.given_graph()
    assert graph.names == ("sensor-007", "sensor-002")
    np.testing.assert_allclose(graph.dense(), weights[np.ix_([7, 2], [7, 2])], rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_the_share_of_lost_readings_and_their_bursts(share: float) -> None:
    lost = np.isnan(readings(sensors=40, days=28, missing_share=share))
    assert abs(lost.mean() - share) < 0.1 * share + 1e-9
    if share:
        begins = (lost[:, 1:] & ~lost[:, :-1]).sum()
        assert 8 < lost.sum() / begins < 16  # 12 steps make an hour


def test_weekdays_have_rush_hours_and_weekends_do_not() -> None:
    speed = readings(sensors=40, days=28)
    hour = np.arange(speed.shape[1]) // 12 % 24
    weekend = np.arange(speed.shape[1]) // 288 % 7 >= 5  # 2024-01-01 is a Monday

    def mean(hours: list[int], days: np.ndarray) -> float:
        return float(np.nanmean(speed[:, np.isin(hour, hours) & days]))

    night = mean([2, 3], ~weekend)
    assert mean([8], ~weekend) < night - 8.0
    assert mean([17, 18], ~weekend) < night - 8.0
    assert abs(mean([8], weekend) - night) < 3.0


def test_congestion_travels_upstream_with_a_delay() -> None:
    """One jam at one sensor: only sensors upstream of it slow down, later and less the farther they are."""
    network = road_network(30, 0)
    centre = np.linalg.norm(network.points - network.points.mean(axis=0), axis=1)
    roads = network.roads.toarray() > 0
    source = int(np.argmin(centre))
    hops = np.full(30, 99)
    hops[source] = 0
    for _ in range(30):
        for near, far in zip(*np.nonzero(roads), strict=True):
            if centre[far] > centre[near]:
                hops[far] = min(hops[far], hops[near] + 1)
    load = np.zeros((30, 60))
    load[source, 5:15] = 1.0
    queue = synthetic._queues(load, network, 5.0)
    reached = hops < 99
    assert 5 < reached.sum() < 31
    assert (queue[~reached] == 0.0).all()
    assert (queue[reached].max(axis=1) > 0.0).all()
    first = (queue > 0.0).argmax(axis=1)
    np.testing.assert_array_equal(first[reached], 6 + hops[reached])
    direct = int(np.flatnonzero(hops == 1)[0])
    assert queue[direct].argmax() > queue[source].argmax()
    assert queue[direct].max() < queue[source].max()
    assert queue[:, -1].max() < 0.1 * queue.max()  # and it dissolves


def test_neighbours_tell_more_about_the_next_hour_than_distant_sensors() -> None:
    """A linear forecast from a sensor's own past and that of its neighbours, or of as many sensors far away."""
    speed = readings(sensors=30, days=28, missing_share=0.0)
    network = road_network(30, 0)
    half = speed.shape[1] // 2
    errors = []
    for sensor in range(30):
        near = np.flatnonzero(network.roads.toarray()[sensor])
        far = np.argsort(-network.distances[sensor])[: len(near)]
        own = [np.roll(speed[sensor], lag) for lag in range(3)]
        target = np.roll(speed[sensor], -6)
        for others in (near, far):
            design = np.stack([*own, *speed[others], np.ones_like(target)]).T
            fit = np.linalg.lstsq(design[12:half], target[12:half], rcond=None)[0]
            errors.append(np.abs(design[half:-6] @ fit - target[half:-6]).mean())
    with_near, with_far = np.reshape(errors, (30, 2)).mean(axis=0)
    assert with_near < 0.97 * with_far


def test_the_catalogue_entry_has_the_name_of_the_settings() -> None:
    assert [entry.name for entry in SYNTHETIC] == [SyntheticTrafficSettings().set]
    assert SYNTHETIC[0].alternatives == ()


@pytest.mark.parametrize(("key", "value"), [("sensors", 1), ("missing-share", 0.95)])
def test_wrong_settings_are_named(key: str, value: float) -> None:
    with pytest.raises(ExperimentError, match=key):
        parse(SyntheticTrafficSettings, {key: value}, "[data]")


def test_clients_can_be_left_out() -> None:
    def names(**keys: object) -> list[str]:
        return SyntheticTrafficSource(SyntheticTrafficSettings(sensors=4, days=1, **keys)).client_names()  # type: ignore[arg-type]

    assert names(without=("sensor-001",)) == ["sensor-000", "sensor-002", "sensor-003"]
    assert names(clients=("sensor-003", "sensor-001"), without=("sensor-001",)) == ["sensor-003"]
    source = SyntheticTrafficSource(SyntheticTrafficSettings(sensors=4, days=2, without=("sensor-000",)))
    assert source.given_graph().names == tuple(source.client_names())
    assert source.load(source.client_names()).names == tuple(source.client_names())
    with pytest.raises(DataError, match="`without`.*'sensor-9'"):
        names(without=("sensor-9",))
    with pytest.raises(DataError, match="key `without` leaves no clients"):
        names(clients=("sensor-001",), without=("sensor-001",))
