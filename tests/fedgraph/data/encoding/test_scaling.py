from __future__ import annotations

import numpy as np
import pytest

from fedgraph.data.encoding.scaling import Scaling, ScalingSettings, agreed_scaling, quantile_range
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError, ExperimentError, ReplyError
from fedgraph.support.settings import parse

SCHEMA = Schema(
    (Feature("age", "integer"), Feature("sick", "binary", ("n", "y")), Feature("size", "ordinal", ("s", "m", "l")),
     Feature("weight", "real"))
)  # fmt: skip


def test_quantiles_of_what_is_there():
    values = np.random.default_rng(0).normal(size=1000)
    values[::7] = np.nan
    expected = np.nanquantile(values, [0.05, 0.95])
    np.testing.assert_allclose(quantile_range(values, 0.05), expected)
    assert quantile_range(values, 0.0) == (np.nanmin(values), np.nanmax(values))


def test_ranges_are_never_empty():
    assert quantile_range(np.array([np.nan, np.nan]), 0.01) == (0, 1)
    assert quantile_range(np.array([7.0, 7.0, np.nan]), 0.01) == (6.5, 7.5)
    low, high = quantile_range(np.array([1e12]), 0.01)
    assert low < 1e12 < high
    # A rare event is counted in 10 of 1000 rows: both quantiles are 0.
    counts = np.zeros(1000)
    counts[:10] = np.arange(1, 11)
    assert quantile_range(counts, 0.1) == (0, np.quantile(np.arange(1, 11), 0.9))
    assert quantile_range(-counts, 0.1) == (-np.quantile(np.arange(1, 11), 0.9), 0)


def test_own_ranges_are_of_numbers_only():
    values = np.array([[20.0, 0, 2, 60], [40, 1, 0, np.nan], [np.nan, 1, 0, 80]])
    scaling = Scaling.measured(values, SCHEMA, 0.0)
    assert scaling.ranges == {"age": (20, 40), "weight": (60, 80)}
    scales = scaling.scales(SCHEMA)
    assert [(scale.low, scale.high) for scale in scales] == [(20, 40), (0, 1), (0, 2), (60, 80)]


def test_a_skewed_number_has_its_median_in_the_middle():
    values = np.stack([np.arange(1001.0) ** 4, np.zeros(1001), np.zeros(1001), np.arange(1001.0) ** 4], 1)
    scaling = Scaling.measured(values, SCHEMA, 0.05)
    assert scaling.ranges["weight"] == pytest.approx((50**4, 500**4, 950**4))
    ends = np.array([[scaling.ranges[name][place] for name in ("age", "weight")] for place in (0, -1)])
    straight = Scaling.measured(values, SCHEMA, 0.05, "straight")
    assert straight.ranges["weight"] == straight.ranges["age"] == scaling.ranges["age"]
    for seed in range(3):
        random = np.random.default_rng(seed)
        assert len(quantile_range(random.normal(size=500), 0.01, True)) == 2
        assert len(quantile_range(random.lognormal(size=500), 0.01, True)) == 3
        assert len(quantile_range(-random.lognormal(size=500), 0.01, True)) == 3
    ages, _, _, weights = scaling.scales(SCHEMA)
    np.testing.assert_allclose(ages.units(ends[:, 0]), [0, 1])
    np.testing.assert_allclose(weights.units(ends[:, 1]), [0, 1])
    assert ages.units(np.array([500.0**4]))[0] == pytest.approx(0.0767, abs=1e-3)
    assert weights.units(np.array([500.0**4]))[0] == pytest.approx(0.5)


def test_merging():
    told = [{"age": (1, 5), "weight": (0, 1)}, {"age": (2, 9)}, {"age": (0, 1000)}]
    assert Scaling.merged(told).ranges == {"age": (0, 1000), "weight": (0, 1)}
    assert Scaling.merged(told, "median").ranges == {"age": (1, 9), "weight": (0, 1)}
    assert Scaling.merged([]).ranges == {}
    skewed = [{"a": (1, 2, 5)}, {"a": (0, 9)}, {"a": (3, 4, 9)}, {"a": (8, 8.5, 9)}]
    assert Scaling.merged(skewed).ranges == {"a": (0, 4, 9)}
    # The lows are 1, 3 and 8, the medians 2, 2.5 and 8.5.
    assert Scaling.merged([{"a": (1, 2, 5)}, {"a": (3, 2.5, 9)}, {"a": (8, 8.5, 9)}], "median").ranges["a"] == (3, 3, 9)


def settings(**keys):
    return parse(ScalingSettings, keys, "[scaling]")


def test_agreed_ranges():
    told = [{"age": (10.0, 60.0), "weight": (40.0, 80.0)}, {"weight": (50.0, 90.0)}]
    given = {"age": [0, 100], "weight": [0, 200], "elsewhere": [0, 1]}
    assert agreed_scaling(SCHEMA, settings(source="given", ranges=given), told).ranges == {
        "age": (0, 100),
        "weight": (0, 200),
    }
    shared = agreed_scaling(SCHEMA, settings(source="shared-ranges", ranges={"age": [0, 100]}), told)
    assert shared.ranges == {"age": (0, 100), "weight": (40, 90)}
    own = agreed_scaling(SCHEMA, settings(source="own", ranges={"age": [0, 100]}), told)
    assert own.ranges == {"age": (0, 100)}
    assert own.completed(Scaling({"age": (1, 2), "weight": (3, 4)})).ranges == {"age": (0, 100), "weight": (3, 4)}
    for source in ("given", "shared-ranges"):
        with pytest.raises(DataError, match="no range for weight"):
            agreed_scaling(SCHEMA, settings(source=source, ranges={"age": [0, 100]}))


@pytest.mark.parametrize(
    "limits",
    [
        [5, 5],
        [6, 5],
        [0, float("inf")],
        [float("nan"), 1],
        [0, 1e31],
        [0, 1e-31],
        [0, 2, 1],
        [1, 0, 2],
        [0, float("nan"), 1],
        [0],
    ],
)
def test_ranges_that_are_none(limits):
    with pytest.raises(ExperimentError, match="low below high|ranges"):
        settings(ranges={"age": limits})


def test_json_there_and_back():
    scaling = Scaling({"age": (0.1, 1e9), "weight": (-3.0, -2.0, 4.5)})
    assert Scaling.from_json(scaling.as_json()) == scaling


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": 1}',
        '{"a": [1, 2, 3, 4]}',
        '{"a": [2, 1]}',
        '{"a": [0, 1e999]}',
        '{"a": [NaN, 1]}',
        "[" * 10_000,
    ],
)
def test_json_that_is_no_scaling(text):
    with pytest.raises(ReplyError, match="the scaling is malformed"):
        Scaling.from_json(text)
