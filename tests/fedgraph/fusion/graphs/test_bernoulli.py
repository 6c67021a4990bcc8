import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedgraph.fusion.graphs import drawn
from fedgraph.fusion.graphs.bernoulli import SMALLEST, GumbelGraph, InverseCdfGraph
from fedgraph.fusion.graphs.drawn import Draw, Workspace, propagate
from fedgraph.support.errors import ExperimentError

OWNERS = 6


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def fixed(kind, probability, owners=OWNERS, temperature=0.1, **options):
    graph = kind(owners, random(), temperature, **options)
    with torch.no_grad():
        graph.theta.fill_(probability)
    return graph


@pytest.mark.parametrize("kind", [InverseCdfGraph, GumbelGraph])
def test_probabilities_start_uniform_and_are_parameters_on_another_device_too(kind):
    graph = kind(100, random())
    assert graph.theta.shape == (4950,)
    assert stats.kstest(graph.theta.detach().numpy(), "uniform").pvalue > 1e-3
    assert [(name, each.device.type) for name, each in graph.to("meta").named_parameters()] == [("theta", "meta")]


@pytest.mark.parametrize("kind", [InverseCdfGraph, GumbelGraph])
def test_drawn_graphs_are_symmetric_have_no_loops_and_differ(kind):
    graphs = kind(OWNERS, random()).draw(3, random(1)).detach()
    assert torch.equal(graphs, graphs.mT)
    assert (graphs.diagonal(dim1=1, dim2=2) == 0).all()
    assert ((graphs >= 0) & (graphs <= 1)).all()
    assert not torch.equal(graphs[0], graphs[1])


def test_inverse_cdf_is_equation_9():
    graph = InverseCdfGraph(OWNERS, random(), 0.3, reference="Laplace", options={"scale": 2.0})
    found = graph.draw(2, random(5)).detach()
    uniform = torch.empty(2, 15).uniform_(2**-24, 1, generator=random(5)).double().numpy()
    s = stats.laplace.ppf(uniform, scale=2)
    z = 1 / (1 + np.exp(-(stats.laplace.ppf(graph.theta.detach().double().numpy(), scale=2) - s) / 0.3))
    rows, columns = np.triu_indices(OWNERS, 1)
    np.testing.assert_allclose(found.numpy()[:, rows, columns], z, rtol=1e-3, atol=1e-5)


def test_gumbel_is_the_first_entry_of_the_softmax():
    graph = GumbelGraph(OWNERS, random(), 0.3)
    found = graph.draw(2, random(5)).detach()
    generator = random(5)
    g1, g2 = (-(-torch.empty(2, 15).uniform_(2**-24, 1, generator=generator).log()).log() for _ in range(2))
    theta = graph.theta.detach()
    both = torch.stack([(theta.log() + g1) / 0.3, ((1 - theta).log() + g2) / 0.3], -1)
    rows, columns = torch.triu_indices(OWNERS, OWNERS, 1)
    torch.testing.assert_close(found[:, rows, columns], both.softmax(-1)[..., 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_gumbel_and_inverse_cdf_agree_in_expectation_at_a_low_temperature(probability):
    means = []
    for kind, options in (
        (GumbelGraph, {}),
        (InverseCdfGraph, {}),
        (InverseCdfGraph, {"reference": "Cauchy"}),
        (InverseCdfGraph, {"reference": "Logistic"}),
        (InverseCdfGraph, {"reference": "Gumbel"}),
        (InverseCdfGraph, {"reference": "Uniform"}),
    ):
        graph = fixed(kind, probability, 2, 0.01, **options)
        means.append(float(graph.draw(40_000, random(3)).detach()[:, 0, 1].mean()))
    # Four standard errors of the mean of 40,000 draws.
    assert np.abs(np.array(means) - probability).max() < 4 * math.sqrt(0.25 / 40_000)


@pytest.mark.parametrize("reference", ["Normal", "Laplace", "Cauchy", "Gumbel", "Logistic", "Uniform"])
def test_every_reference_gives_probabilities_a_derivative(reference):
    graph = fixed(InverseCdfGraph, 0.4, 2, 0.5, reference=reference)
    graph.draw(2000, random())[:, 0, 1].mean().backward()
    assert 0.3 < float(graph.theta.grad) < 3


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        ("Norml", {}, "is not in torch.distributions"),
        ("StudentT", {"df": 3.0}, "no inverse CDF"),
        ("Normal", {"scale": -1.0}, "scale"),
        ("Normal", {"wide": 1.0}, "wide"),
        ("constraints", {}, "not in torch.distributions"),
    ],
)
def test_a_reference_that_cannot_be_used_is_refused_at_once(reference, options, message):
    with pytest.raises(ExperimentError, match=message):
        InverseCdfGraph(OWNERS, random(), reference=reference, options=options)


def test_probabilities_stay_in_their_range():
    graph = InverseCdfGraph(OWNERS, random())
    with torch.no_grad():
        graph.theta[0], graph.theta[1] = -3.0, 3.0
    assert graph.draw(1, random()).isfinite().all()
    graph.constrain()
    torch.testing.assert_close(graph.theta[:2].detach(), torch.tensor([SMALLEST, 1 - SMALLEST]))
    expected = graph.expected().detach()
    assert expected[0, 1] == pytest.approx(SMALLEST)
    assert expected[2, 0] == pytest.approx(1 - SMALLEST)
    assert torch.equal(expected, expected.T)
    assert (expected.diagonal() == 0).all()


