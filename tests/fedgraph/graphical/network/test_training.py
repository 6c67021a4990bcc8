import pytest
import torch
from torch.nn import functional

from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.penalties import SparsePaths
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.network.training import train
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.randomness import generator


def started(network, clients):
    return torch.stack([network.initial(generator(0, "test", client)) for client in range(clients)])


def by_hand(network, parameters, rows, targets=None):
    """Sum of the features' mean losses over the observed rows, by the number of units."""
    targets = rows if targets is None else targets
    schema, total = network.schema, 0.0
    predictions = network.forward(parameters, rows[None])[0]
    for feature in schema.features:
        units = schema.slices[feature.name]
        seen = ~rows[:, units].isnan().any(1) & ~targets[:, units].isnan().any(1)
        wanted, found = targets[seen, units], predictions[seen, units]
        if feature.kind == "binary":
            total = total + functional.binary_cross_entropy(found, wanted)
        elif feature.kind == "categorical":
            total = total - (wanted * found.log()).sum(1).mean()
        else:
            total = total + (wanted - found).square().sum(1).mean()
    return total / len(schema.unit_feature)


@pytest.mark.parametrize("other_targets", [False, True])
@pytest.mark.parametrize(("architecture", "compile"), [("masked", True), ("masked", False), ("path-norm", False)])
def test_steps_are_those_of_adam_on_the_mean_losses(mixed, architecture, compile, other_targets):
    schema, rows = mixed(300)
    targets = None
    if other_targets:
        # Soft ones, of which the categories' sum to 1, and some of which are missing.
        targets = (rows + rows.flip(0)) / 2
        targets[torch.rand(300, generator=generator(3)) < 0.2, 1] = torch.nan
    rows[torch.rand(300, generator=generator(1)) < 0.2, 0] = torch.nan
    rows[torch.rand(300, generator=generator(2)) < 0.2, 2:5] = torch.nan
    settings = NGMSettings(architecture=architecture, hidden=4, epochs=4, batch_size=None, compile=compile)
    graph = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]]).bool()
    network = Network(schema, graph, settings)
    start = started(network, 1)
    table = rows if targets is None else torch.cat([rows, targets], 1)
    found = train(network, start, [table], [table[:40]], ["a"], settings, seed=0)
    assert (found.epochs == 4).all()
    wanted = network.with_moments(network.pruned(start), rows[None])
    trainable = network.layout.num_trainable
    fixed = wanted[:, trainable:]
    wanted = wanted[:, :trainable].clone().requires_grad_()
    mean = square = 0.0
    for step in range(1, 5):
        (gradient,) = torch.autograd.grad(by_hand(network, torch.cat([wanted, fixed], 1), rows, targets), wanted)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        change = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
        wanted = (wanted - settings.learning_rate * change).detach().requires_grad_()
    assert torch.allclose(found.parameters[:, :trainable], wanted, atol=1e-5)
    assert torch.equal(found.parameters[:, trainable:], fixed)
    loss = by_hand(network, found.parameters, rows[:40], None if targets is None else targets[:40])
    assert found.losses.sum() / 6 == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize("compile", [True, False])
def test_together_or_alone_clients_become_the_same(chain, numbers, chain_graph, compile):
    settings = NGMSettings(hidden=4, epochs=12, patience=1, batch_size=32, learning_rate=0.1, compile=compile)
    network = Network(numbers(4), chain_graph(4), settings)
    # A minibatch or two more than others, and one that is not full.
    counts, names = (150, 70, 100), ["a", "b", "c"]
    rows = [chain(count + 40, 4, seed) for seed, count in enumerate(counts)]
    training, held_out = [each[:-40] for each in rows], [each[-40:] for each in rows]
    start = started(network, 3)
    together = train(network, start, training, held_out, names, settings, seed=5)
    assert len(set(together.run.tolist())) > 1
    for place in range(3):
        one = slice(place, place + 1)
        alone = train(network, start[one], training[one], held_out[one], names[one], settings, seed=5)
        assert torch.allclose(together.parameters[one], alone.parameters, atol=1e-5)
        assert torch.equal(together.epochs[one], alone.epochs)
        assert torch.equal(together.run[one], alone.run)


def test_every_group_keeps_the_parameters_of_its_best_epoch(chain, numbers, chain_graph):
    network = Network(numbers(4), chain_graph(4), NGMSettings(hidden=4))
    rows, start = chain(100, 4), started(network, 1)

    def after(epochs, patience=100):
        settings = NGMSettings(hidden=4, batch_size=20, learning_rate=0.1, epochs=epochs, patience=patience)
        return train(network, start, [rows[:60]], [rows[60:]], ["a"], settings, seed=0)

    found = after(12)
    assert len(set(found.epochs[0].tolist())) > 1
    for group, best in enumerate(found.epochs[0].tolist()):
        then = network.layout.unflatten(after(best).parameters)
        for name, values in network.layout.unflatten(found.parameters).items():
            if name not in network.layout.buffers:
                assert torch.equal(values[0, group], then[name][0, group])
    predictions = network.forward(found.parameters, rows[None, 60:])
    assert torch.allclose(found.losses, (predictions - rows[60:]).square().mean(1), rtol=1e-4)
    stopped = after(100, patience=2)
    assert stopped.run.tolist() == [int(stopped.epochs.max()) + 2]


