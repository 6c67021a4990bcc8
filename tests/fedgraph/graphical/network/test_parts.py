import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgraph.graphical.inference.prediction import Scale
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.parts import colour_classes, split_parts
from fedgraph.graphical.network.settings import NGMSettings

GRAPH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()


@given(st.integers(1, 12), st.floats(0, 1), st.integers(0, 100))
def test_a_class_has_no_neighbours_and_every_feature_is_in_one(features, density, seed):
    graph = torch.rand(features, features, generator=torch.Generator().manual_seed(seed)) < density
    graph &= ~torch.eye(features, dtype=torch.bool)
    classes = colour_classes(graph)
    assert sorted(torch.cat(classes).tolist()) == list(range(features))
    assert not any(graph[some][:, some].any() for some in classes)
    assert len(classes) <= int((graph | graph.T).sum(1).max()) + 1


def test_a_chain_has_two_classes_and_graphs_of_clients_count_together():
    chain = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).bool()
    assert [some.tolist() for some in colour_classes(chain)] == [[1], [0, 2]]
    assert len(colour_classes(torch.stack([chain, ~chain]))) == 3


@pytest.mark.parametrize("architecture", ["masked", "path-norm"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("own_graphs", [False, True])
def test_parts_say_what_the_network_says(mixed, architecture, loss, own_graphs):
    schema, rows = mixed(50)
    graph = torch.stack([GRAPH, torch.zeros(4, 4).bool()]) if own_graphs else GRAPH
    network = Network(schema, graph, NGMSettings(architecture=architecture, loss=loss, hidden=5))
    start = torch.stack([network.initial(torch.Generator().manual_seed(seed)) for seed in (0, 1)])
    parameters = network.with_moments(start, rows.expand(2, -1, -1))
    units = rows.expand(2, -1, -1)
    inputs = Scale(network, parameters).inputs(units.transpose(1, 2))
    assert torch.allclose(inputs, network.inputs(network.state(parameters), units.transpose(1, 2)))
    predictions = network.forward(parameters, units)
    found = torch.full_like(predictions, torch.nan)
    for part in split_parts(network, parameters):
        found[..., part.units] = part(inputs).transpose(1, 2)
        assert part.is_number.tolist() == network.heads.is_number[part.units].tolist()
    for name in ("size", "age"):
        own = schema.slices[name]
        assert torch.allclose(found[..., own], predictions[..., own], atol=1e-6)
    assert torch.allclose(found[..., 1], network.probabilities(predictions, "ill")[..., 1], atol=1e-6)
    assert torch.allclose(found[..., 2:5], network.probabilities(predictions, "place"), atol=1e-6)


def test_only_features_asked_for_are_in_parts(mixed):
    schema, _ = mixed(5)
    network = Network(schema, GRAPH, NGMSettings(hidden=5))
    parameters = network.initial(torch.Generator().manual_seed(0))[None]
    parts = split_parts(network, parameters, torch.tensor([True, False, True, False]))
    assert sorted(torch.cat([part.units for part in parts]).tolist()) == [0, 2, 3, 4]
    assert split_parts(network, parameters, torch.zeros(4).bool()) == []


def test_predictions_can_be_given_their_mean(chain, numbers, chain_graph):
    network = Network(numbers(4), chain_graph(4), NGMSettings(hidden=5))
    rows = chain(200, 4)[None]
    parameters = network.with_moments(network.initial(torch.Generator().manual_seed(0))[None], rows)
    inputs = Scale(network, parameters).inputs(rows.transpose(1, 2))
    part = split_parts(network, parameters)[0]
    before = part(inputs)
    mean = torch.rand(1, len(part.units), 1, generator=torch.Generator().manual_seed(0))
    shift = torch.zeros(1, 4, 1)
    shift[:, part.units] = part.centre(before, mean)
    after = part(inputs, shift=shift)
    assert torch.allclose(after.mean(2, keepdim=True), mean, atol=1e-5)
    assert torch.allclose(after, before + shift[:, part.units], atol=1e-5)


def test_outputs_can_be_shifted(chain, numbers, chain_graph):
    network = Network(numbers(3), chain_graph(3) & False, NGMSettings(hidden=5))
    parameters = network.with_moments(network.initial(torch.Generator().manual_seed(0))[None], chain(50, 3)[None])
    (part,) = split_parts(network, parameters)
    mean = network.state(parameters)["mean"][0]
    found = part(torch.zeros(1, 3, 2), shift=torch.tensor([[[0.1], [0.0], [-2.0]]]))[0]
    assert torch.allclose(found, (mean + torch.tensor([0.1, 0.0, -2.0]))[:, None].expand(-1, 2))
