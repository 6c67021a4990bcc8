import pytest
import torch

from fedgraph.graphical.inference.sampling import SamplingSettings, draw
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.support.errors import DataError

GRAPH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()


@pytest.fixture(scope="module")
def mixed_fit(mixed):
    schema, rows = mixed(3000)
    return fit_ngm(schema, GRAPH, [rows[:2500]], [rows[2500:]], ["a"], NGMSettings(epochs=15, learning_rate=0.01), 0)


def test_samples_of_a_trained_chain_are_like_its_rows(chain, numbers, chain_graph):
    """Neighbours within 0.05 of their correlations, where the released procedure makes 0.6 of 0.8."""
    rows, held_out = chain(5000), chain(1000, seed=1)
    settings = NGMSettings(epochs=12, learning_rate=0.01)
    fit = fit_ngm(numbers(10), chain_graph(10), [rows], [held_out], ["a"], settings, seed=0)
    samples = draw(fit.network, fit.parameters, 20_000, ["a"], 0)[0]
    assert samples.shape == (20_000, 10)
    apart = (torch.corrcoef(samples.T) - torch.corrcoef(rows.T)).abs()
    assert apart.diagonal(1).max() < 0.05
    assert apart.max() < 0.06
    assert torch.allclose(samples.mean(0), rows.mean(0), atol=0.1 * 0.03)
    assert torch.allclose(samples.std(0), rows.std(0), rtol=0.07)


def test_known_features_condition_the_others(gaussian):
    """Mean and covariance of a Gaussian given the features 0 and 3."""
    network, parameters, covariance = gaussian()
    known, unknown = torch.tensor([0, 3]), torch.tensor([1, 2, 4])
    given = torch.tensor([1.5, torch.nan, torch.nan, -1.0, torch.nan])
    samples = draw(network, parameters, 20_000, ["a"], 0, given)[0]
    assert (samples[:, known] == given[known]).all()
    weights = torch.linalg.solve(covariance[known][:, known], covariance[known][:, unknown]).T
    assert torch.allclose(samples[:, unknown].mean(0), weights @ given[known], atol=0.06)
    wanted = covariance[unknown][:, unknown] - weights @ covariance[known][:, unknown]
    assert torch.allclose(samples[:, unknown].T.cov(), wanted, atol=0.04)


def test_known_values_may_differ_from_row_to_row(gaussian):
    network, parameters, _ = gaussian()
    given = torch.full((1, 3000, 5), torch.nan)
    given[0, ::2, 1] = 2.0
    given[0, 1::2, 3] = -2.0
    samples = draw(network, parameters, 3000, ["a"], 0, given)[0]
    assert (samples[::2, 1] == 2).all()
    assert (samples[1::2, 3] == -2).all()
    assert float(samples[::2, 0].mean()) == pytest.approx(1.6, abs=0.07)
    assert float(samples[1::2, 1].mean()) == pytest.approx(-2 * 0.64, abs=0.1)


def test_categories_depend_on_each_other_as_in_the_table(mixed, mixed_fit):
    rows = mixed(20_000, seed=5)[1]
    samples = draw(mixed_fit.network, mixed_fit.parameters, 20_000, ["a"], 0)[0]
    assert ((samples[:, 1:5] == 0) | (samples[:, 1:5] == 1)).all()
    assert (samples[:, 2:5].sum(1) == 1).all()
    for ill in (0, 1):
        some, others = samples[samples[:, 1] == ill], rows[rows[:, 1] == ill]
        assert torch.allclose(some[:, 2:5].mean(0), others[:, 2:5].mean(0), atol=0.04)
        assert float(some[:, 0].mean() - others[:, 0].mean()) == pytest.approx(0, abs=0.03)
    assert torch.allclose(torch.corrcoef(samples.T), torch.corrcoef(rows.T), atol=0.06)


@pytest.mark.parametrize("method", ["gibbs", "released"])
def test_a_graph_in_pieces_is_sampled_whole(chain, numbers, method):
    graph = torch.zeros(5, 5).bool()
    graph[0, 1] = graph[1, 0] = graph[3, 4] = graph[4, 3] = True
    rows = chain(1000, 5)
    fit = fit_ngm(numbers(5), graph, [rows[:800]], [rows[800:]], ["a"], NGMSettings(epochs=20, learning_rate=0.01), 0)
    samples = draw(fit.network, fit.parameters, 2500, ["a"], 0, settings=SamplingSettings(method=method, steps=3))
    assert samples.shape == (1, 2500, 5)
    assert samples.isfinite().all()
    if method == "gibbs":
        assert torch.allclose(samples[0].std(0), rows.std(0), rtol=0.15)
        assert abs(float(torch.corrcoef(samples[0].T)[2, 3])) < 0.06


@pytest.mark.parametrize("count", [0, 1, 2047, 2049])
def test_as_many_rows_as_asked_for(mixed_fit, count):
    settings = SamplingSettings(sweeps=1)
    assert draw(mixed_fit.network, mixed_fit.parameters, count, ["a"], 0, settings=settings).shape == (1, count, 6)


def test_samples_of_a_client_depend_on_its_name_and_the_seed_alone(gaussian):
    network, parameters, _ = gaussian()
    both = torch.cat([parameters, parameters * 0.9])
    samples = draw(network, both, 5000, ["a", "b"], 3)
    alone = draw(network, both[1:], 5000, ["b"], 3)
    assert torch.allclose(samples[1], alone[0], atol=1e-4)
    assert torch.allclose(draw(network, both[1:], 2048, ["b"], 3)[0], alone[0, :2048])
    assert not torch.allclose(draw(network, both[1:], 100, ["b"], 4)[0], alone[0, :100], atol=0.1)
    twins = draw(network, torch.cat([parameters, parameters]), 100, ["a", "b"], 3)
    assert not torch.allclose(twins[0], twins[1], atol=0.1)


@pytest.mark.parametrize("architecture", ["masked", "path-norm"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_centred_models_have_samples_with_the_means_of_the_rows(mixed, architecture, loss):
    """Of a network whose last biases are far off."""
    schema, rows = mixed(3000)
    network = Network(schema, GRAPH, NGMSettings(hidden=6, architecture=architecture, loss=loss))
    start = network.initial(torch.Generator().manual_seed(0))[None]
    state = network.state(network.with_moments(start, rows[None]))
    state["head.bias"] = state["head.bias"] + 0.4
    state["residual"] = state["residual"] + 0.01
    parameters = network.layout.flatten(state)
    apart = []
    for is_centred in (False, True):
        settings = SamplingSettings(centred=is_centred)
        samples = draw(network, parameters, 8000, ["a"], 0, settings=settings)[0]
        apart.append((samples.mean(0) - rows.mean(0)).abs().max())
    assert apart[1] < 0.03 < 0.1 < apart[0]


def test_what_is_given_has_to_fit(gaussian):
    network, parameters, _ = gaussian()
    with pytest.raises(DataError, match=r"\[1, 3, 5\] .*\[1, 4, 5\]"):
        draw(network, parameters, 4, ["a"], 0, torch.zeros(1, 3, 5))
