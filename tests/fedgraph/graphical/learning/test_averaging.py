import pytest
import torch

from fedgraph.graphical.learning.averaging import average, pooled_moments
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.network.training import train
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator

GRAPH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()


def random_models(network, clients):
    drawn = torch.stack([network.initial(generator(7, "test", client)) for client in range(clients)])
    return network.pruned(drawn + 0.3 * torch.randn(drawn.shape, generator=generator(8)))


@pytest.mark.parametrize("architecture", ["masked", "path-norm"])
def test_the_average_of_equal_models_is_that_model(mixed, architecture):
    schema, rows = mixed(100)
    network = Network(schema, GRAPH, NGMSettings(hidden=4, architecture=architecture))
    one = network.with_moments(random_models(network, 1), rows[None])
    found = average(network, one.expand(3, -1), [5, 10, 1])
    assert torch.allclose(found, one, rtol=1e-5, atol=1e-6)
    assert torch.allclose(network.forward(found, rows[None]), network.forward(one, rows[None]), atol=1e-6)


def test_moments_are_those_of_all_rows_together(mixed):
    schema, rows = mixed(90)
    rows[:, 0] = rows[:, 0] + (torch.arange(90) < 60)
    parts = [rows[:60], rows[60:]]
    network = Network(schema, GRAPH, NGMSettings(hidden=4))
    models = random_models(network, 2)
    each = torch.cat([network.with_moments(models[[place]], part[None]) for place, part in enumerate(parts)])
    wanted = network.state(network.with_moments(models[:1], rows[None]))
    weights = torch.tensor([[60], [30]]) / 90
    mean, deviation = pooled_moments(network, each, weights)
    assert torch.allclose(mean, wanted["mean"][0], atol=1e-6)
    assert torch.allclose(deviation, wanted["deviation"][0], atol=1e-6)
    state = network.state(average(network, each, [60, 30]))
    assert torch.allclose(state["deviation"], wanted["deviation"], atol=1e-6)


def test_what_never_varies_stays_unscaled(numbers):
    network = Network(numbers(2), torch.ones(2, 2).bool(), NGMSettings(hidden=4))
    rows = torch.tensor([[0.5, 0.2], [0.5, 0.2], [0.5, 0.2]])
    models = network.with_moments(random_models(network, 2), torch.stack([rows, rows + torch.tensor([0.0, 0.4])]))
    mean, deviation = pooled_moments(network, models, torch.tensor([[0.5], [0.5]]))
    assert mean.tolist() == pytest.approx([0.5, 0.4])
    assert deviation.tolist() == pytest.approx([1, 0.2])


def test_clients_with_other_means_and_the_same_law_are_averaged_to_it(chain, numbers, chain_graph):
    """One start, and ranges of the first feature that do not overlap; without a common scaling that would not do."""
    settings = NGMSettings(hidden=8, epochs=15, learning_rate=0.01)
    network = Network(numbers(3), chain_graph(3), settings)
    rows = chain(3000, 3)
    order = rows[:, 0].argsort()
    parts = [rows[order[:1500]], rows[order[1500:]]]
    start = network.initial(generator(0)).expand(2, -1)
    found = train(network, start, parts, parts, ["a", "b"], settings, 0).parameters
    both = average(network, found, [1500, 1500])

    def unexplained(model):
        errors = (network.forward(model, rows[None])[0] - rows)[:, 1].square().mean()
        return float(errors / rows[:, 1].var())

    naive = network.with_moments(found.mean(0, keepdim=True), rows[None])
    assert unexplained(both) < 0.45
    assert unexplained(both) < unexplained(naive)


def test_what_cannot_be_averaged_is_refused(numbers):
    network = Network(numbers(2), torch.ones(2, 2).bool(), NGMSettings(hidden=4))
    models = random_models(network, 2)
    for weights in ([1], [0, 0], [2, -1]):
        with pytest.raises(DataError, match="2 models cannot be averaged"):
            average(network, models, weights)
    broken = network.with_buffer(models, "deviation", torch.tensor([[1.0, 1], [1, 0]]))
    with pytest.raises(DataError, match="deviations of model 1"):
        average(network, broken, [1, 1])
