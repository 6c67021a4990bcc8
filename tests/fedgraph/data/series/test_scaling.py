from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedgraph.data.series.cohort import build_cohort
from fedgraph.data.series.series_files import SeriesTable
from fedgraph.data.series.windows import WindowSettings
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import parse

NAMES = ("a", "b", "c", "d")
STEPS, TRAIN, COLD = 200, 140, 48


def table() -> SeriesTable:
    random = np.random.default_rng(0)
    values = (50.0 + 9.0 * random.standard_normal((4, STEPS, 2))).astype(np.float32)
    values[random.random(values.shape) < 0.1] = np.nan
    return SeriesTable(NAMES, values, None, ("flow", "speed"))


def config(**keys: Any) -> WindowSettings:
    usual: dict[str, Any] = {
        "input_steps": 4,
        "output_steps": 2,
        "target_feature": 1,
        "cold_steps": COLD,
        "cold_clients": ("b",),
    }
    return WindowSettings(**(usual | keys))


# ---- moments


@pytest.mark.parametrize("asked", ["graph", "everybody"])
def test_moments_are_those_of_the_target_over_the_last_steps_and_all(asked: str) -> None:
    data = table()
    chosen = ["d", "b", "a"]
    moments = build_cohort(data, config(cold_scale=asked, missing=50.0), chosen).moments
    assert moments is not None
    assert moments.dtype == torch.float64
    for row, name in enumerate(chosen):
        speed = data.values[NAMES.index(name), :TRAIN, 1].astype(np.float64)
        lately = [np.nanmean(speed[-COLD:]), np.nanstd(speed[-COLD:])]
        read = np.isfinite(speed).sum()
        whole = [np.nan, np.nan, 0] if name == "b" else [np.nanmean(speed), np.nanstd(speed), read]
        np.testing.assert_allclose(moments[row], lately + whole, rtol=1e-6)


def test_moments_are_told_only_when_asked_for() -> None:
    assert build_cohort(table(), config(), NAMES).moments is None


def test_nothing_outside_the_training_part_is_in_the_moments() -> None:
    data, keys = table(), config(cold_scale="graph")
    before = build_cohort(data, keys, NAMES).moments
    assert before is not None
    data.values[:, TRAIN:] = 1e6
    data.values[1, : TRAIN - COLD] = 1e6
    after = build_cohort(data, keys, NAMES).moments
    assert after is not None
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def test_a_recent_stretch_of_which_hardly_anything_was_read_tells_nothing() -> None:
    data, keys = table(), config(cold_scale="graph")
    data.values[:3, TRAIN - COLD : TRAIN, 1] = np.nan
    # One step in 24 of 48 is 2: enough for b, not for a, and c has none at all.
    data.values[0, TRAIN - 1, 1] = 40.0
    data.values[1, TRAIN - 3 : TRAIN - 1, 1] = 40.0, 44.0
    moments = build_cohort(data, keys, NAMES).moments
    assert moments is not None
    assert moments[:, :2].isnan().all(dim=1).tolist() == [True, False, True, False]
    assert moments[:, 2:4].isnan().all(dim=1).tolist() == [False, True, False, False]
    assert moments[1, :2].tolist() == [42.0, 2.0]


def test_constant_readings_have_no_deviation_but_are_scaled_by_one() -> None:
    data = table()
    data.values[0, :, 1] = 30.0
    cohort = build_cohort(data, config(cold_scale="everybody"), NAMES)
    assert cohort.moments is not None
    assert cohort.moments[0].tolist() == [30.0, 0.0, 30.0, 0.0, float(TRAIN)]
    assert (float(cohort.mean[0]), float(cohort.std[0])) == (30.0, 1.0)


# ---- one scale for all


def test_a_pooled_scale_is_that_of_all_training_readings_together_of_those_who_are_not_cold() -> None:
    data = table()
    data.values[2, :, 1] += 40.0
    data.values[3, 10:120, 1] = np.nan
    cohort = build_cohort(data, config(scaling="pooled"), NAMES)
    readings = data.values[[0, 2, 3], :TRAIN, 1].astype(np.float64)
    np.testing.assert_allclose(cohort.mean, np.full(4, np.nanmean(readings)), rtol=1e-6)
    np.testing.assert_allclose(cohort.std, np.full(4, np.nanstd(readings)), rtol=1e-6)
    own = build_cohort(data, config(), NAMES)
    example = torch.tensor([[3]] * 4)
    (inputs, targets, weights), (own_inputs, own_targets, _) = (
        each.splits["test"].batch(example) for each in (cohort, own)
    )
    assert torch.equal(inputs[..., 0], own_inputs[..., 0])
    column = own.std[:, None, None], own.mean[:, None, None]
    expected = (own_targets * column[0] + column[1] - cohort.mean[:, None, None]) / cohort.std[:, None, None]
    torch.testing.assert_close(targets * weights, expected * weights)


