import numpy as np
import pytest
import torch

from fedgraph.graphical.learning.dependence import derivatives
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.penalties import PathPenalty, SparsePaths, matrix_norm, paths
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.support.randomness import generator

PLAIN = {"architecture": "path-norm", "loss": "squared", "hidden": 4, "path-rows": "plain", "path-norm": "l1"}


def plain(features, numbers, chain_graph, **settings):
    """The paper's network over a chain, a random model of it, and the matrices of that, inputs first."""
    made = NGRSettings(architecture="path-norm", loss="squared", hidden=4, **settings)
    network = Network(numbers(features), chain_graph(features), made)
    state = network.state(network.initial(generator(3))[None])
    names = ("hidden.0.weight", "hidden.1.weight", "head.weight")
    return network, state, [abs(state[name].reshape(-1, state[name].shape[-1]).T.numpy()) for name in names]


def rows_of_length_one(matrix):
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


def test_paths_are_products_of_absolute_weights(numbers, chain_graph):
    network, state, (first, second, head) = plain(3, numbers, chain_graph)
    assert paths(network, state)[0].numpy() == pytest.approx((first @ second @ head).T, rel=1e-5)
    once = rows_of_length_one(first) @ rows_of_length_one(second)
    wanted = rows_of_length_one(once) @ rows_of_length_one(head)
    assert paths(network, state, normalised=True)[0].numpy() == pytest.approx(wanted.T, rel=1e-5)


def test_paths_of_a_masked_network_bound_its_derivatives(chain, numbers, chain_graph):
    rows = chain(50, 3)[None]
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    parameters = network.with_moments(network.initial(generator(3))[None], rows)
    state = network.state(parameters)
    deviation = state["deviation"][0]
    bound = paths(network, state)[0] * deviation[:, None] / deviation
    found = derivatives(network, parameters, rows).largest[0]
    assert (found <= bound + 1e-6).all()
    assert (bound[~chain_graph(3)] == 0).all()
    one = state["head.weight"][0, 1].abs() @ state["hidden.1.weight"][0, 1].abs()
    assert paths(network, state)[0, 1, 2] == pytest.approx(float(one @ state["hidden.0.weight"][0, 1, :, 2].abs()))


def test_norms_are_those_of_the_paper_which_has_inputs_first():
    matrix = np.array([[1.0, 2, 0], [3, 0, 0.5]])
    norms = {"spectral": np.linalg.norm(matrix, 2), "l1": 6.5, "column-sum": 4.0}
    for name, wanted in norms.items():
        assert matrix_norm(torch.tensor(matrix.T)[None], name).tolist() == pytest.approx([wanted])


def test_paths_that_were_there_before_do_not_count(numbers, chain_graph):
    network, state, (first, second, head) = plain(4, numbers, chain_graph, path_norm="l1", path_rows="plain")
    before = {name: values.clone() for name, values in state.items()}
    before["head.weight"][:, 1:] = 0
    found = PathPenalty(network.settings, gamma=0.5, before=before)
    new = (first @ second @ head) * [0, 1, 1, 1]
    symmetric = (new + new.T) / 2
    wanted = network.settings.path_weight * (symmetric * (1 - chain_graph(4).numpy())).sum() + 0.5 * symmetric.sum()
    assert found(network, state)[0].tolist() == pytest.approx([wanted / 16], rel=1e-4)
    largest = (new * (1 - chain_graph(4).numpy())).max()
    assert found.excess(network, state).tolist() == pytest.approx([largest - network.settings.path_tolerance], rel=1e-4)


@pytest.mark.parametrize("log", [True, False])
def test_equation_1(log, numbers, chain_graph):
    settings = {"path_norm": "l1", "path_rows": "plain", "path_log": log, "path_weight": 0.5}
    network, state, (first, second, head) = plain(4, numbers, chain_graph, **settings)
    forbidden = 1 - chain_graph(4).numpy()
    norm = ((first @ second @ head) * forbidden).sum() / 16
    found = PathPenalty(network.settings)
    assert found(network, state).flatten().tolist() == pytest.approx([0.5 * (np.log(norm) if log else norm)], rel=1e-5)
    assert not found.chooses


