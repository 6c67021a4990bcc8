import pytest
import torch

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.dependence import derivatives, violation
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.support.errors import GraphError, RunError
from fedgraph.support.randomness import generator

NAN = float("nan")
PATH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()


def models(network, rows, clients=2):
    """Random models, no parameter of which is 0, that know the rows' moments."""
    matrix = torch.stack([network.initial(generator(7, "test", client)) for client in range(clients)])
    matrix += 0.3 * torch.randn(matrix.shape, generator=generator(8))
    return network.with_moments(matrix, rows.expand(clients, -1, -1))


def test_a_feature_is_predicted_from_its_neighbours_by_its_own_layers(chain, numbers, chain_graph):
    """The same by hand, for the feature 1 of 3, whose neighbours are 0 and 2."""
    rows = chain(6, 3)
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    parameters = models(network, rows, 1)
    state = network.layout.row_state(parameters[0])
    mean, deviation = rows.mean(0), rows.std(0, correction=0)
    seen = ((rows - mean) / deviation)[:, [0, 2]]
    hidden = (seen @ state["hidden.0.weight"][1][:, [0, 2]].T + state["hidden.0.bias"][1]).relu()
    hidden = (hidden @ state["hidden.1.weight"][1].T + state["hidden.1.bias"][1]).relu()
    wanted = mean[1] + deviation[1] * (hidden @ state["head.weight"][1] + state["head.bias"][1])
    assert torch.allclose(network.forward(parameters, rows[None])[0, :, 1], wanted, atol=1e-6)


def test_the_papers_network_is_a_plain_perceptron(chain, numbers, chain_graph):
    rows = chain(6, 3)
    network = Network(numbers(3), chain_graph(3), NGMSettings(architecture="path-norm", hidden=5, loss="squared"))
    parameters = models(network, rows, 1)
    state = network.layout.row_state(parameters[0])
    hidden = (rows @ state["hidden.0.weight"][0].T + state["hidden.0.bias"][0]).relu()
    hidden = (hidden @ state["hidden.1.weight"][0].T + state["hidden.1.bias"][0]).relu()
    wanted = hidden @ state["head.weight"].T + state["head.bias"]
    assert torch.allclose(network.forward(parameters, rows[None])[0], wanted, atol=1e-6)


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_forbidden_derivatives_are_exactly_zero_whatever_the_parameters(mixed, loss):
    schema, rows = mixed(20)
    graph = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
    network = Network(schema, graph, NGMSettings(hidden=4, loss=loss))
    parameters = models(network, rows)
    found = derivatives(network, parameters, rows.expand(2, -1, -1))
    assert (violation(network, found) == 0).all()
    unit = schema.unit_feature
    assert (found.largest[:, graph[unit][:, unit]] > 0).all()


@pytest.mark.parametrize("settings", [{}, {"architecture": "path-norm", "loss": "squared"}])
def test_of_no_rows_there_are_no_predictions(mixed, settings):
    schema, rows = mixed(20)
    network = Network(schema, PATH, NGMSettings(hidden=4, **settings))
    assert network.predict(models(network, rows), rows.expand(2, -1, -1)[:, :0]).shape == (2, 0, rows.shape[1])


def test_clients_have_models_of_their_own_and_graphs_if_they_want(chain, numbers, chain_graph):
    rows = chain(5, 4)
    graphs = torch.stack([chain_graph(4), torch.ones(4, 4).bool()])
    together = Network(numbers(4), graphs, NGMSettings(hidden=4))
    parameters = models(together, rows)
    found = together.forward(parameters, rows.expand(2, -1, -1))
    for client in range(2):
        alone = Network(numbers(4), graphs[client], NGMSettings(hidden=4))
        one = alone.forward(parameters[client : client + 1], rows[None])[0]
        assert torch.allclose(found[client], one, atol=1e-6)


def test_pruned_models_say_the_same_over_a_full_graph(mixed):
    schema, rows = mixed(20)
    rows[3] = NAN
    graph = torch.zeros(4, 4).bool()
    graph[0, 1] = graph[1, 0] = graph[2, 1] = True
    network = Network(schema, graph, NGMSettings(hidden=4))
    full = Network(schema, torch.ones(4, 4).bool(), NGMSettings(hidden=4))
    parameters = models(network, rows, 1)
    pruned = network.pruned(parameters)
    wanted = network.forward(parameters, rows[None])
    assert torch.equal(network.forward(pruned, rows[None]), wanted)
    assert torch.allclose(full.forward(pruned, rows[None]), wanted, atol=1e-6)
    assert not torch.allclose(full.forward(parameters, rows[None]), wanted, atol=1e-3)


def test_a_feature_without_neighbours_is_predicted_by_its_mean(mixed):
    schema, rows = mixed(50)
    network = Network(schema, torch.zeros(4, 4).bool(), NGMSettings())
    found = network.forward(models(network, rows, 1), rows[None])[0]
    assert torch.allclose(found, rows.mean(0).expand_as(found), atol=1e-5)


