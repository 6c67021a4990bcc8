import numpy as np
import pytest
import torch

from fedgraph.graph.learning.encoder import GraphEncoder, fit_encoder, largest_per_row, released_weights
from fedgraph.graph.learning.kernel import kernel_graph
from fedgraph.support.errors import GraphError
from fedgraph.support.threads import pinned_threads


@pytest.fixture(autouse=True)
def one_thread():
    with pinned_threads(1):
        yield


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def target(clients=30, neighbours=4):
    points = torch.randn(clients, 3, generator=generator(5))
    return kernel_graph(torch.cdist(points, points).square(), neighbours)


def test_both_forms_are_the_formulas():
    encoder = GraphEncoder(7, generator(), "antisymmetric")
    e1, w1, e2, w2, b1, b2 = (p.detach().numpy() for p in encoder.parameters())
    m1, m2 = np.tanh(3 * (e1 @ w1 + b1)), np.tanh(3 * (e2 @ w2 + b2))
    expected = np.maximum(np.tanh(3 * (m1 @ m2.T - m2 @ m1.T)), 0)
    np.testing.assert_allclose(encoder().detach().numpy(), expected, atol=1e-5)

    encoder = GraphEncoder(7, generator())
    e1, w1 = (p.detach().numpy() for p in encoder.parameters())
    m1 = np.tanh(3 * e1 @ w1)
    expected = np.maximum(np.tanh(3 * m1 @ m1.T), 0) * (1 - np.eye(7))
    np.testing.assert_allclose(encoder().detach().numpy(), expected, atol=1e-5)
    some = torch.tensor([1, 4, 6])
    np.testing.assert_allclose(encoder(some).detach().numpy(), expected[some][:, some], atol=1e-5)


def test_everything_learned_is_a_parameter_and_moves_with_the_module():
    encoder = GraphEncoder(5, generator(), "antisymmetric")
    names = {f"{which}_{what}" for which in ("first", "second") for what in ("embedding", "weight", "bias")}
    assert set(dict(encoder.named_parameters())) == set(encoder.state_dict()) == names
    moved = encoder.to(torch.float64)
    before = {name: value.clone() for name, value in moved.state_dict().items()}
    moved().sum().backward()
    torch.optim.SGD(moved.parameters(), lr=0.1).step()
    assert all(not torch.equal(value, before[name]) for name, value in moved.state_dict().items())


def test_it_is_fitted_until_it_fits():
    wanted, encoder = target(), GraphEncoder(30, generator(), width=60)
    fit = fit_encoder(encoder, wanted)
    off = (encoder().detach() - wanted).norm() / wanted.norm()
    assert fit.error == pytest.approx(float(off), rel=1e-5)
    assert fit.error <= 0.1
    assert 0 < fit.steps < 500
    assert fit_encoder(encoder, wanted).steps == 0


def test_it_learns_where_everything_begins_at_zero_weights():
    encoder = GraphEncoder(10, generator(), width=40)
    with torch.no_grad():  # all behind the ReLU
        encoder.first_embedding.mul_(torch.tensor([1.0, -1.0]).repeat(5)[:, None] * 0.1)
    assert fit_encoder(encoder, target(10), tolerance=0.2).error <= 0.2


def test_clients_that_are_absent_keep_their_embedding():
    encoder, present = GraphEncoder(12, generator()), torch.tensor([0, 2, 3, 5, 8, 9])
    before = encoder.first_embedding.detach().clone()
    fit_encoder(encoder, target(6, 2), present)
    changed = (encoder.first_embedding.detach() != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == present.tolist()


def test_the_released_form_is_random():
    points = torch.randn(40, 5, generator=generator()) + 30 * (torch.arange(40) % 2)[:, None]
    distances = torch.cdist(points, points)
    weights = released_weights(distances, generator(1))
    # Of a pair at most one direction has a weight.
    assert (weights * weights.T == 0).all()
    assert ((weights > 0).sum(dim=1) <= 30).all()
    pairs = ~torch.eye(40, dtype=torch.bool)
    correlation = torch.corrcoef(torch.stack([weights[pairs], distances[pairs]]))[0, 1]
    assert abs(correlation) < 0.1
    # The distribution that the encoder is drawn from decides it, not the data.
    barely = released_weights(distances.flip(0, 1), generator(1))
    assert (barely - weights).norm() < 0.2 * weights.norm()
    assert (released_weights(distances, generator(2)) - weights).norm() > 0.5 * weights.norm()


def test_the_released_form_is_ten_steps_of_gradient_descent_towards_distances():
    distances = torch.cdist(*[torch.randn(9, 4, generator=generator())] * 2)
    wanted = distances / distances.square().sum(dim=1, keepdim=True).sqrt()
    free = [p.detach().clone() for p in GraphEncoder(9, generator(1), "antisymmetric").parameters()]

    def weights(e1, w1, e2, w2, b1, b2):
        products = torch.tanh(3 * (e1 @ w1 + b1)) @ torch.tanh(3 * (e2 @ w2 + b2)).T
        return torch.tanh(3 * (products - products.T)).relu()

    def off(p):
        learned = weights(*p)
        return (learned / learned.square().sum(dim=1, keepdim=True).sqrt() - wanted).square().mean()

    first = weights(*free)
    for _ in range(10):
        slope = torch.func.grad(off)(free)
        free = [p - 0.5 * (g + 0.01 * p) for p, g in zip(free, slope, strict=True)]
    got = released_weights(distances, generator(1), learning_rate=0.5, weight_decay=0.01)
    torch.testing.assert_close(got, weights(*free), rtol=1e-4, atol=1e-5)
    assert (got - first).norm() > 0.1


def test_the_largest_of_each_row_are_kept():
    weights = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 2.0], [0.5, 0.1, 0.0]])
    assert largest_per_row(weights, 1).tolist() == [[0, 3, 0], [2, 0, 0], [0.5, 0, 0]]
    assert torch.equal(largest_per_row(weights, 30), weights)


def test_a_target_of_another_size_is_refused():
    with pytest.raises(GraphError, match=r"6 clients .*\[5, 5\]"):
        fit_encoder(GraphEncoder(6, generator()), torch.zeros(5, 5))
