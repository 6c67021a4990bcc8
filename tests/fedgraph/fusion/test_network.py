import pytest
import torch
from torch_geometric.nn.dense import DenseGCNConv

from fedgraph.fusion import FusionSettings, build_network
from fedgraph.support.randomness import generator

OWNERS, SIZE, CLASSES = 6, 4, 3
OWN_SIZES = torch.full((OWNERS,), SIZE)


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def settings(**changed):
    return FusionSettings(**{"workers": 1, "device": "cpu", **changed})


def some_samples(number=5, absent=0.0, owners=OWNERS):
    embeddings = torch.randn(number, owners, SIZE, generator=random(1))
    present = torch.rand(number, owners, generator=random(2)) >= absent
    return embeddings, present


def road():
    """An asymmetric graph with weights, self loops among them."""
    weights = torch.rand(OWNERS, OWNERS, generator=random(3))
    return weights * (torch.rand(OWNERS, OWNERS, generator=random(4)) < 0.5)


def with_geometric(network, adjacency, embeddings, present):
    """The two layers with a skip connection, by PyTorch Geometric's; absent owners masked after each."""
    values = network.alignment(embeddings * present[..., None])
    for place, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        layer = DenseGCNConv(*weight.shape)
        with torch.no_grad():
            layer.lin.weight.copy_(weight.T)
            layer.bias.copy_(bias)
        values = (layer(values, adjacency) + values @ weight) * present[..., None]
        values = values.relu() if place == 0 else values
    return values.sum(1) / present.sum(1, keepdim=True)


def scrambled(network):
    """Biases that are not 0, so that they matter."""
    with torch.no_grad():
        for number, bias in enumerate(network.biases):
            bias.copy_(torch.randn(bias.shape, generator=random(10 + number)))
    return network


@pytest.mark.parametrize("alignment", ["soft", "hard", "none"])
def test_given_graph_equals_dense_layers_of_pytorch_geometric_plus_skip(alignment):
    network = scrambled(build_network(settings(graph="given", alignment=alignment), OWN_SIZES, CLASSES, road()))
    embeddings, present = some_samples()
    expected = with_geometric(network, road().expand(5, -1, -1), embeddings, present)
    torch.testing.assert_close(network(embeddings, present, random()), expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(network.consensus.expected(), network.consensus.expected().T)


@pytest.mark.parametrize("graph", ["icdf", "gumbel"])
def test_drawn_graphs_equal_dense_layers_of_pytorch_geometric_plus_skip(graph):
    network = scrambled(build_network(settings(graph=graph), OWN_SIZES, CLASSES))
    embeddings, present = some_samples()
    kind = network.consensus.graph
    eye = torch.eye(OWNERS)[None]
    seen = []
    kept = type(kind).propagate

    def spy(features, counted, generator, shared=False):
        seen.append(kept(kind, eye.expand(5, -1, -1), torch.zeros(5, OWNERS), copy(generator), shared).detach())
        return kept(kind, features, counted, generator, shared)

    def copy(generator):
        same = torch.Generator()
        same.set_state(generator.get_state())
        return same

    kind.propagate = spy
    found = network(embeddings, present, random())
    # Where nobody counts, degrees are clamped at 1, and the product with the identity is the graph itself.
    expected = with_geometric(network, seen[0], embeddings, present)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(seen[0].flatten(1).unique(dim=0)) == 5


def test_mean_pooling_without_alignment_is_equation_5():
    network = scrambled(build_network(settings(fusion="mean-pooling", alignment="none"), OWN_SIZES, CLASSES))
    embeddings, present = some_samples()
    hidden = torch.stack([(network.weights[0].T @ h.T + network.biases[0][:, None]).relu().mean(1) for h in embeddings])
    expected = hidden @ network.weights[1] + network.biases[1]
    torch.testing.assert_close(network(embeddings, present, random()), expected)
    without = scrambled(build_network(settings(graph="none", alignment="none"), OWN_SIZES, CLASSES))
    torch.testing.assert_close(without(embeddings, present, random()), expected)


def part_of(network, kept):
    """The network of fewer owners, with the parameters of those that are kept."""
    smaller = build_network(settings(graph="given"), OWN_SIZES[kept], CLASSES, road()[kept][:, kept])
    state = network.state_dict()
    state |= {"alignment.matrix": state["alignment.matrix"][kept], "consensus.weights": smaller.consensus.weights}
    smaller.load_state_dict(state)
    return smaller


def test_absent_owners_are_as_if_they_were_not_there():
    network = scrambled(build_network(settings(graph="given"), OWN_SIZES, CLASSES, road()))
    embeddings, present = some_samples()
    present[:] = torch.tensor([True, False, True, True, False, True])
    kept = present[0].nonzero().flatten()
    expected = part_of(network, kept)(embeddings[:, kept], present[:, kept], random())
    torch.testing.assert_close(network(embeddings, present, random()), expected)
    embeddings[:, 1] = 1e6
    torch.testing.assert_close(network(embeddings, present, random()), expected)


def test_absent_owners_may_count_as_zeros_instead():
    network = scrambled(build_network(settings(graph="given", absent="zeros"), OWN_SIZES, CLASSES, road()))
    embeddings, present = some_samples(absent=0.3)
    assert not present.all()
    expected = with_geometric(network, road().expand(5, -1, -1), embeddings, present)
    expected = expected * present.sum(1, keepdim=True) / OWNERS
    torch.testing.assert_close(network(embeddings, present, random()), expected, rtol=1e-4, atol=1e-5)


EVERY = [
    {"graph": "icdf"},
    {"graph": "icdf", "draw_per": "batch"},
    {"graph": "gumbel"},
    {"graph": "neighbours", "neighbours": 2},
    {"graph": "given"},
    {"graph": "none"},
    {"graph": "icdf", "alignment": "hard"},
    {"fusion": "mean-pooling"},
    {"fusion": "transformer"},
    {"fusion": "concatenation"},
]


@pytest.mark.parametrize("changed", EVERY, ids=str)
def test_all_that_is_trained_has_a_gradient_and_moves_to_another_device(changed):
    network = build_network(settings(**changed), OWN_SIZES, CLASSES, road())
    network.train()
    embeddings, present = some_samples(20, 0.2)
    loss = torch.nn.functional.cross_entropy(network(embeddings, present, random()), torch.arange(20) % CLASSES)
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name
    names = {name for name, _ in network.named_parameters()}
    assert ("alignment.matrix" in names) == (changed.get("fusion") != "concatenation")
    assert ("consensus.graph.theta" in names) == (changed.get("graph") in ("icdf", "gumbel"))
    assert {each.device.type for each in network.to("meta").parameters()} == {"meta"}


@pytest.mark.parametrize("changed", EVERY, ids=str)
def test_a_sample_gets_the_same_logits_alone_and_in_a_crowd_and_with_nobody_there(changed):
    network = build_network(settings(**changed), OWN_SIZES, CLASSES, road())
    embeddings, present = some_samples(9, 0.2)
    present[0] = False
    network.settle(*some_samples(6))
    network.eval()
    crowd = network(embeddings, present, random(7))
    alone = torch.cat([network(embeddings[[row]], present[[row]], random(7)) for row in range(9)])
    torch.testing.assert_close(alone, crowd)
    assert crowd.isfinite().all()
    several = network.draws(embeddings, present, [random(7), random(8)])
    torch.testing.assert_close(several[0], crowd)
    assert len(several) == (2 if network.stochastic else 1)
    assert network.stochastic == (changed.get("graph") in ("icdf", "gumbel"))


@pytest.mark.parametrize("changed", EVERY, ids=str)
def test_the_start_follows_from_the_seed_alone(changed):
    states = []
    for seed, state in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(state)
        states.append(build_network(settings(**changed), OWN_SIZES, CLASSES, road(), seed).state_dict())
        assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(state)))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_shorter_embeddings_are_aligned_to_one_size():
    sizes = torch.tensor([2, 4, 3, 4, 1, 4])
    embeddings, present = some_samples()
    embeddings *= torch.arange(SIZE) < sizes[:, None]
    for changed in ({"aligned_size": 7}, {}, {"alignment": "none"}):
        network = build_network(settings(**changed), sizes, CLASSES)
        assert network(embeddings, present, random()).shape == (5, CLASSES)
    assert build_network(settings(aligned_size=7), sizes, CLASSES).alignment.matrices().shape == (OWNERS, 7, SIZE)


