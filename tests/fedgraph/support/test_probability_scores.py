"""Scores of probabilities."""

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from fedgraph.support.probability_scores import calibration_error, ranking_scores


def test_calibration_is_the_gap_of_the_curve_that_scikit_learn_draws():
    random = np.random.default_rng(0)
    chances = random.random(500)
    happened = random.random(500) < chances**2
    shares, means = calibration_curve(happened, chances, n_bins=15)
    counts = np.histogram(chances, bins=15, range=(0, 1))[0]
    assert calibration_error(chances, happened) == pytest.approx(np.sum(counts * np.abs(shares - means)) / 500)


def test_calibration_of_certainty_and_of_nothing():
    assert calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0
    assert calibration_error(np.array([1.0, 0.0]), np.array([False, True])) == 1
    assert math.isnan(calibration_error(np.zeros(0), np.zeros(0, dtype=bool)))


def test_chances_that_are_not_finite_have_no_score():
    scores = ranking_scores(np.array([0.5, np.nan]), np.array([True, False]))
    assert all(math.isnan(value) for value in scores.values())
