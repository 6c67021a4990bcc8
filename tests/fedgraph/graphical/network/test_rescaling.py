import pytest
import torch

from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.rescaling import rescaled
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.support.randomness import generator

GRAPH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_models_say_the_same_in_another_scaling(mixed, loss):
    schema, rows = mixed(50)
    network = Network(schema, GRAPH, NGMSettings(hidden=4, loss=loss))
    drawn = torch.stack([network.initial(generator(7, "test", client)) for client in range(2)])
    drawn += 0.3 * torch.randn(drawn.shape, generator=generator(8))
    parameters = network.with_moments(drawn, torch.stack([rows, 0.5 * rows + 0.1]))
    asked = rows.expand(2, -1, -1).clone()
    asked[:, :20, 1], asked[:, 10:30, 2:5] = torch.nan, torch.nan
    mean, deviation = torch.tensor([0.3, 0.6, 0.5, 0.3, 0.2, 0.1]), torch.tensor([0.4, 1, 1, 1, 1, 0.05])
    found = rescaled(network, parameters, mean, deviation)
    assert network.state(found)["mean"][1].tolist() == pytest.approx(mean.tolist())
    wanted = network.forward(parameters, asked)
    assert torch.allclose(network.forward(found, asked), wanted, atol=2e-5)
    assert not torch.allclose(network.forward(parameters[[0]], asked[[0]]), wanted[[1]], atol=1e-2)
