import pytest
import torch
from torch.nn import functional

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.dependence import derivatives, violation
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.network.stitched import (
    StitchedNetwork,
    enlarged,
    global_part,
    stitched_graph,
    without_new_influence,
)
from fedgraph.graphical.network.training import train
from fedgraph.support.errors import DataError, GraphError, RunError
from fedgraph.support.randomness import generator

NAN = float("nan")
COMMON = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
PRIVATE = (Feature("dose", "real"), Feature("clinic", "categorical", tuple("abcde")))
SETTINGS = NGMSettings(hidden=8, batch_size=None, epochs=1, learning_rate=1e-3)


def edges(*pairs):
    graph = torch.zeros(6, 6).bool()
    for first, second in pairs:
        graph[first, second] = graph[second, first] = True
    return graph


#: The edges between size and place, and none between ill and place, are not for the client to say.
OWN = edges((0, 2), (3, 4), (1, 4), (2, 5), (4, 5))
BOTH = edges((0, 1), (1, 2), (2, 3), (3, 4), (1, 4), (2, 5), (4, 5))


def noisy(network, seed):
    return network.initial(generator(seed))[None] + 0.3 * torch.randn(
        1, network.layout.num_parameters, generator=generator(seed, "noise")
    )


@pytest.fixture
def stitched(mixed):
    """A global network, a model of it, a stitched one, a random model of that, and rows, none of them trained."""
    schema, rows = mixed(60)
    clinic = functional.one_hot(torch.arange(60) % 5, 5).float()
    rows = torch.cat([rows, torch.rand(60, 1, generator=generator(0)), clinic], 1)
    common = Network(schema, COMMON, SETTINGS.model_copy(update={"hidden": 5}))
    known = common.with_moments(common.pruned(noisy(common, 1)), 0.7 * rows[None, :, :6])
    network = StitchedNetwork(Schema(schema.features + PRIVATE), OWN, SETTINGS, common)
    parameters = network.with_moments(network.pruned(noisy(network, 2)), rows[None])
    parameters[:, network.frozen] = known
    return common, known, network, parameters, rows


def test_the_graph_is_the_global_one_with_what_touches_private_features(stitched):
    assert torch.equal(stitched[2].adjacency, BOTH)
    assert torch.equal(stitched_graph(COMMON[None], OWN), BOTH[None])


