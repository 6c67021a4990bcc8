"""Tables with a known graph."""

import pytest
import torch

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings


def _chain(rows: int, features: int = 10, seed: int = 0) -> torch.Tensor:
    """A Gaussian chain, correlation 0.7 between neighbours, deviation 1."""
    noise = torch.randn(rows, features, generator=torch.Generator().manual_seed(seed))
    values = [noise[:, 0]]
    for feature in range(1, features):
        values.append(0.7 * values[-1] + (1 - 0.49) ** 0.5 * noise[:, feature])
    return torch.stack(values, 1)


@pytest.fixture(scope="session")
def chain():
    """``chain(rows, features, seed)`` -> rows in about [0, 1]; deviation 0.1."""
    return lambda rows, features=10, seed=0: _chain(rows, features, seed) * 0.1 + 0.5


@pytest.fixture(scope="session")
def numbers():
    """``numbers(count)`` -> a schema of so many numbers."""
    return lambda count: Schema(tuple(Feature(f"x{place}", "real") for place in range(count)))


@pytest.fixture(scope="session")
def chain_graph():
    """``chain_graph(count)`` -> the graph in which each feature has an edge to the next."""
    return lambda count: torch.diag(torch.ones(count - 1), 1).bool() | torch.diag(torch.ones(count - 1), -1).bool()


@pytest.fixture(scope="session")
def gaussian(numbers, chain_graph):
    """``gaussian(correlation, mean)`` -> a network, a model and a covariance: five numbers in a chain, deviation 1.

    The model's predictions are the true conditional expectations, by hidden units relu(x) and relu(-x).
    """

    def model(correlation: float = 0.8, mean: float = 0.0) -> tuple[Network, torch.Tensor, torch.Tensor]:
        place = torch.arange(5)
        covariance = correlation ** (place[:, None] - place).abs().double()
        precision = torch.linalg.inv(covariance)
        coefficients = (torch.eye(5).double() - precision / precision.diagonal()[:, None]).float()
        network = Network(numbers(5), chain_graph(5), NGMSettings(hidden=2, layers=1))
        state = network.layout.unflatten(torch.zeros(1, network.layout.num_parameters))
        state["hidden.0.weight"][0] = torch.stack([coefficients, -coefficients], 1)
        state["head.weight"][0] = torch.tensor([1.0, -1.0])
        state["mean"][0], state["deviation"][0] = mean, 1
        state["residual"][0] = 1 / precision.diagonal()
        return network, network.layout.flatten(state), covariance.float()

    return model
