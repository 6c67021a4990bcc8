import numpy as np
import pytest
import torch

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.inference.full_conditionals import FARTHEST
from fedgraph.graphical.inference.gibbs import chains
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings


def sampled(network, parameters, rows, sweeps, overrelaxation):
    found, noise = blank_chains(network, parameters, rows)
    found.run(sweeps, overrelaxation, noise)
    return found.rows[0]


def blank_chains(network, parameters, rows, bounded=False):
    blank = torch.full((1, rows, len(network.schema.unit_feature)), torch.nan)
    return chains(network, parameters, blank, [torch.Generator().manual_seed(0)], bounded)


@pytest.mark.parametrize("overrelaxation", [0.0, 0.5])
def test_true_conditionals_give_the_joint_distribution(gaussian, overrelaxation):
    network, parameters, covariance = gaussian(0.9, mean=3)
    samples = sampled(network, parameters, 40_000, 60, overrelaxation)
    assert torch.allclose(samples.T.cov(), covariance, atol=0.03)
    assert torch.allclose(samples.mean(0), torch.full((5,), 3.0), atol=0.03)


def test_overrelaxation_needs_fewer_sweeps(gaussian):
    network, parameters, covariance = gaussian(0.95)
    plain, overrelaxed = (
        float((sampled(network, parameters, 20_000, 8, share).T.cov() - covariance).abs().max()) for share in (0.0, 0.5)
    )
    assert overrelaxed < 0.6 * plain


def test_a_sweep_is_a_draw_of_one_class_after_the_other(gaussian):
    """x' = m - a (x - m) + sqrt(1 - a^2) s e, of the features 1, 3 given the others and then the others given them."""
    network, parameters, _ = gaussian()
    first, second = (sampled(network, parameters, 50_000, sweeps, 0.5) for sweeps in (1, 2))
    noise = network.state(parameters)["residual"][0].sqrt()
    mean = network.forward(parameters, first[None])[0, :, [1, 3]]
    left = second[:, [1, 3]] - (mean - 0.5 * (first[:, [1, 3]] - mean))
    assert torch.allclose(left.std(0), 0.75**0.5 * noise[[1, 3]], rtol=0.02)
    assert torch.corrcoef(torch.cat([left, first], 1).T)[:2, 2:].abs().max() < 0.02
    left = first[:, [0, 2, 4]] - network.forward(parameters, first[None])[0, :, [0, 2, 4]]
    assert torch.allclose(left.std(0), noise[[0, 2, 4]], rtol=0.02)


def test_what_nothing_holds_stays_near(gaussian):
    """Predictions that grow from sweep to sweep."""
    network, parameters, _ = gaussian(0.8, mean=1)
    state = network.state(parameters)
    state["head.weight"] = state["head.weight"] * 3
    samples = sampled(network, network.layout.flatten(state), 50, 40, 0.5)
    assert (samples - 1).abs().max() == pytest.approx(FARTHEST)


def test_centring_tells_by_how_much_predictions_are_off(gaussian):
    network, parameters, _ = gaussian()
    off = torch.tensor([0.1, -0.2, 0.0, 0.3, 0.0])
    state = network.state(parameters)
    state["head.bias"] = state["head.bias"] + off
    found, noise = blank_chains(network, network.layout.flatten(state), 8192)
    shifts = found.centring(30, 0.5, noise)[:, 0, :, 0]
    assert torch.allclose(shifts[-1], -off, atol=0.03)
    assert torch.equal(shifts[15:], shifts[-1].expand(15, 5))
    assert len(set(map(tuple, shifts[:16].tolist()))) == 16, "each sweep has its own until half of them are done"
    assert torch.allclose(found.rows[0].mean(0), torch.zeros(5), atol=0.03)


def test_bounded_integers_have_their_mean_and_stay_in_their_range():
    """A count without neighbours, of mean 0.1 and noise 0.3: drawn like numpy's clipped normal of the same mean."""
    schema = Schema((Feature("count", "integer"), Feature("size", "real")))
    network = Network(schema, torch.tensor([[0, 1], [1, 0]]).bool(), NGMSettings(hidden=2, layers=1))
    state = network.state(torch.zeros(1, network.layout.num_parameters))
    state["mean"][:], state["deviation"][:], state["residual"][:] = 0.1, 0.3, 0.09
    parameters = network.layout.flatten(state)
    found, noise = blank_chains(network, parameters, 20_000, bounded=True)
    shift = found.centring(40, 0.0, noise)[-1, 0]
    count, size = found.rows[0].T
    assert (count.min(), count.max()) == (0, 1)
    assert size.min() < -0.5
    assert torch.allclose(found.rows[0].mean(0), torch.tensor([0.1, 0.1]), atol=0.01)
    wanted = np.random.default_rng(0).normal(0.1 + float(shift[0]), 0.3, 20_000).clip(0, 1)
    assert float(shift[0]) < -0.05
    assert wanted.mean() == pytest.approx(0.1, abs=0.01)
    assert float((count == 0).float().mean()) == pytest.approx((wanted == 0).mean(), abs=0.02)