@pytest.mark.parametrize("penalised", [True, False])
def test_compiled_or_not_models_become_the_same(mixed, penalised):
    """To float tolerance, which training by minibatches widens."""
    schema, rows = mixed(400)
    rows[torch.rand(400, generator=generator(1)) < 0.2, 0] = torch.nan
    penalty, found = SparsePaths(0.1) if penalised else None, []
    for compile in (True, False):
        settings = NGMSettings(epochs=6, batch_size=64, compile=compile)
        network = Network(schema, ~torch.eye(4).bool(), settings)
        parts = [rows[:300], rows[:70]], [rows[300:], rows[300:]]
        found.append(train(network, started(network, 2), *parts, ["a", "b"], settings, 0, penalty))
    compiled, plain = found
    torch.testing.assert_close(compiled.losses, plain.losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.parameters, plain.parameters, rtol=0, atol=2e-3)
    assert torch.equal(compiled.run, plain.run)


def test_what_no_held_out_row_tells_of_is_learned_all_the_same(chain, numbers, chain_graph):
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    rows, settings = chain(600, 3), NGMSettings(hidden=4, epochs=10, learning_rate=0.02)
    held_out = rows[500:].index_fill(1, torch.tensor([2]), torch.nan)
    found = train(network, started(network, 1), [rows[:500]], [held_out], ["a"], settings, seed=0)
    assert found.epochs[0, 2] == found.epochs[0, :2].max()
    error = (network.forward(found.parameters, rows[None, 500:])[0] - rows[500:])[:, 2].square().mean()
    assert error < 0.7 * rows[500:, 2].var()


def test_nothing_is_left_of_what_the_graph_forbids(chain, numbers, chain_graph):
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4, epochs=2))
    rows = chain(100, 3)
    found = train(network, started(network, 1), [rows], [rows], ["a"], network.settings, seed=0)
    assert torch.equal(found.parameters, network.pruned(found.parameters))
    assert not torch.equal(found.parameters, found.parameters.index_fill(1, torch.arange(12), 0))


def test_what_is_frozen_keeps_its_bits(chain, numbers, chain_graph):
    settings = NGMSettings(architecture="path-norm", hidden=4, epochs=3, batch_size=20)
    network = Network(numbers(3), chain_graph(3), settings)
    start, rows = started(network, 2), [chain(100, 3), chain(30, 3, seed=1)]
    frozen = torch.arange(start.shape[1]) % 2 == 0
    found = train(network, start, rows, rows, ["a", "b"], settings, 0, frozen=frozen).parameters
    assert torch.equal(found[:, frozen], start[:, frozen])
    proper = torch.arange(start.shape[1]) < network.layout.num_trainable
    assert (found != start)[:, ~frozen & proper].any(1).all()
    mean = network.state(found)["mean"]
    assert (mean == network.state(start)["mean"]).any()
    assert (mean != network.state(start)["mean"]).any()


class Tolerance:
    """A penalty of which the tests say how far each epoch's model is beyond the tolerance."""

    chooses = False

    def __init__(self, excess):
        self.left = list(excess)

    def __call__(self, network, state):
        return 0 * state["head.bias"].sum(1, keepdim=True)

    def excess(self, network, state):
        return torch.tensor([self.left.pop(0)])


@pytest.mark.parametrize(
    ("excess", "best"), [((0.5, 0.5, 0.0, 0.0, 0.1), 3), ((0.0, 0.0, 0.3, 0.1, 0.2), 1), ((0.1, 0.2, 0.3, 0.4, 0.5), 4)]
)
def test_the_best_fit_within_the_tolerance_is_kept(excess, best, chain, numbers, chain_graph, caplog):
    """The fit gets better from epoch to epoch; the first number is of the model before training."""
    settings = NGMSettings(architecture="path-norm", hidden=8, epochs=4, learning_rate=1e-3, batch_size=None)
    network = Network(numbers(3), chain_graph(3), settings)
    rows = chain(100, 3)
    found = train(network, started(network, 1), [rows], [rows], ["a"], settings, 0, Tolerance(excess))
    assert found.epochs.tolist() == [[best]]
    assert found.excess.tolist() == pytest.approx([excess[best]])
    assert ("tolerance in all epochs" in caplog.text) == (min(excess) > 0)


def test_clients_without_rows_and_training_that_diverges_are_named(chain, numbers, chain_graph):
    network = Network(numbers(3), chain_graph(3), NGMSettings(hidden=4))
    rows, names = chain(50, 3), ["a", "b"]
    with pytest.raises(DataError, match="'b' has 0 training"):
        train(network, started(network, 2), [rows, rows[:0]], [rows, rows], names, network.settings, 0)
    with pytest.raises(DataError, match=r"'a' .*\[3\] and \[2\]"):
        train(network, started(network, 2), [rows, rows], [rows[:, :2], rows], names, network.settings, 0)
    wild = NGMSettings(hidden=4, learning_rate=1e30)
    with pytest.raises(RunError, match="'a' diverged in epoch 1"):
        train(network, started(network, 2), [rows, rows], [rows, rows], names, wild, 0)