def test_transformer_sees_a_set():
    """The order of owners changes nothing, as there is no alignment that belongs to one of them."""
    network = build_network(settings(fusion="transformer", alignment="none"), OWN_SIZES, CLASSES).eval()
    embeddings, present = some_samples(absent=0.3)
    present[0, 1:3] = False
    order = torch.randperm(OWNERS, generator=random())
    expected = network(embeddings, present, random())
    torch.testing.assert_close(network(embeddings[:, order], present[:, order], random()), expected)
    kept = present[0].nonzero().flatten()
    torch.testing.assert_close(network(embeddings[:1, kept], present[:1, kept], random()), expected[:1])


def test_transformer_drops_by_the_generator_and_in_training_only():
    network = build_network(settings(fusion="transformer"), OWN_SIZES, CLASSES).train()
    embeddings, present = some_samples()
    first = network(embeddings, present, generator(0, "a"))
    assert torch.equal(first, network(embeddings, present, generator(0, "a")))
    assert not torch.equal(first, network(embeddings, present, generator(0, "b")))
    dropped = network.blocks[0]._drop(torch.ones(10_000), random())
    assert sorted(dropped.unique().tolist()) == [0.0, 2.0]
    assert float(dropped.mean()) == pytest.approx(1, abs=0.05)
    network.eval()
    assert torch.equal(network(embeddings, present, random(1)), network(embeddings, present, random(2)))


@pytest.mark.parametrize("draw_per", ["sample", "batch"])
def test_training_draws_a_graph_per_sample_or_per_batch_and_evaluation_one_for_all(draw_per):
    network = build_network(settings(draw_per=draw_per), OWN_SIZES, CLASSES).train()
    embeddings, present = some_samples(1)
    same = (embeddings.expand(6, -1, -1), present.expand(6, -1))
    different = len(network(*same, random()).detach().unique(dim=0))
    assert different == (6 if draw_per == "sample" else 1)
    assert len(network.eval()(*same, random()).detach().unique(dim=0)) == 1


def test_concatenation_is_a_perceptron_on_all_embeddings():
    network = build_network(settings(fusion="concatenation", concatenation_hidden=(5,)), OWN_SIZES, CLASSES)
    embeddings, present = some_samples(absent=0.3)
    flat = torch.where(present[..., None], embeddings, 0).reshape(5, -1)
    first, second = network.layers
    expected = (flat @ first.weight + first.bias).relu() @ second.weight + second.bias
    torch.testing.assert_close(network(embeddings, present, random()), expected)
    assert first.weight.shape == (OWNERS * SIZE, 5)
