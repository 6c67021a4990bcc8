import numpy as np
import pytest
import sklearn.covariance
import torch
from sklearn.covariance import GraphicalLassoCV

from fedgraph.graphical.recovery.correlation import Moments, correlation, moments, standardised
from fedgraph.graphical.recovery.lasso import best_penalty, lasso_precision


def test_it_minimises_the_penalised_likelihood(chain):
    sums = moments(standardised(chain(6, 400)[0].units))
    precision, found = lasso_precision(sums, 0.1).numpy(), correlation(sums).numpy()
    # Optimality: the gradient S - P^-1 is -penalty sign(P) where P is not 0, within the penalty where it is.
    gradient = found - np.linalg.inv(precision)
    linked = (np.abs(precision) > 1e-6) & ~np.eye(6, dtype=bool)
    np.testing.assert_allclose(gradient[linked], -0.1 * np.sign(precision[linked]), atol=2e-3)
    assert np.abs(gradient).max() < 0.1 + 2e-3
    assert linked.sum() < 30, "no entry is 0"


@pytest.mark.parametrize(("rows", "low", "high"), [(100, 0.02, 0.25), (4000, 1e-4, 0.02)])
def test_the_penalty_is_near_that_of_scikit_learn_and_falls_with_rows(chain, rows, low, high):
    units = standardised(chain(6, rows)[0].units)
    found, other = best_penalty(units.chunk(5)), GraphicalLassoCV().fit(units.numpy()).alpha_
    assert low < found < high
    # Penalties are tried at steps of sqrt(10).
    assert 0.2 < found / other < 5


def test_rows_that_are_noise_get_a_large_penalty():
    noise = standardised(torch.randn(200, 6, generator=torch.Generator().manual_seed(3)))
    sums = moments(noise)
    penalty = best_penalty(noise.chunk(5))
    off = lasso_precision(sums, penalty).fill_diagonal_(0)
    assert float(off.abs().max()) < 0.12
    assert penalty > 0.5 * float(correlation(sums).fill_diagonal_(0).abs().max())


def test_a_penalty_for_which_the_solver_fails_is_passed_over(chain, monkeypatch):
    solve = sklearn.covariance.graphical_lasso

    def fails_below(covariance, penalty):
        if penalty < 0.05:
            raise FloatingPointError("ill-conditioned")
        return solve(covariance, penalty)

    monkeypatch.setattr("sklearn.covariance.graphical_lasso", fails_below)
    units = standardised(chain(6, 400)[0].units)
    assert 0.05 <= best_penalty(units.chunk(5)) < 0.2


def test_equal_units_have_a_solution():
    units = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    sums = moments(standardised(torch.cat([units, units[:, :1]], 1)))
    assert isinstance(sums, Moments)
    assert bool(lasso_precision(sums, 1e-3).isfinite().all())
