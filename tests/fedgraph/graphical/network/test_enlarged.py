import pytest
import torch

from fedgraph.graphical.network.enlarged import enlarged, global_part, without_new_influence
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.support.errors import RunError
from fedgraph.support.randomness import generator


@pytest.fixture
def both(numbers, chain_graph):
    """A global network over 3 features, with a model, and one over 5, with one that nothing was taken from."""
    settings = NGMSettings(architecture="path-norm", loss="squared", hidden=4)
    common = Network(numbers(3), chain_graph(3), settings)
    known = common.initial(generator(1))[None]
    network = enlarged(common, numbers(5), chain_graph(5), settings.model_copy(update={"hidden": 2}))
    parameters = network.initial(generator(2))[None]
    parameters[:, global_part(network, common)] = known
    return common, known, network, parameters


def test_it_is_the_global_network_with_units_for_what_is_new(both, chain, chain_graph):
    """As in fig. 4, by hand: all that is new is linked to all in the layers before and behind it."""
    common, known, network, parameters = both
    assert torch.equal(network.adjacency, chain_graph(5))
    state, wanted, rows = network.state(parameters), common.state(known), chain(6, 5)
    first, second, head = state["hidden.0.weight"][0, 0], state["hidden.1.weight"][0, 0], state["head.weight"][0]
    assert (first.shape, second.shape, head.shape) == ((6, 5), (6, 6), (5, 6))
    assert torch.equal(first[:4, :3], wanted["hidden.0.weight"][0, 0])
    assert torch.equal(second[:4, :4], wanted["hidden.1.weight"][0, 0])
    assert torch.equal(head[:3, :4], wanted["head.weight"][0])
    assert torch.equal(state["hidden.1.bias"][0, 0, :4], wanted["hidden.1.bias"][0, 0])
    for weight in (first, second, head):
        assert (weight != 0).all()
    hidden = (rows @ first.T + state["hidden.0.bias"][0, 0]).relu()
    hidden = (hidden @ second.T + state["hidden.1.bias"][0, 0]).relu()
    found = network.forward(parameters, rows[None])[0]
    assert torch.allclose(found, hidden @ head.T + state["head.bias"][0], atol=1e-6)


def test_the_global_model_lies_in_it_in_its_own_order(both):
    common, known, network, parameters = both
    frozen = global_part(network, common)
    assert frozen.sum() == common.layout.num_parameters
    assert torch.equal(parameters[:, frozen], known)


def test_it_can_start_without_any_influence_on_what_the_global_model_says(both, chain):
    common, known, network, parameters = both
    rows = chain(6, 5)[None]
    start = without_new_influence(network, common, parameters)
    wanted = common.forward(known, rows[..., :3])
    assert torch.allclose(network.forward(start, rows)[..., :3], wanted, atol=1e-6)
    assert not torch.allclose(network.forward(parameters, rows)[..., :3], wanted, atol=1e-2)
    changed = start != parameters
    # From new inputs and hidden units to 4 units of either hidden layer and 3 outputs.
    assert changed.sum() == 4 * 2 + 4 * 2 + 3 * 2
    assert not changed[:, global_part(network, common)].any()


def test_masked_networks_are_not_enlarged(both, numbers, chain_graph):
    with pytest.raises(
        RunError, match="architecture is 'masked' for what is stitched to a global model of 'path-norm'"
    ):
        enlarged(both[0], numbers(5), chain_graph(5), NGMSettings())