def test_the_global_model_lies_in_a_row_as_it_was(stitched):
    common, known, network, parameters, _ = stitched
    assert torch.equal(parameters[:, network.frozen], known)
    assert not network.frozen[: network.layout.num_trainable].any()
    found, wanted = network.common_state(network.state(parameters)), common.state(known)
    assert set(found) == set(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_it_starts_from_the_global_model(stitched):
    common, known, network, _, rows = stitched
    start = network.initial(generator(3))[None]
    start[:, network.frozen] = known
    found = network.forward(network.with_moments(start, rows[None]), rows[None])
    assert torch.equal(found[:, :, :6], common.forward(known, rows[None, :, :6]))
    assert (found[0, :, 6:].std(0) > 0).all()


def test_what_the_graph_forbids_has_no_influence_whatever_the_parameters(stitched):
    _, _, network, parameters, rows = stitched
    found = derivatives(network, parameters, rows[None])
    assert (violation(network, found) == 0).all()
    unit = network.schema.unit_feature
    assert (found.largest[:, BOTH[unit][:, unit]] > 0).all()


def test_where_nothing_private_is_known_the_global_model_answers(stitched):
    """To the bit: of features without private neighbours always, of others where those are missing."""
    common, known, network, parameters, rows = stitched
    wanted = common.forward(known, rows[None, :, :6])
    found = network.forward(parameters, rows[None])
    assert torch.equal(found[:, :, 0], wanted[:, :, 0])
    assert not torch.allclose(found[:, :, 1:6], wanted[:, :, 1:6], atol=1e-3)
    missing = rows[None].clone()
    missing[:, ::2, 6:] = NAN
    found_without = network.forward(parameters, missing)
    assert torch.equal(found_without[:, ::2, :6], wanted[:, ::2])
    assert torch.equal(found_without[:, 1::2], found[:, 1::2])
    missing = rows[None].clone()
    missing[:, :, 6] = NAN
    found_without = network.forward(parameters, missing)
    assert torch.equal(found_without[:, :, [0, 1, 5]], wanted[:, :, [0, 1, 5]])
    assert torch.equal(found_without[:, :, 2:5], found[:, :, 2:5])


def test_its_weights_are_those_of_one_network_that_says_the_same(stitched):
    """As inference takes them: with all known, and what it shifts predictions by."""
    _, _, network, parameters, rows = stitched
    for shift in (0.0, 0.3):
        state = network.state(parameters)
        shifted = network.with_buffer(parameters, "head.bias", state["head.bias"] + shift * torch.arange(12))
        state, units = network.state(shifted), rows[None].transpose(1, 2)
        weights = network.weights(state)
        found = network.outputs(weights.layers(network.inputs(state, units)), weights.offset)
        found = network.heads.predictions(found).transpose(1, 2)
        assert torch.allclose(found, network.forward(shifted, rows[None]), atol=1e-5)
        changed = (found - network.forward(parameters, rows[None])).abs().mean((0, 1))
        assert (changed[1:] > 1e-3).all() == (shift > 0)


def losses(network, parameters, rows):
    """Mean losses of features that can be learned, where they can be."""
    predictions, counted, found = network.forward(parameters, rows[None])[0], network.learned_from(rows.T[None])[0], {}
    for feature in network.schema.features:
        units = network.schema.slices[feature.name]
        seen = counted[units.start]
        part, wanted = predictions[seen, units], rows[seen, units]
        if not seen.any():
            continue
        if feature.kind == "binary":
            found[feature.name] = functional.binary_cross_entropy(part, wanted)
        elif feature.is_number:
            found[feature.name] = (part - wanted).square().mean()
        else:
            found[feature.name] = -(wanted * part.log()).sum(1).mean()
    return found


def test_gradients_are_those_of_what_is_predicted(stitched):
    """The first step of Adam moves a weight by the learning rate, against the sign of its gradient."""
    _, _, network, parameters, rows = stitched
    rows[:20, 6], rows[10:30, 7:] = NAN, NAN
    start = network.with_moments(parameters, rows[None]).requires_grad_()
    before = losses(network, start, rows)
    assert list(before) == ["ill", "place", "age", "dose", "clinic"]
    (gradient,) = torch.autograd.grad(sum(before.values()), start)
    found = train(network, start, [rows], [rows], ["a"], network.settings, 0)
    proper = network.layout.num_trainable
    moved, slope = (found.parameters - start)[:, :proper], gradient[:, :proper]
    assert found.epochs.tolist() == [[1] * network.groups]
    assert torch.equal(found.parameters[:, network.frozen], start[:, network.frozen])
    clear = slope.abs() > 1e-4
    assert clear.sum() > 150
    assert torch.allclose(moved[clear], -1e-3 * slope[clear].sign(), atol=1e-5)
    assert (moved[slope == 0] == 0).all()
    after = losses(network, found.parameters, rows)
    assert found.losses[0].tolist() == pytest.approx([0.0, *map(float, after.values())], rel=1e-4)


def test_clients_have_models_of_their_own_and_graphs_if_they_want(stitched):
    common, known, network, parameters, rows = stitched
    graphs = torch.stack([OWN, edges((0, 4), (1, 5))])
    together = StitchedNetwork(network.schema, graphs, network.settings, common)
    models = torch.cat([parameters, parameters.flip(1)])
    models[1:] = network.with_moments(models[1:], rows[None])
    models[1:, network.frozen] = known + 0.1
    asked = torch.stack([rows, rows.flip(0)])
    asked[:, :20, 6], asked[:, 10:30, 7:] = NAN, NAN
    found = together.forward(models, asked)
    assert together.learned_from(asked.transpose(1, 2))[:, 0].any(1).tolist() == [False, True]
    for client in range(2):
        one = slice(client, client + 1)
        alone = StitchedNetwork(network.schema, graphs[client], network.settings, common)
        assert torch.allclose(found[one], alone.forward(models[one], asked[one]), atol=1e-5)


def test_it_can_be_made_again_from_what_a_file_says(stitched):
    _, _, network, parameters, rows = stitched
    assert network.common_size == (4, 5)
    again = StitchedNetwork.rebuilt(network.schema, network.adjacency, network.settings, network.common_size)
    assert again.layout == network.layout
    assert torch.equal(again.adjacency, network.adjacency)
    assert torch.equal(again.forward(parameters, rows[None]), network.forward(parameters, rows[None]))


def test_what_cannot_be_stitched_is_refused(stitched):
    common, _, network, _, _ = stitched
    turned = Schema(network.schema.features[::-1])
    with pytest.raises(DataError, match="size, ill, place, age"):
        StitchedNetwork(turned, OWN, network.settings, common)
    other = network.settings.model_copy(update={"loss": "squared"})
    with pytest.raises(RunError, match="loss .*'squared' .*'cross-entropy'"):
        StitchedNetwork(network.schema, OWN, other, common)
    with pytest.raises(GraphError, match="6 features .*boolean"):
        StitchedNetwork(network.schema, COMMON, network.settings, common)


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
    with pytest.raises(RunError, match="architecture .*'masked' .*'path-norm'"):
        enlarged(both[0], numbers(5), chain_graph(5), NGMSettings())
