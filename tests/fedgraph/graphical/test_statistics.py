from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.encoding.scaling import ScalingSettings
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical import statistics as module
from fedgraph.graphical.statistics import SharedStatistics, StatisticsSettings
from fedgraph.privacy.noise.counts import CountNoiseSettings
from fedgraph.support.errors import DataError, ReplyError
from fedgraph.support.randomness import generator

SCHEMA = Schema(
    (
        Feature("age", "integer"),
        Feature("sick", "binary", ("n", "y")),
        Feature("weight", "real"),
        Feature("pay", "categorical", ("a", "b", "c")),
        Feature("size", "ordinal", ("s", "m", "l")),
    )
)
RANGES = ScalingSettings(source="shared-ranges", quantile=0.05)
OWN = ScalingSettings()
PLAIN = StatisticsSettings()
BOUNDS = {"age": (0.0, 128.0), "weight": (0.0, 256.0)}


def rows(count=4000, seed=0):
    draw = np.random.default_rng(seed)
    return np.stack(
        [
            draw.integers(20, 61, count).astype(float),
            draw.integers(0, 2, count) * (draw.random(count) < 0.2),
            np.where(draw.random(count) < 0.1, np.nan, draw.normal(150, 10, count)),
            np.where(draw.random(count) < 0.1, np.nan, draw.integers(0, 2, count)),
            draw.integers(0, 3, count),
        ],
        axis=1,
    )


def tell(values, scaling=RANGES, statistics=PLAIN, least_rows=10, seed=0):
    return module.shared_statistics(values, SCHEMA, scaling, statistics, least_rows, generator(seed, "noise"))


def test_ranges_without_noise():
    values = rows()
    told = tell(values)
    np.testing.assert_allclose(told.ranges["age"], np.quantile(values[:, 0], [0.05, 0.95]))
    np.testing.assert_allclose(told.ranges["weight"], np.nanquantile(values[:, 2], [0.05, 0.95]))
    assert set(told.ranges) == {"age", "weight"}


def test_only_what_is_asked_for_is_told():
    values = rows(100)
    assert tell(values, OWN) == SharedStatistics()
    given = ScalingSettings(source="shared-ranges", ranges={"age": (0, 100)})
    assert set(tell(values, given).ranges) == {"weight"}


def test_little_is_told_of_few_rows():
    values = rows(100)
    values[5:, 2] = np.nan
    told = tell(values)
    assert set(told.ranges) == {"age"}
    told = tell(values, least_rows=3)
    assert set(told.ranges) == {"age", "weight"}


def noisy(epsilon, mechanism="laplace"):
    keys = {"epsilon": epsilon, "mechanism": mechanism}
    return StatisticsSettings(noise=CountNoiseSettings(**keys), bounds=BOUNDS)


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_ranges_with_noise_are_as_good_as_the_cells(mechanism):
    values = rows()
    told = tell(values, RANGES, noisy(2.0, mechanism))
    for place, name in ((0, "age"), (2, "weight")):
        expected = np.nanquantile(values[:, place], [0.05, 0.95])
        cell = BOUNDS[name][1] / 64
        # Noise of a few dozen rows in 4000 moves a quantile by a cell or two.
        np.testing.assert_allclose(told.ranges[name], expected, atol=3 * cell)
        assert told.ranges[name][0] % cell == 0


def test_hardly_any_noise_leaves_the_edges_around_the_quantiles():
    values = rows()
    scaling = ScalingSettings(source="shared-ranges", quantile=0.2)
    told = tell(values, scaling, noisy(1e6))
    for place, name in ((0, "age"), (2, "weight")):
        low, high = np.nanquantile(values[:, place], [0.2, 0.8])
        cell = BOUNDS[name][1] / 64
        assert told.ranges[name] == (cell * np.floor(low / cell), cell * (np.floor(high / cell) + 1))


def test_of_skewed_numbers_the_median_is_told_too():
    values = rows()
    values[:, 2] = values[:, 0] = 20 * np.random.default_rng(0).lognormal(size=len(values)).clip(max=12)
    low, median, high = np.quantile(values[:, 2], [0.05, 0.5, 0.95])
    told = tell(values).ranges
    assert told["weight"] == pytest.approx((low, median, high))
    assert told["age"] == pytest.approx((low, high)), "a whole number"
    straight = ScalingSettings(source="shared-ranges", quantile=0.05, skewed="straight")
    assert tell(values, straight).ranges["weight"] == told["age"]
    first, middle, last = tell(values, RANGES, noisy(1e6)).ranges["weight"]
    assert (first, last) == (4 * np.floor(low / 4), 4 * np.floor(high / 4) + 4)
    assert middle == 4 * np.floor(median / 4) + 2


def test_values_beyond_the_bounds_count_as_the_bound():
    values = rows()
    values[:, 0] = 1e6
    assert tell(values, RANGES, noisy(2.0)).ranges["age"] == (126, 128)


def test_noise_hides_few_rows():
    for seed in range(20):
        assert tell(rows(12, seed), RANGES, noisy(0.5), seed=seed).ranges == {}


def test_noise_needs_bounds():
    with pytest.raises(DataError, match="bounds; .*for age"):
        tell(rows(100), RANGES, StatisticsSettings(noise=CountNoiseSettings(epsilon=1)))


@settings(max_examples=60)
@given(st.data())
def test_one_row_moves_the_counts_by_what_is_accounted_for(data):
    values = rows(30)
    cell = st.one_of(st.just(np.nan), st.floats(-1e9, 1e9))
    row = [data.draw(cell), *(data.draw(st.sampled_from([np.nan, 0.0, 1.0])) for _ in range(4))]
    row[2] = data.draw(cell)
    other = values.copy()
    other[data.draw(st.integers(0, 29))] = row
    seen = []

    def spy(counts, histograms, noise, generator):
        seen.append((counts, histograms))
        return counts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "noisy_counts", spy)
        for table in (values, other):
            tell(table, RANGES, noisy(1.0))
    (first, histograms), (second, _) = seen
    assert histograms == 2
    assert int((first - second).abs().sum()) <= 2 * histograms
    assert int((first - second).square().sum()) <= 2 * histograms


def test_json_there_and_back():
    told = tell(rows())
    assert SharedStatistics.from_json(told.as_json(), SCHEMA) == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "malformed"),
        ("{}", "malformed"),
        ('{"ranges": {}, "rows": {}}', "malformed"),
        ('{"ranges": {"age": [2, 1]}}', "malformed"),
        ('{"ranges": {"age": ["0", "1"]}}', "malformed"),
        ('{"ranges": {"size": [0, 1]}}', "not a common number"),
        ('{"ranges": {"other": [0, 1]}}', "not a common number"),
    ],
)
def test_json_that_is_none(text, message):
    with pytest.raises(ReplyError, match=message):
        SharedStatistics.from_json(text, SCHEMA)
