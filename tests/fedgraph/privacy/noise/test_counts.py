from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedgraph.privacy.noise.counts import CountNoiseSettings, noisy_counts
from fedgraph.privacy.noise.gaussian import epsilon_of
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import parse


def noise(settings, histograms, size=200_000):
    counts = torch.full((2, size // 2), 7)
    return (noisy_counts(counts, histograms, settings, generator(0, "noise")) - counts).flatten().numpy()


def test_laplace_noise_is_what_epsilon_asks_for():
    settings = CountNoiseSettings(epsilon=1.5)
    drawn = noise(settings, histograms=3)
    assert drawn.dtype == np.int64
    # One row moves two cells of three histograms: b = 6 / epsilon, and P(k) = (1 - q) / (1 + q) q^|k|, q = exp(-1 / b).
    q = math.exp(-1.5 / 6)
    ks = np.arange(-15, 16)
    expected = (1 - q) / (1 + q) * q ** np.abs(ks)
    observed = np.array([(drawn == k).sum() for k in ks])
    rest = len(drawn) - observed.sum()
    result = stats.chisquare([*observed, rest], [*(len(drawn) * expected), len(drawn) * (1 - expected.sum())])
    assert result.pvalue > 1e-3


def test_gaussian_noise_is_what_epsilon_asks_for():
    settings = CountNoiseSettings(mechanism="gaussian", epsilon=0.8, delta=1e-5)
    # Two cells of each of eight histograms move by 1, which is 4 in the Euclidean norm.
    assert epsilon_of(settings.scale(8) / 4, 1e-5) == pytest.approx(0.8, rel=1e-6)
    drawn = noise(settings, histograms=8)
    assert drawn.std() == pytest.approx(settings.scale(8), rel=0.01)
    assert stats.kstest(drawn[:5000] / settings.scale(8), "norm").pvalue > 1e-3


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_what_noise_alone_hardly_exceeds(mechanism):
    settings = CountNoiseSettings(mechanism=mechanism, epsilon=1.0)
    drawn = noise(settings, histograms=2).reshape(-1, 50)
    largest = settings.largest(50, 2, probability=0.05)
    exceeded = (drawn.max(1) > largest).mean()
    assert 0.03 < exceeded < 0.06
    assert settings.largest(500, 2, probability=0.05) > largest


def test_nobody_can_repeat_the_noise():
    counts = torch.zeros(1000, dtype=torch.int64)
    settings = CountNoiseSettings(epsilon=0.1)
    torch.manual_seed(0)
    first = noisy_counts(counts, 1, settings)
    torch.manual_seed(0)
    assert not torch.equal(first, noisy_counts(counts, 1, settings))
    assert noisy_counts(counts[:0], 0, settings).shape == (0,)


def test_settings_that_cannot_be():
    for table in ({}, {"epsilon": 0}, {"epsilon": 1, "delta": 1}, {"epsilon": 1, "mechanism": "uniform"}):
        with pytest.raises(ExperimentError):
            parse(CountNoiseSettings, table, "[noise]")