# ---- products with drawn graphs


def draw_of(graph, shared, workers=1):
    return Draw(
        graph.noise, graph.temperature, graph.upper, graph.entries, graph.owners, 9, shared, workers, Workspace()
    )


def dense(graph, levels, features, counted, shared):
    """The same by a dense matrix per sample, as the equation has it; blocks as in the module."""
    draw = draw_of(graph, shared)
    products = []
    for number, rows in enumerate(draw.blocks(len(features), features.device)):
        noise = graph.noise(torch.empty(1 if shared else rows.stop - rows.start, len(levels), dtype=levels.dtype),
                            torch.Generator().manual_seed(drawn.derive_seed(9, "graphs", number)))  # fmt: skip
        triangles = ((levels - noise) / graph.temperature).sigmoid()
        for sample in range(rows.start, rows.stop):
            whole = torch.zeros(OWNERS, OWNERS, dtype=levels.dtype)
            upper = torch.triu_indices(OWNERS, OWNERS, 1)
            whole = whole.index_put((upper[0], upper[1]), triangles[0 if shared else sample - rows.start])
            with_loops = whole + whole.T + torch.eye(OWNERS, dtype=levels.dtype)
            scale = torch.diag((with_loops @ counted[sample]).clamp(min=1).rsqrt())
            products.append((scale @ with_loops @ scale @ features[sample].T).T)
    return torch.stack(products)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [InverseCdfGraph, GumbelGraph])
def test_products_and_their_derivatives_are_those_of_dense_graphs(kind, shared, monkeypatch):
    monkeypatch.setattr(drawn, "_BLOCK_ENTRIES", 2 * OWNERS**2)
    graph = kind(OWNERS, random(), 0.4).double()
    features = torch.randn(5, 3, OWNERS, generator=random(2), dtype=torch.double)
    counted = (torch.rand(5, OWNERS, generator=random(3)) > 0.4).double()
    weights = torch.randn(5, 3, OWNERS, generator=random(4), dtype=torch.double)
    assert len(draw_of(graph, shared).blocks(5, features.device)) == (1 if shared else 3)
    gradients = []
    for product in (
        lambda *given: propagate(*given, draw_of(graph, shared)),
        lambda *given: dense(graph, *given, shared),
    ):
        levels = torch.randn(15, generator=random(5), dtype=torch.double).requires_grad_()
        inputs = features.clone().requires_grad_()
        out = product(levels, inputs, counted)
        gradients.append((out.detach(), *torch.autograd.grad((out * weights).sum(), (levels, inputs))))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert gradients[0][1].abs().min() > 0


@pytest.mark.parametrize("kind", [InverseCdfGraph, GumbelGraph])
def test_samples_meet_graphs_of_their_own_and_workers_change_nothing(kind, monkeypatch):
    monkeypatch.setattr(drawn, "_BLOCK_ENTRIES", 2 * OWNERS**2)
    graph = kind(OWNERS, random())
    features, counted = torch.ones(7, 2, OWNERS), torch.ones(7, OWNERS)
    results = []
    for workers in (1, 3):
        graph.workers = workers
        graph.theta.grad = None
        out = graph.propagate(features, counted, random(1))
        (out.square().sum()).backward()
        results.append((out.detach(), graph.theta.grad.clone()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert len(results[0][0].flatten(1).unique(dim=0)) == 7
    shared = graph.propagate(features, counted, random(1), shared=True)
    assert len(shared.detach().flatten(1).unique(dim=0)) == 1
    assert not torch.equal(graph.propagate(features, counted, random(2)), results[0][0])


def test_one_owner_has_a_graph_without_edges():
    graph = InverseCdfGraph(1, random())
    features = torch.randn(3, 2, 1)
    assert torch.equal(graph.propagate(features, torch.ones(3, 1), random()), features)
    assert torch.equal(graph.draw(2, random()), torch.zeros(2, 1, 1))


def test_memory_that_is_used_again_mixes_nothing_up():
    graph = InverseCdfGraph(OWNERS, random(), 0.5)
    counted = torch.ones(4, OWNERS)
    inputs = [torch.randn(4, 2, OWNERS, generator=random(number)) for number in (1, 2)]

    def gradient(*numbers):
        graph.theta.grad = None
        outs = [graph.propagate(inputs[number], counted, random(number)) for number in numbers]
        sum(out.square().sum() for out in outs).backward()
        return graph.theta.grad.clone()

    apart = gradient(0) + gradient(1)
    torch.testing.assert_close(gradient(0, 1), apart)
    with torch.no_grad():
        graph.propagate(inputs[0], counted, random(3), shared=True)
    torch.testing.assert_close(gradient(1, 0), apart)


def test_a_second_backward_pass_is_refused_rather_than_wrong():
    graph = InverseCdfGraph(OWNERS, random())
    out = graph.propagate(torch.ones(2, 1, OWNERS), torch.ones(2, OWNERS), random()).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="first backward pass"):
        out.backward()
