import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from fedgraph.graphical.recovery.correlation import correlation, moments, standardised
from fedgraph.graphical.recovery.settings import RecoverySettings
from fedgraph.graphical.recovery.uglad import (
    consensus,
    initial_parameters,
    log_determinant,
    minimiser,
    split,
    uglad_precisions,
    unroll,
)
from fedgraph.support.randomness import generator


def symmetric(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values + values.mT


def test_the_minimiser_solves_its_equation():
    b, lambda_ = symmetric(2, 3, 4, 4), torch.rand(2, 3, dtype=torch.float64) + 0.1
    found = minimiser(b, lambda_)
    for at in np.ndindex(2, 3):
        matrix, size = b[at].numpy(), float(lambda_[at])
        root = np.real(sqrtm(matrix.T @ matrix + 4 / size * np.eye(4)))
        np.testing.assert_allclose(found[at], (-matrix + root) / 2, atol=1e-10)
        # It is the minimiser of -log det P + lambda/2 |P + b|_F^2, up to the factor of lambda.
        np.testing.assert_allclose(found[at] + matrix, np.linalg.inv(found[at].numpy()) / size, atol=1e-10)


@pytest.mark.parametrize("matrix", ["random", "identity", "zero"])
def test_its_gradient_also_where_eigenvalues_are_equal(matrix):
    b = {"random": symmetric(2, 3, 3), "identity": torch.eye(3).double().repeat(2, 1, 1), "zero": torch.zeros(2, 3, 3)}
    lambda_ = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)

    def of(values, size):
        return minimiser((values + values.mT) / 2, size)

    assert torch.autograd.gradcheck(of, (b[matrix].double().requires_grad_(), lambda_))


def test_the_log_determinant_goes_on_below_zero():
    values = symmetric(5, 4, 4)
    positive = values @ values + 0.1 * torch.eye(4)
    np.testing.assert_allclose(log_determinant(positive), torch.logdet(positive), rtol=1e-10)
    assert torch.autograd.gradcheck(lambda m: log_determinant((m + m.mT) / 2), positive.requires_grad_())
    # The straight line that touches the logarithm at 1/100.
    below = torch.diag(torch.tensor([1.0, -0.5])).double().requires_grad_()
    result = log_determinant(below)
    assert float(result.detach()) == pytest.approx(np.log(0.01) + (-0.5 - 0.01) / 0.01)
    result.backward()
    assert below.grad.diagonal().tolist() == pytest.approx([1, 100])


def test_unrolling_is_what_the_equations_say():
    parameters = torch.stack([initial_parameters(generator(0, name)) for name in "ab"])
    start, *layers = split(parameters)
    networks = {"rho": layers[:6], "lambda": layers[6:]}
    units = standardised(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)))
    tables = torch.stack([correlation(moments(units[:at])) for at in (30, 40, 50, 20)]).float().reshape(2, 2, 3, 3)
    found = unroll(parameters, tables, 2)

    def perceptron(name, client, *inputs):
        weights = [layer[client].numpy().astype(np.float64) for layer in networks[name]]
        values = np.array(inputs, dtype=np.float64)[:, None]
        for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            values = np.tanh(weight @ values + bias)
        return float((1 / (1 + np.exp(-(weights[-2] @ values + weights[-1]))))[0, 0])

    for client, table in np.ndindex(2, 2):
        given = tables[client, table].numpy().astype(np.float64)
        theta = np.linalg.inv(given + float(start[client, 0, 0]) * np.eye(3))
        lambda_ = perceptron("lambda", client, 1, 0)
        for _ in range(2):
            b = given / lambda_ - theta
            half = (-b + np.real(sqrtm(b.T @ b + 4 / lambda_ * np.eye(3)))) / 2
            following = np.empty((3, 3))
            for at in np.ndindex(3, 3):
                rho = perceptron("rho", client, half[at], given[at], theta[at])
                following[at] = np.sign(half[at]) * max(abs(half[at]) - rho, 0)
            lambda_ = perceptron("lambda", client, ((following - half) ** 2).sum(), lambda_)
            theta = following
        np.testing.assert_allclose(found[client, table], theta, atol=1e-5)


def test_networks_start_as_linear_layers_do():
    drawn = torch.stack([initial_parameters(generator(at, "network")) for at in range(200)])
    start, *layers = split(drawn)
    assert bool((start == 1).all())
    np.testing.assert_allclose(layers[5].sigmoid(), 0.1, rtol=1e-6)
    for at, layer in enumerate(layers[:5] + layers[6:]):
        inputs = (3, 3, 3, 3, 3, 2, 2, 3, 3)[at]
        assert 0.97 < float(layer.abs().max()) * inputs**0.5 <= 1, at
        assert abs(float(layer.mean())) < 0.1


def tables_of(clients, seed=0):
    rows = [
        standardised(torch.randn(60, 4, generator=torch.Generator().manual_seed(seed + at))) for at in range(clients)
    ]
    return torch.stack([torch.stack([correlation(moments(each)), correlation(moments(each[:50]))]) for each in rows])


CHAIN = torch.tensor([[0.6 ** abs(i - j) for j in range(6)] for i in range(6)])


def test_learning_lowers_the_loss_towards_that_of_the_inverse():
    def loss(precision):
        return float((CHAIN * precision).sum() - torch.logdet(precision))

    def learned(epochs):
        return uglad_precisions(CHAIN[None, None], CHAIN[None], [generator(0, "a")], RecoverySettings(epochs=epochs))

    least = loss(torch.linalg.inv(CHAIN))
    start, end = loss(learned(1)[0, 0]), loss(learned(40)[0, 0])
    assert least < end
    assert end - least < 0.1 * (start - least)


def test_networks_find_edges_whatever_they_start_from():
    draws = [generator(0, str(at)) for at in range(20)]
    found = uglad_precisions(CHAIN.repeat(20, 1, 1, 1), CHAIN.repeat(20, 1, 1), draws, RecoverySettings(epochs=20))
    assert min(int((each.abs() > 0.1).sum() - 6) // 2 for each in found[:, 0]) == 5


def test_clients_learn_apart():
    tables = tables_of(3)
    draws = [generator(0, str(at)) for at in range(3)]
    together = uglad_precisions(tables, tables[:, 0], draws, RecoverySettings(steps=3, epochs=5))
    alone = uglad_precisions(tables[1:2], tables[1:2, 0], [generator(0, "1")], RecoverySettings(steps=3, epochs=5))
    np.testing.assert_allclose(together[1:2], alone, atol=1e-5)


def test_consensus_is_the_smallest_size_with_the_sign_of_most():
    tables = torch.tensor([[[2.0, -0.5], [-0.5, 1]], [[3, -0.2], [-0.2, 1]], [[2.5, 0.3], [0.3, 4]]])
    np.testing.assert_allclose(consensus(tables), [[2, -0.2], [-0.2, 1]])
    lacking = torch.tensor([[[1.0, 0.4], [0.4, 1]], [[1, 0], [0, 1]]])
    np.testing.assert_allclose(consensus(lacking), np.eye(2))
