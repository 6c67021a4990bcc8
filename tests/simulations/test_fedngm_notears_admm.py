"""Weights of linear models that clients agree on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad

from fedgraph.simulations.fedngm.notears_admm import _Server, _weights_of_client, agreed_weights, edges


def test_a_network_is_found_where_all_units_have_noise_of_one_variance():
    random = np.random.default_rng(0)
    a, b, c, apart, d, e = random.standard_normal((6, 6000))
    c += a + b
    e += c
    blocks = np.array_split(np.column_stack([a, b, c, apart, d, e]), 3)
    unit_feature = np.array([0, 1, 2, 2, 3, 4])
    weights = agreed_weights([np.cov(block.T) for block in blocks], unit_feature)
    within = unit_feature[:, None] == unit_feature
    assert not weights[within].any()
    assert np.argwhere(edges(weights, unit_feature, 5)).tolist() == [[0, 2], [1, 2], [2, 4]]
    assert _Server(unit_feature).cyclicity(weights)[0] == pytest.approx(0, abs=1e-6)


def test_clients_agree_on_weights_in_between():
    linked, apart = np.array([[1.0, 0.98], [0.98, 1.96]]), np.diag([1.0, 1.96])
    alone, both = agreed_weights([linked], np.arange(2)), agreed_weights([linked, apart], np.arange(2))
    assert alone[0, 1] == pytest.approx(0.97, abs=0.01)
    assert both[0, 1] == pytest.approx(0.48, abs=0.02)
    assert alone[1, 0] == pytest.approx(0, abs=1e-4)


def test_the_weights_of_a_client_are_a_minimum_without_those_within_features():
    random = np.random.default_rng(0)
    share = np.corrcoef(random.standard_normal((50, 5)).T) / 2
    pull, unit_feature = random.standard_normal((5, 5)), np.array([0, 0, 1, 2, 2])
    weights = _weights_of_client(share, pull, 0.3, unit_feature)
    gradient = share @ weights - share + 0.3 * weights - pull
    within = unit_feature[:, None] == unit_feature
    assert not weights[within].any()
    assert np.abs(gradient[~within]).max() < 1e-12


def test_cycles_between_features_count_and_within_them_do_not():
    server = _Server(np.array([0, 0, 1, 2]))
    weights = np.zeros((4, 4))
    weights[0, 2] = weights[1, 3] = weights[2, 3] = 0.7
    assert server.cyclicity(weights)[0] == pytest.approx(0)
    weights[2, 1] = 0.7
    # Back to the first feature through its other unit.
    assert server.cyclicity(weights)[0] > 0.1
    random = np.random.default_rng(0)

    def value(flat):
        return server.cyclicity(flat.reshape(4, 4))[0]

    def gradient(flat):
        return server.cyclicity(flat.reshape(4, 4))[1].ravel()

    assert check_grad(value, gradient, random.standard_normal(16) / 2) < 1e-5


def test_the_weakest_edges_of_a_cycle_are_left_out():
    weights = np.zeros((4, 4))
    weights[0, 2], weights[2, 3], weights[3, 1], weights[3, 0] = -0.9, 0.5, 0.4, 0.2
    found = edges(weights, np.array([0, 0, 1, 2]), 4)
    assert np.argwhere(found).tolist() == [[0, 1], [1, 2]], "feature 0 has both units 0 and 1, feature 3 none"