def test_a_pooled_scale_that_the_server_told_takes_the_place_of_that_of_the_clients_at_hand() -> None:
    told = config(scaling="pooled", scales=dict.fromkeys(NAMES, (50.5, 9.5)))
    cohort = build_cohort(table(), told, ["c", "b"])
    assert (cohort.mean.tolist(), cohort.std.tolist()) == ([50.5, 50.5], [9.5, 9.5])


# ---- scales known from elsewhere


def test_known_scales_take_the_place_of_the_own_one_for_the_target_alone() -> None:
    data = table()
    own = build_cohort(data, config(), ["c", "b"])
    known = build_cohort(data, config(scales={"b": (61.5, 3.25), "a": (1.0, 1.0)}), ["c", "b"])
    assert (known.mean.tolist(), known.std.tolist()) == ([float(own.mean[0]), 61.5], [float(own.std[0]), 3.25])
    example = torch.tensor([[3], [3]])
    (before, targets, weights), (after, known_targets, _) = (
        cohort.splits["test"].batch(example) for cohort in (own, known)
    )
    assert torch.equal(after[..., 0], before[..., 0])
    assert torch.equal(after[0], before[0])
    readings = targets[1] * own.std[1] + own.mean[1]
    torch.testing.assert_close(known_targets[1] * weights[1], (readings - 61.5) / 3.25 * weights[1])
    assert not torch.allclose(known_targets[1], targets[1])


def test_known_scales_of_nobody_are_an_error_and_one_of_them_is_told(caplog: pytest.LogCaptureFixture) -> None:
    build_cohort(table(), config(scales={"d": (1.0, 2.0)}), ["a"])
    assert not caplog.records, "a client elsewhere is known"
    with pytest.raises(DataError, match="`scales` names unknown clients: zz"):
        build_cohort(table(), config(scales={"zz": (1.0, 2.0)}), ["a"])
    build_cohort(table(), config(scales={"a": (1.0, 2.0), "zz": (1.0, 2.0)}), ["a"])
    assert "`scales` names unknown clients: zz" in caplog.text


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scales": {"a": [1.0, 0.0]}}, "scales.a.1"),
        ({"scales": {"a": [1.0, 1e-60]}}, "scales.a.1"),
        ({"scales": {"a": [1e60, 1.0]}}, "scales.a.0"),
        ({"scales": {"a": [float("inf"), 1.0]}}, "scales.a.0"),
        ({"scales": {"a": [1.0, float("nan")]}}, "scales.a.1"),
        ({"scales": {"a": [1.0]}}, "scales.a.1"),
        ({"scales": {"a": [1.0, 2.0]}, "scaling": "none"}, '`scales` .*`scaling` is "none"'),
        ({"cold-scale": "graph", "scaling": "none"}, "`cold-scale` .*scaled readings"),
        ({"cold-scale": "neighbours"}, "cold-scale"),
        ({"cold-scale": "graph", "scaling": "pooled"}, '`scaling` "pooled" cold clients'),
        ({"cold-share": 0.2, "cold-clients": ["a"]}, "`cold-share` .*`cold-clients`"),
        ({"cold-share": 1.0}, "cold-share"),
        ({"covariates": ["month"]}, "covariates.*time-of-day"),
        ({"shares": [0.7, 0.2, 0.2]}, "must add up to 1"),
        ({"shares": [0.0, 0.5, 0.5]}, "train must not be 0"),
    ],
)
def test_unusable_settings(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        parse(WindowSettings, keys, "[data]")


def test_scales_travel_without_loss() -> None:
    settings = config(scales={'odd "name".': (1 / 3, 2 / 3)})
    again = parse(WindowSettings, settings.as_table(), "[data]")
    assert again == settings
