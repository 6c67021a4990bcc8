from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from fedgraph.privacy.noise.gaussian import (
    NoiseSettings,
    clipped,
    epsilon_of,
    noise_multiplier_for,
    privacy_loss,
    release,
)
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import parse


def _delta(epsilon: float, sigma: float) -> float:
    """Balle and Wang 2018, theorem 8, for sensitivity 1."""
    a, b = 1 / (2 * sigma), epsilon * sigma
    return stats.norm.cdf(a - b) - math.exp(epsilon) * stats.norm.cdf(-a - b)


def _epsilon(sigma: float, delta: float) -> float:
    return optimize.brentq(lambda epsilon: _delta(epsilon, sigma) - delta, 0, 100, xtol=1e-12)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_is_that_of_the_analytic_gaussian_mechanism(multiplier, delta):
    assert epsilon_of(multiplier, delta) == pytest.approx(_epsilon(multiplier, delta), rel=1e-6)


def test_releases_and_owners_add_up_as_one_gaussian_of_larger_sensitivity():
    settings = NoiseSettings(clip_norm=3.0, noise_multiplier=6.0, delta=1e-5, releases=4)
    assert privacy_loss(settings) == pytest.approx(_epsilon(3.0, 1e-5), rel=1e-6)
    assert privacy_loss(settings, owners=9) == pytest.approx(_epsilon(1.0, 1e-5), rel=1e-6)


@pytest.mark.parametrize(("epsilon", "releases"), [(0.3, 1), (1.0, 5), (20.0, 2)])
def test_noise_follows_from_epsilon(epsilon, releases):
    settings = NoiseSettings(clip_norm=2.0, epsilon=epsilon, releases=releases)
    assert _delta(epsilon, settings.multiplier() / math.sqrt(releases)) == pytest.approx(1e-5, rel=1e-4)
    assert privacy_loss(settings) == pytest.approx(epsilon, rel=1e-6)
    assert settings.deviation() == pytest.approx(noise_multiplier_for(epsilon, 1e-5, releases) * 2 * 2.0)


def test_clipping_against_numpy():
    rows = torch.randn(3, 50, 4, generator=generator(0, "rows")) * torch.tensor([0.1, 1.0, 1e20])[:, None, None]
    rows[0, 0] = 0
    expected = rows.double().numpy()
    norms = np.sqrt((expected**2).sum(-1, keepdims=True))
    expected = expected * np.where(norms > 1.5, 1.5 / np.maximum(norms, 1.5), 1)
    np.testing.assert_allclose(clipped(rows, 1.5).numpy(), expected, rtol=1e-12)
    assert float(torch.linalg.vector_norm(clipped(rows, 1.5), dim=-1).max()) <= 1.5 * (1 + 1e-14)


def test_noise_has_the_deviation_that_was_accounted_for_and_no_mean():
    settings = NoiseSettings(clip_norm=0.5, noise_multiplier=3.0)
    embeddings = torch.full((2, 20_000, 4), 10.0)
    noise = (release(embeddings, settings, generator=generator(1, "noise")) - 0.25).double()
    # Clipped to norm 0.5, each of four equal numbers is 0.25; sigma is 3 times twice the norm.
    assert float(noise.std()) == pytest.approx(3.0, rel=0.01)
    assert abs(float(noise.mean())) < 5 * 3.0 / math.sqrt(noise.numel())
    correlation = torch.corrcoef(noise.reshape(-1, 4).T) - torch.eye(4)
    assert float(correlation.abs().max()) < 5 / math.sqrt(40_000)
    assert stats.kstest(noise.flatten()[:20_000].numpy() / 3.0, "norm").pvalue > 1e-3


def test_low_bits_are_rounded_away():
    settings = NoiseSettings(clip_norm=1.0, noise_multiplier=0.7)
    released = release(torch.randn(1, 500, 8, generator=generator(0, "h")), settings).double()
    steps = released / (1.0 / 1024)  # sigma is 1.4, the power of two below it is 1
    assert torch.equal(steps, steps.round())


def test_operating_system_noise_differs_and_a_generator_repeats():
    settings = NoiseSettings(clip_norm=1.0, noise_multiplier=1.0)
    embeddings = torch.zeros(1, 3, 4)
    torch.manual_seed(0)
    first = release(embeddings, settings)
    torch.manual_seed(0)
    assert not torch.equal(first, release(embeddings, settings))
    again = [release(embeddings, settings, generator=generator(2, "n")) for _ in range(2)]
    assert torch.equal(again[0], again[1])


def test_zeros_get_noise_too_and_what_is_not_finite_is_refused():
    embeddings = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    released = release(embeddings, NoiseSettings(clip_norm=1.0, noise_multiplier=1.0))
    assert released.dtype == torch.float32
    assert bool((released != 0).all())
    embeddings[0, 0, 0] = math.nan
    with pytest.raises(DataError, match="not finite"):
        release(embeddings, NoiseSettings(clip_norm=1.0, noise_multiplier=1.0))


@pytest.mark.parametrize("table", [{"clip-norm": 1.0}, {"clip-norm": 1.0, "epsilon": 1.0, "noise-multiplier": 1.0}])
def test_either_noise_or_epsilon(table):
    with pytest.raises(ExperimentError, match="exactly one of noise-multiplier and epsilon"):
        parse(NoiseSettings, table, "[noise]")


def test_accounting_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ExperimentError, match="dp-accounting"):
        epsilon_of(1.0, 1e-5)
    with pytest.raises(ExperimentError, match="dp-accounting"):
        NoiseSettings(clip_norm=1.0, epsilon=1.0).multiplier()
