import pytest
import torch
from scipy.stats import norm

from fedgraph.graphical.inference.conditional import conditional
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.support.errors import DataError


def test_with_unknown_neighbours_it_is_the_true_conditional_distribution(gaussian):
    """Of the features 1 and 2 given 0 and 3 or 4, in closed form; the value of a target in the rows does not count."""
    network, parameters, covariance = gaussian()
    rows = torch.full((1, 30, 5), torch.nan)
    rows[0, :, 0], rows[0, :, 4], rows[0, :, 1] = torch.linspace(-2, 2, 30), 1.0, 7.0
    found = conditional(network, parameters, rows, ["x1", "x2"], ["a"], 0, draws=400)
    known, targets = torch.tensor([0, 4]), torch.tensor([1, 2])
    weights = torch.linalg.solve(covariance[known][:, known], covariance[known][:, targets]).T
    mean = rows[0, :, known] @ weights.T
    deviation = (covariance[targets][:, targets] - weights @ covariance[known][:, targets]).diagonal().sqrt()
    assert found.units.tolist() == [1, 2]
    assert torch.allclose(found.mean[0], mean, atol=0.15)
    assert (found.mean[0] - mean).mean().abs() < 0.03
    assert torch.allclose(found.deviation[0].mean(0), deviation, atol=0.03)
    levels = torch.tensor([0.1, 0.5, 0.9])
    wanted = mean[:, None] + deviation * torch.special.ndtri(levels)[:, None]
    assert (found.quantiles(levels.tolist())[0] - wanted).abs().mean() < 0.06


def test_with_all_neighbours_known_it_is_exact(gaussian):
    network, parameters, _ = gaussian()
    rows = torch.randn(1, 10, 5, generator=torch.Generator().manual_seed(0))
    rows[..., 0] = torch.nan
    found = conditional(network, parameters, rows, ["x2"], ["a"], 0)
    assert found.expected.shape == (1, 10, 1, 1)
    prediction = network.forward(parameters, rows)[0, :, 2]
    assert torch.allclose(found.mean[0, :, 0], prediction, atol=1e-6)
    noise = network.state(parameters)["residual"][0, 2].sqrt()
    for place, level in enumerate((0.01, 0.7)):
        wanted = prediction + noise * norm.ppf(level)
        assert torch.allclose(found.quantiles([0.01, 0.7])[0, :, place, 0], wanted.float(), atol=1e-4)


def test_probabilities_take_into_account_what_neighbours_may_be(mixed):
    """P(place | size): the feature ill between the two is unknown."""
    schema, rows = mixed(4000)
    graph = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
    settings = NGMSettings(epochs=15, learning_rate=0.01)
    fit = fit_ngm(schema, graph, [rows[:3500]], [rows[3500:]], ["a"], settings, 0)
    asked = torch.full((1, 3, 6), torch.nan)
    asked[0, :, 0] = torch.tensor([0.1, 0.5, 0.9])
    found = conditional(fit.network, fit.parameters, asked, ["place"], ["a"], 0, draws=500).mean[0]
    ill = torch.tensor([0.18, 0.5, 0.82])[:, None]
    wanted = (1 - ill) * torch.tensor([2 / 3, 1 / 3, 0]) + ill * torch.tensor([0, 1 / 3, 2 / 3])
    assert torch.allclose(found, wanted, atol=0.07)
    assert torch.allclose(found.sum(1), torch.ones(3), atol=1e-5)


def test_what_cannot_be_asked_is_refused(gaussian):
    network, parameters, _ = gaussian()
    with pytest.raises(DataError, match="no feature 'y'"):
        conditional(network, parameters, torch.zeros(1, 2, 5), ["y"], ["a"], 0)
    with pytest.raises(DataError, match="between 0 and 1"):
        conditional(network, parameters, torch.zeros(1, 2, 5), ["x1"], ["a"], 0).quantiles([1.5])
