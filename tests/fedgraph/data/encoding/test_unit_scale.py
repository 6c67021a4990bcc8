from __future__ import annotations

import numpy as np
import pytest

from fedgraph.data.encoding.unit_scale import FARTHEST, UnitScale

VALUES = np.array([-40.0, -1.0, 0.0, 0.3, 2.0, 6.0, 10.0, 11.0, 500.0])


def test_a_range_without_a_median_is_straight():
    for scale in (UnitScale.of(2.0, 10.0), UnitScale.of(2.0, 10.0, 6.0)):
        np.testing.assert_allclose(scale.units(VALUES), (VALUES - 2) / 8)
        np.testing.assert_allclose(scale.values(np.array([0, 0.5, 2])), [2, 6, 18])


@pytest.mark.parametrize("median", [0.1, 1.0, 3.0, 5.0, 7.0, 9.9])
def test_low_median_and_high_are_0_one_half_and_1(median):
    scale = UnitScale.of(0.0, 10.0, median)
    np.testing.assert_allclose(scale.units(np.array([0.0, median, 10.0])), [0, 0.5, 1], atol=1e-12)
    units = scale.units(VALUES)
    assert (np.diff(units) > 0).all()
    np.testing.assert_allclose(scale.values(units), VALUES, atol=1e-9)


def test_of_a_lognormal_number_the_scale_is_its_logarithm():
    logs = np.linspace(-2, 2, 9)
    scale = UnitScale.of(*np.exp([-2.0, 2.0]), 1.0)
    np.testing.assert_allclose(scale.units(np.exp(logs)), (logs + 2) / 4)


def test_a_scale_is_turned_for_a_number_that_is_skewed_to_the_left():
    right, left = UnitScale.of(0.0, 10.0, 1.0), UnitScale.of(0.0, 10.0, 9.0)
    np.testing.assert_allclose(left.units(10 - VALUES), 1 - right.units(VALUES))


def test_a_median_at_an_end_is_taken_for_one_near_it():
    scale = UnitScale.of(0.0, 10.0, 0.0)
    assert scale == UnitScale.of(0.0, 10.0, 0.1)
    np.testing.assert_allclose(scale.units(np.array([0.0, 0.1, 10.0])), [0, 0.5, 1])


def test_no_unit_is_farther_off_than_a_value_may_be():
    scale = UnitScale.of(0.0, 10.0, 0.5)
    np.testing.assert_allclose(scale.values(np.array([-1e6, 1e6])), [-10 * FARTHEST, 10 * FARTHEST])
    assert scale.is_far(np.array([-10_100, -9_000, 5, 9_000, 10_100.0])).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("median", [None, 1.0, 8.0])
def test_moments_are_those_of_values(median):
    scale = UnitScale.of(0.0, 10.0, median)
    components, random = np.array([[0.2, 0.5, 0.6], [1.0, 1.0, 1.0]]), np.random.default_rng(0)
    mean, deviation = scale.moments(components, 0.1)
    drawn = scale.values(components[:, :, None] + 0.1 * random.normal(size=(2, 3, 100_000))).reshape(2, -1)
    np.testing.assert_allclose(mean, drawn.mean(1), rtol=0.01)
    np.testing.assert_allclose(deviation, drawn.std(1), rtol=0.02)
    np.testing.assert_allclose(
        scale.moments(components[:, :1], 0.0), [scale.values(components[:, 0]), [0, 0]], atol=1e-9
    )
