import pytest
import torch

from fedgraph.graphical.inference.prediction import infer
from fedgraph.support.errors import DataError


def drawn(covariance, rows, seed=0):
    noise = torch.randn(rows, len(covariance), generator=torch.Generator().manual_seed(seed))
    return noise @ torch.linalg.cholesky(covariance).T


def test_the_fixed_point_of_true_conditionals_is_the_conditional_expectation(gaussian):
    """E[x_u | x_k] = C_uk C_kk^-1 x_k."""
    network, parameters, covariance = gaussian()
    rows = drawn(covariance, 300)
    unknown, known = torch.tensor([1, 2, 4]), torch.tensor([0, 3])
    asked = rows.index_fill(1, unknown, torch.nan)
    found = infer(network, parameters, asked[None])[0]
    wanted = rows[:, known] @ torch.linalg.solve(covariance[known][:, known], covariance[known][:, unknown])
    assert torch.allclose(found[:, unknown], wanted, atol=2e-3)
    assert torch.equal(found[:, known], rows[:, known])
    # With neighbours at their means, less is known.
    once = network.forward(parameters, asked[None])[0]
    assert (once[:, 2] - wanted[:, 1]).abs().mean() > 0.1


def test_given_all_neighbours_it_is_one_pass(gaussian):
    network, parameters, covariance = gaussian()
    rows = drawn(covariance, 50)
    asked = rows.index_fill(1, torch.tensor([2]), torch.nan)
    found = infer(network, parameters, asked[None])[0]
    assert torch.allclose(found[:, 2], network.forward(parameters, rows[None])[0, :, 2], atol=1e-6)


def test_rows_and_clients_are_inferred_apart(gaussian, monkeypatch):
    network, parameters, covariance = gaussian()
    rows = drawn(covariance, 40)
    gaps = torch.rand(40, 5, generator=torch.Generator().manual_seed(1)) < 0.4
    other = parameters * 1.1
    both = infer(network, torch.cat([parameters, other]), rows.masked_fill(gaps, torch.nan).expand(2, -1, -1))
    monkeypatch.setattr("fedgraph.graphical.inference.prediction.ROWS", 7)
    alone = infer(network, other, rows.masked_fill(gaps, torch.nan)[None, 20:])
    assert torch.allclose(both[1, 20:], alone[0], atol=2e-3)
    assert not both.isnan().any()


def test_what_does_not_fit_is_refused_and_no_rows_are_fine(gaussian):
    network, parameters, _ = gaussian()
    with pytest.raises(DataError, match=r"\[1, rows, 5\]"):
        infer(network, parameters, torch.zeros(2, 3, 5))
    assert infer(network, parameters, torch.zeros(1, 0, 5)).shape == (1, 0, 5)
