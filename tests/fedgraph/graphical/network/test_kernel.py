"""Training of masked networks in C++ against operations of PyTorch, which tests of their own hold to autograd."""

import pytest
import torch

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.network import kernel as network_kernel
from fedgraph.graphical.network.kernel import CompiledRows, suits
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.rows import NetworkRows, stack_rows
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.network.stitched import StitchedNetwork
from fedgraph.models.native import loader as native
from fedgraph.support.randomness import generator
from fedgraph.training.optimisers import Optimiser, fresh_state
from fedgraph.training.settings import TrainSettings

pytestmark = pytest.mark.skipif(network_kernel.library() is None, reason="no C++ compiler")

GRAPH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]]).bool()
# The last client's second feature has no neighbours.
GRAPHS = torch.stack([GRAPH, ~torch.eye(4).bool(), GRAPH & torch.tensor([1, 0, 1, 1]).bool()[:, None]])
# Blocks of C++ have 256 rows.
COUNTS = (700, 40, 257)
MINIBATCH = 300
VARIANTS = {
    "default": {},
    "three layers": {"layers": 3, "hidden": 5},
    "one layer": {"layers": 1, "hidden": 9},
    "squared": {"loss": "squared", "hidden": 8},
}


def tables(mixed, soft, missing):
    """Of three clients; with values that are missing, and with others to be learned in place of their own."""
    schema, made = None, []
    for place, count in enumerate(COUNTS):
        schema, rows = mixed(count, seed=place)
        random = generator(place, "holes")
        wanted = (rows + rows.flip(0)) / 2
        if missing:
            rows[torch.rand(count, generator=random) < 0.2, 0] = torch.nan
            rows[torch.rand(count, generator=random) < 0.2, 2:5] = torch.nan
            wanted[torch.rand(count, generator=random) < 0.2, 1] = torch.nan
            rows[:3] = torch.nan
        made.append(torch.cat([rows, wanted], 1) if soft else rows)
    return schema, made


def both(mixed, soft=False, missing=False, graphs=GRAPHS, **settings):
    """A network, random models' parameters proper, and rows as C++ and as PyTorch takes them."""
    schema, made = tables(mixed, soft, missing)
    network = Network(schema, graphs, NGMSettings(**settings))
    start = torch.stack([network.initial(generator(1, client)) for client in range(len(COUNTS))])
    start += 0.1 * torch.randn(start.shape, generator=generator(2))
    start = network.with_moments(network.pruned(start), stack_rows(made)[..., :6])
    layout = network.layout
    buffers = layout.part(layout.buffers).unflatten(start[:, layout.num_trainable :])
    trained = start[:, : layout.num_trainable].contiguous()
    return network, trained, CompiledRows(network, buffers, made), NetworkRows(network, buffers, made)


def minibatches(steps=1, seed=0):
    """Places ``[steps, clients, batch]``: of the first client full ones, of the second fewer rows, of the third none
    in the last step where there are several."""
    places = torch.full((steps, len(COUNTS), MINIBATCH), -1)
    for step in range(steps):
        for client, count in enumerate(COUNTS):
            order = torch.randperm(count, generator=generator(seed, step, client))[:MINIBATCH]
            places[step, client, : len(order)] = order
    if steps > 1:
        places[-1, 2] = -1
    return places


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("soft", "missing"), [(False, False), (True, True), (False, True)])
def test_losses_and_gradients_are_the_same(mixed, variant, soft, missing):
    _, trained, compiled, plain = both(mixed, soft, missing, **VARIANTS[variant])
    assert torch.equal(compiled.counts, plain.counts)
    torch.testing.assert_close(compiled.losses(trained), plain.losses(trained), rtol=1e-5, atol=1e-6)
    for places in (None, minibatches()[0]):
        (found, idle), (wanted, idle_too) = (rows.gradient(trained, places) for rows in (compiled, plain))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)
        assert torch.equal(idle, idle_too)
        assert wanted.abs().amax() > 1e-3


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("soft", [False, True])
def test_embeddings_are_fitted_alike(mixed, loss, soft):
    """The category in the rows of ``mixed`` as an embedding of as many numbers."""
    of_mixed = mixed(1)[0].features
    schema = Schema((*of_mixed[:2], Feature("scan", "embedding", size=3), of_mixed[3]))

    def with_embedding(count, seed):
        rows = mixed(count, seed)[1]
        return schema, torch.cat([rows[:, :2], 0.7 * rows[:, 2:5] + 0.3 * rows[:, :1], rows[:, 5:]], 1)

    _, trained, compiled, plain = both(with_embedding, soft, loss=loss)
    torch.testing.assert_close(compiled.losses(trained), plain.losses(trained), rtol=1e-5, atol=1e-6)
    wanted = plain.gradient(trained, None)[0]
    torch.testing.assert_close(compiled.gradient(trained, None)[0], wanted, rtol=1e-4, atol=1e-7)
    assert wanted.abs().amax() > 1e-3