def test_probabilities_sum_to_one(mixed):
    schema, rows = mixed(50)
    for loss in ("cross-entropy", "squared"):
        network = Network(schema, torch.ones(4, 4).bool(), NGMSettings(hidden=4, loss=loss))
        found = network.forward(models(network, rows, 1), rows[None])
        for name, width in (("ill", 2), ("place", 3)):
            chances = network.probabilities(found, name)
            assert chances.shape == (1, 50, width)
            assert torch.allclose(chances.sum(-1), torch.ones(1, 50))
            assert (chances >= 0).all()
    assert torch.allclose(network.probabilities(torch.full((2, 6), -1.0), "place"), torch.full((2, 3), 1 / 3))


def test_missing_inputs_are_means_until_it_is_learned_what_they_are(chain, numbers, chain_graph):
    rows = chain(30, 3)
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    parameters = models(network, rows, 1)
    columns = network.layout.columns(network.layout.part(["missing.weight"]))
    unlearned = parameters.index_fill(1, columns, 0)
    gap, filled = rows[None].clone(), rows[None].clone()
    gap[:, :, 0], filled[:, :, 0] = NAN, rows[:, 0].mean()
    assert torch.allclose(network.forward(unlearned, gap), network.forward(unlearned, filled), atol=1e-6)
    learned, without = network.forward(parameters, gap)[0], network.forward(parameters, filled)[0]
    assert not torch.allclose(learned[:, 1], without[:, 1], atol=1e-3)
    assert torch.allclose(learned[:, 2], without[:, 2], atol=1e-6)


def test_moments_are_of_what_was_observed(mixed):
    schema, rows = mixed(50)
    rows[10:, 0], rows[:, 2:5] = NAN, NAN
    rows[:, 5] = 0.25
    network = Network(schema, torch.ones(4, 4).bool(), NGMSettings())
    state = network.state(network.with_moments(models(network, mixed(50)[1], 1), rows[None]))
    mean, deviation = state["mean"][0], state["deviation"][0]
    size, ill = rows[:10, 0].numpy(), rows[:, 1].numpy()
    assert mean.tolist() == pytest.approx([size.mean(), ill.mean(), *[1 / 3] * 3, 0.25], rel=1e-5)
    assert deviation.tolist() == pytest.approx([size.std(), 1, 1, 1, 1, 1], rel=1e-5)


def test_models_are_drawn_from_their_generator_alone(numbers, chain_graph):
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    first, same, other = (network.initial(generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert network.layout.row_state(first)["hidden.0.weight"].abs().amax((1, 2)).tolist() == pytest.approx(
        [1, 0.5**0.5, 1], rel=0.25
    )


def test_graphs_and_models_that_do_not_fit_are_refused(numbers, chain_graph):
    with pytest.raises(GraphError, match=r"3 features .*\[3, 3\]"):
        Network(numbers(3), chain_graph(4), NGMSettings())
    with pytest.raises(GraphError, match="float32"):
        Network(numbers(3), torch.ones(3, 3), NGMSettings())
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    with pytest.raises(RunError, match="other features"):
        network.forward(torch.zeros(1, 5), torch.zeros(1, 2, 3))


def test_a_table_of_many_categories_needs_no_more_outputs_than_its_widest_feature():
    kinds = Feature("c", "categorical", tuple("abcdefg")), Feature("d", "categorical", ("a", "b"))
    network = Network(Schema((Feature("x", "real"), *kinds)), torch.ones(3, 3).bool(), NGMSettings(hidden=3))
    state = network.state(models(network, torch.rand(5, 10), 1))
    head = network.head_weight(state)
    assert head.shape == (1, 3, 7, 3)
    assert (head[0, 0, 1:] == 0).all()
    assert torch.equal(head[0, 2, :2], state["head.weight"][0, 8:])


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_models_say_the_same_in_another_scaling(mixed, loss):
    schema, rows = mixed(50)
    network = Network(schema, PATH, NGMSettings(hidden=4, loss=loss))
    drawn = torch.stack([network.initial(generator(7, "test", client)) for client in range(2)])
    drawn += 0.3 * torch.randn(drawn.shape, generator=generator(8))
    parameters = network.with_moments(drawn, torch.stack([rows, 0.5 * rows + 0.1]))
    asked = rows.expand(2, -1, -1).clone()
    asked[:, :20, 1], asked[:, 10:30, 2:5] = torch.nan, torch.nan
    mean, deviation = torch.tensor([0.3, 0.6, 0.5, 0.3, 0.2, 0.1]), torch.tensor([0.4, 1, 1, 1, 1, 0.05])
    found = network.rescaled(parameters, mean, deviation)
    assert network.state(found)["mean"][1].tolist() == pytest.approx(mean.tolist())
    wanted = network.forward(parameters, asked)
    assert torch.allclose(network.forward(found, asked), wanted, atol=2e-5)
    assert not torch.allclose(network.forward(parameters[[0]], asked[[0]]), wanted[[1]], atol=1e-2)
