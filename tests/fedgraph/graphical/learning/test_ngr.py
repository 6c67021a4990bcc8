import pytest
import torch

from fedgraph.graphical.learning.ngr import fit_ngr
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGRSettings

QUICK = NGRSettings(hidden=8, epochs=12, learning_rate=0.02, batch_size=512)


def f1(found, wanted):
    right = (found & wanted).sum()
    return float(2 * right / (found.sum() + wanted.sum()))


def test_the_graph_of_a_chain_is_found_and_then_holds(chain, numbers, chain_graph):
    rows, held_out = chain(5000), chain(1000, seed=1)
    found = fit_ngr(numbers(10), [rows], [held_out], ["a"], QUICK, seed=0)
    assert f1(found.adjacency[0], chain_graph(10)) > 0.9
    strengths = found.dependencies[0]
    # The coefficients of the true conditional: 0.7 at the ends, else 0.7 / 1.49.
    assert strengths[chain_graph(10)].min() > 0.35
    assert strengths[~chain_graph(10)].max() < 0.1
    assert (strengths.diagonal() == 0).all()
    assert found.fit.violation.tolist() == [0]
    assert found.fit.r_squared.min() > 0.4


def test_sparsity_holds_down_what_is_not_needed(chain, numbers, chain_graph):
    rows, held_out = chain(300, 5), chain(100, 5, seed=1)

    def largest_beside(sparsity):
        settings = NGRSettings(epochs=40, learning_rate=0.01, batch_size=None, sparsity=sparsity)
        return fit_ngr(numbers(5), [rows], [held_out], ["a"], settings, 0).dependencies[0][~chain_graph(5)].max()

    assert largest_beside(0.1) < 0.5 * largest_beside(0.0)


def test_clients_have_graphs_of_their_own_and_models_that_say_so_themselves(chain, numbers):
    rows = [chain(300, 4), torch.rand(300, 4, generator=torch.Generator().manual_seed(0))]
    settings = NGRSettings(epochs=15, learning_rate=0.01, threshold=0.2)
    found = fit_ngr(numbers(4), rows, rows, ["a", "b"], settings, seed=0)
    assert found.adjacency[0].sum() >= 6
    assert not found.adjacency[1].any()
    full = Network(numbers(4), torch.ones(4, 4).bool(), settings)
    both = torch.stack(rows)
    wanted = found.fit.network.forward(found.fit.parameters, both)
    assert torch.allclose(full.forward(found.fit.parameters, both), wanted, atol=1e-5)
    assert torch.allclose(wanted[1], rows[1].mean(0).expand(300, 4), atol=1e-5)


def test_the_papers_penalty_has_its_weights(chain, numbers):
    settings = NGRSettings(architecture="path-norm", loss="squared", hidden=20, layers=1, epochs=20)
    rows, weak = chain(300, 4), settings.model_copy(update={"path_weight": 0.0, "sparsity": 0.0})
    held, free = (
        fit_ngr(numbers(4), [rows], [rows], ["a"], each, seed=0).dependencies[0].diagonal().max()
        for each in (settings, weak)
    )
    assert held < free
    assert settings.gamma == 100
    assert NGRSettings().gamma == pytest.approx(0.02)