def steps_of(rows, trained, places, active=(True, True, True)):
    settings = TrainSettings(optimizer="adam", batch_size=MINIBATCH, local_epochs=1)
    optimiser = Optimiser(settings, 0.01, fresh_state(settings, *trained.shape))
    optimiser.state["step"] += torch.tensor([0.0, 3.0, 40.0])
    rows.train(optimiser, trained, places, torch.tensor(active))
    return {"trained": trained, **optimiser.state}


def test_steps_are_those_of_adam_on_the_gradients(mixed):
    _, trained, compiled, plain = both(mixed, missing=True)
    places, active = minibatches(4), (True, False, True)
    start, wanted = trained.clone(), trained.clone()
    found = steps_of(compiled, trained, places, active)
    settings = TrainSettings(optimizer="adam", batch_size=MINIBATCH, local_epochs=1)
    state = fresh_state(settings, *trained.shape)
    state["step"] += torch.tensor([0.0, 3.0, 40.0])
    for number, some in enumerate(places):
        moving = torch.tensor([0]) if number == 3 else torch.tensor([0, 2])
        own = {name: value[moving] for name, value in state.items()}
        moved = wanted[moving]
        Optimiser(settings, 0.01, own).step(moved, plain.gradient(wanted, some)[0][moving])
        wanted[moving] = moved
        for name, value in own.items():
            state[name][moving] = value
    assert found["step"].tolist() == [4, 3, 43]
    for name, value in {"trained": wanted, **state}.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=name)
    assert torch.equal(trained[1], start[1])
    assert (trained[0] != start[0]).any()


def test_rows_that_tell_of_nothing_move_nobody(mixed):
    _, trained, compiled, _ = both(mixed, missing=True)
    before = trained.clone()
    # The first three rows of everybody.
    found = steps_of(compiled, trained, torch.arange(3).expand(2, 3, 3))
    assert torch.equal(trained, before)
    assert found["step"].tolist() == [0, 3, 40]


def test_bits_do_not_depend_on_the_number_of_threads(mixed, monkeypatch):
    monkeypatch.setattr(network_kernel, "_PER_THREAD", 1)
    outcomes = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(network_kernel, "available_cores", lambda threads=threads: threads)
        _, trained, compiled, _ = both(mixed, missing=True)
        outcomes.append({**steps_of(compiled, trained, minibatches(3)), "losses": compiled.losses(trained)})
    for outcome in outcomes[1:]:
        assert all(torch.equal(outcome[name], value) for name, value in outcomes[0].items())


@pytest.mark.parametrize("batch_size", [None, 50, 300])
def test_bits_do_not_depend_on_who_is_trained_with_a_client(mixed, batch_size):
    schema, rows = tables(mixed, False, True)
    names, settings = ["a", "b", "c"], NGMSettings(hidden=4, epochs=8, patience=2, batch_size=batch_size)
    held_out = [table[-30:] for table in rows]
    together = fit_ngm(schema, GRAPH, rows, held_out, names, settings, 0).trained
    for place, name in enumerate(names):
        alone = fit_ngm(schema, GRAPH, rows[place : place + 1], [held_out[place]], [name], settings, 0).trained
        trainable = Network(schema, GRAPH, settings).layout.num_trainable
        assert torch.equal(alone.parameters[0, :trainable], together.parameters[place, :trainable])
        assert torch.equal(alone.losses[0], together.losses[place])


def test_it_is_used_where_it_can_be(mixed):
    network, trained, *_ = both(mixed)
    schema = network.schema
    assert suits(network, trained)
    assert not suits(network, trained.double())
    assert not suits(Network(schema, GRAPH, NGMSettings(compile=False)), trained)
    assert not suits(Network(schema, GRAPH, NGMSettings(architecture="path-norm")), trained)
    common = Network(schema.select(schema.names[:3]), GRAPH[:3, :3], NGMSettings())
    assert not suits(StitchedNetwork(schema, GRAPH, NGMSettings(), common), trained)


def test_what_does_not_fit_is_refused_before_it_reaches_addresses(mixed):
    _, trained, compiled, _ = both(mixed)
    with pytest.raises(ValueError, match="do not fit"):
        compiled.losses(trained[:2])
    with pytest.raises(ValueError, match="do not fit"):
        compiled.losses(trained.double())
    with pytest.raises(ValueError, match="do not fit"):
        compiled.gradient(trained, minibatches()[0, :2])
    with pytest.raises(ValueError, match="models must be contiguous"):
        compiled.losses(torch.stack([trained, trained], 2)[..., 0])


def test_without_a_compiler_operations_of_pytorch_do_it(mixed, monkeypatch, caplog):
    def fails(name, source):
        raise native.NativeError("there is no C++ compiler")

    schema, rows = tables(mixed, False, False)
    wanted = fit_ngm(schema, GRAPH, rows, rows, ["a", "b", "c"], NGMSettings(epochs=1, compile=False), 0)
    monkeypatch.setattr(native, "load", fails)
    network_kernel.library.forget()
    try:
        found = fit_ngm(schema, GRAPH, rows, rows, ["a", "b", "c"], NGMSettings(epochs=1), 0)
    finally:
        network_kernel.library.forget()
    assert torch.equal(found.parameters, wanted.parameters)
    assert "[fedngm.ngm] compile: the training of graphical networks in C++ cannot be used on this node" in caplog.text