def test_equation_1_counts_paths_that_were_there_before_and_its_tolerance_does_not(numbers, chain_graph):
    """Section 2.4: what is stitched is trained by eq. 1, in which all paths are."""
    settings = NGMSettings.model_validate({**PLAIN, "path-log": True, "path-tolerance": 0.0})
    network = Network(numbers(3), chain_graph(3), settings)
    state = network.state(network.initial(generator(3))[None])
    before = {name: values * (0.75 if name == "head.weight" else 1) for name, values in state.items()}
    of_all, stitched = PathPenalty(settings), PathPenalty(settings, before=before)
    assert torch.equal(stitched(network, state), of_all(network, state))
    assert stitched.excess(network, state) == pytest.approx(0.25 * of_all.excess(network, state).item(), rel=1e-4)
    assert stitched.excess(network, before) == 0


def test_equation_5(numbers):
    settings = {"path_norm": "column-sum", "path_rows": "plain", "path_weight": 2.0}
    network, state, (first, second, head) = plain(4, numbers, lambda count: torch.ones(count, count).bool(), **settings)
    product = first @ second @ head
    both = (product + product.T) / 2
    wanted = 2 * np.diag(both).max() / 16 + 0.3 * both.sum(0).max() / 16
    found = PathPenalty(network.settings, gamma=0.3)
    assert found(network, state).flatten().tolist() == pytest.approx([wanted], rel=1e-5)
    assert found.chooses
    beyond = np.diag(product).max() - network.settings.path_tolerance
    assert found.excess(network, state).tolist() == pytest.approx([max(beyond, 0)], rel=1e-5)


def test_hidden_units_that_cancel_out_do_not_lower_the_penalty(chain, numbers, chain_graph):
    """Two units more read feature 0 and give it to its neighbour 1 with opposite signs, so that nothing changes.

    Only where paths are normalised does the forbidden path from 0 to 2 seem to fade.
    """
    rows = chain(20, 3)[None]

    def model(decoys, **settings):
        made = NGMSettings(
            architecture="path-norm", loss="squared", layers=1, hidden=4, path_norm="l1", path_log=False, **settings
        )
        network = Network(numbers(3), chain_graph(3), made)
        row = network.initial(generator(3))[None]
        state = network.layout.unflatten(row)
        state["hidden.0.weight"][0, 0, 2:] = torch.tensor([5.0, 0, 0]) if decoys else 0
        state["hidden.0.bias"][0, 0, 2:] = 0
        state["head.weight"][0, :, 2:] = 0
        state["head.weight"][0, 1, 2:] = torch.tensor([5.0, -5.0]) if decoys else 0
        penalty = PathPenalty(made)
        return network.forward(row, rows), penalty(network, state), penalty.excess(network, state)

    before, after = model(False, path_rows="plain"), model(True, path_rows="plain")
    assert torch.allclose(before[0], after[0], atol=1e-5)
    assert after[1] >= before[1] > 0
    assert after[2] >= before[2] > 0
    assert model(True)[1] < 0.7 * model(False)[1]
    assert torch.equal(model(True)[2], model(False)[2])


def test_sparse_paths_count_whole_features_by_what_their_mean_would_lose(mixed):
    schema, rows = mixed(100)
    network = Network(schema, torch.ones(4, 4).bool(), NGRSettings(hidden=4))
    parameters = network.with_moments(network.initial(generator(3))[None], rows[None])
    state = network.state(parameters)
    strengths, blocks = paths(network, state)[0].numpy(), [[0], [1], [2, 3, 4], [5]]
    lengths = [[np.linalg.norm(strengths[np.ix_(to, source)]) for source in blocks] for to in blocks]
    lost = network.heads.marginal_losses(state["mean"], state["deviation"])[0].numpy() / 6
    wanted = 0.3 * lost * np.array(lengths).sum(1)
    assert SparsePaths(0.3)(network, state)[0].tolist() == pytest.approx(wanted.tolist(), rel=1e-4)
    # Units that cancel out, and scale that is moved from one layer to the next, gain nothing.
    moved = dict(state)
    moved["hidden.0.weight"], moved["hidden.1.weight"] = state["hidden.0.weight"] / 10, state["hidden.1.weight"] * 10
    assert torch.allclose(SparsePaths(0.3)(network, moved), SparsePaths(0.3)(network, state), rtol=1e-4)
    assert SparsePaths(0.3).chooses
