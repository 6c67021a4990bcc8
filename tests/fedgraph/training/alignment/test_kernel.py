"""The alignment of peers in C++ against the same in operations of PyTorch."""

import pytest
import torch

from fedgraph.models.native import loader as native
from fedgraph.support.settings import parse
from fedgraph.training.alignment import kernel as peer_alignment_kernel
from fedgraph.training.alignment.peer_alignment import Distance, PeerAlignment
from fedgraph.training.optimisers import fresh_state
from fedgraph.training.settings import TrainSettings

pytestmark = pytest.mark.skipif(peer_alignment_kernel.library() is None, reason="no C++ compiler")

PEERS, STEPS = 3, 5
OPTIMISERS = {
    "adam": {"optimizer": "adam"},
    "with L2": {"optimizer": "adam", "weight-decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight-decay": 0.1},
    "schedule": {"optimizer": "adam", "warmup-epochs": 1, "final-learning-rate": 0.001, "local-epochs": 2},
}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moved(compile, columns, power=1.0, moves=True, **train):
    """Others, their moments and the gradients after a few steps of a peer that wanders about."""
    settings = parse(TrainSettings, {"batch-size": 10, "learning-rate": 0.01, "compile": compile, **train}, "t")
    moments = fresh_state(settings, PEERS, columns)
    # Such as one that came back: its moments are of another age.
    if "step" in moments:
        moments["step"] += torch.tensor([0.0, 3.0, 40.0])
    term = PeerAlignment(
        others=drawn(PEERS, columns, seed=1),
        weights=torch.tensor([0.5, 0.2, 0.3]),
        distance=Distance(0.7, True, power),
        moves=moves,
        settings=settings,
        round=1,
        moments=moments,
        num_examples=torch.tensor([30]),
    )
    assert term._native == (compile and peer_alignment_kernel.library() is not None)
    gradients = [term(drawn(1, columns, seed=2 + step), slice(0, 1), torch.tensor([10.0])) for step in range(STEPS)]
    return {"others": term.others, "gradients": torch.cat(gradients), **moments}


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("power", [1, 1.5, 2])
def test_it_computes_the_same(kind, power):
    for moves in (True, False):
        found, expected = (moved(compile, 5000, power, moves, **OPTIMISERS[kind]) for compile in (True, False))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("columns", [1, 2047, 2048, 2049, 3 * 2048 + 5])
def test_columns_are_dealt_out_to_threads_without_a_difference(columns):
    before, outcomes = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outcomes.append(moved(True, columns, optimizer="adam"))
    finally:
        torch.set_num_threads(before)
    for outcome in outcomes[1:]:
        assert all(torch.equal(outcome[name], value) for name, value in outcomes[0].items())


def test_equal_parameters_do_not_pull():
    settings = TrainSettings(optimizer="adam", compile=True)
    own = torch.tensor([1.0, -2.0, 0.0])
    for power in (1.0, 1.5, 2.0):
        others = own.repeat(2, 1)
        moments = fresh_state(settings, 2, 3)
        added = peer_alignment_kernel.align(own, others, torch.ones(2), power, moments, settings, 0.1)
        assert not added.any()
        assert torch.equal(others, own.repeat(2, 1))


def test_what_does_not_fit_is_refused_before_it_reaches_addresses():
    settings, others = TrainSettings(optimizer="adam", compile=True), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="do not fit"):
        peer_alignment_kernel.align(torch.zeros(4), others, torch.ones(2), 1.0, None, settings, 0.1)
    with pytest.raises(ValueError, match="do not fit"):
        peer_alignment_kernel.align(torch.zeros(3), others, torch.ones(1), 1.0, None, settings, 0.1)
    with pytest.raises(ValueError, match="must be contiguous float32"):
        peer_alignment_kernel.align(torch.zeros(3).double(), others, torch.ones(2), 1.0, None, settings, 0.1)
    with pytest.raises(ValueError, match="must be contiguous float32"):
        peer_alignment_kernel.align(torch.zeros(2), others.T, torch.ones(3), 1.0, None, settings, 0.1)
    short = {**fresh_state(settings, 2, 3), "step": torch.zeros(1)}
    with pytest.raises(ValueError, match="moments do not fit"):
        peer_alignment_kernel.align(torch.zeros(3), others, torch.ones(2), 1.0, short, settings, 0.1)
    wrong = fresh_state(settings, 2, 4)
    with pytest.raises(ValueError, match="moments"):
        peer_alignment_kernel.align(torch.zeros(3), others, torch.ones(2), 1.0, wrong, settings, 0.1)


def test_it_is_used_where_it_can_be():
    adam, others = TrainSettings(optimizer="adam", compile=True), torch.zeros(2, 3)
    assert peer_alignment_kernel.suits(adam, others)
    assert not peer_alignment_kernel.suits(adam, others.double())
    assert not peer_alignment_kernel.suits(adam, torch.zeros(3, 2).T)
    assert not peer_alignment_kernel.suits(TrainSettings(optimizer="adam", compile=False), others)
    assert not peer_alignment_kernel.suits(TrainSettings(optimizer="sgd", compile=True), others)


def test_without_a_compiler_operations_of_pytorch_do_it(monkeypatch, caplog):
    def fails(name, source):
        raise native.NativeError("there is no C++ compiler")

    monkeypatch.setattr(native, "load", fails)
    peer_alignment_kernel.library.forget()
    try:
        found = moved(True, 50, optimizer="adam")
        assert not peer_alignment_kernel.suits(TrainSettings(optimizer="adam", compile=True), torch.zeros(2, 3))
    finally:
        peer_alignment_kernel.library.forget()
    assert all(torch.equal(found[name], value) for name, value in moved(False, 50, optimizer="adam").items())
    assert "there is no C++ compiler" in caplog.text
