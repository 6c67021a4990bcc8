"""The exchanges of vertical federated learning, by hand: what owners are asked, and what is made of their answers."""

import pytest
import torch

from fedgraph.algorithms.phases import Query
from fedgraph.algorithms.vfl_messages import StepReply
from fedgraph.algorithms.vfl_steps import VerticalSteps
from fedgraph.fusion import JoinedSamples
from fedgraph.support.errors import ReplyError

SIZES = {"a": 2, "b": 3, "c": 1}
PRESENT = torch.tensor([[True, True, True], [False, True, True], [True, True, False], [True, False, True]])
NODES = (("b",), ("a", "c"))


def joined():
    return JoinedSamples(
        owners=("a", "b", "c"),
        keys=("k0", "k1", "k2", "k3"),
        classes=("x", "y"),
        split=torch.tensor([0, 0, 0, 2], dtype=torch.int8),
        labels=torch.zeros(4, dtype=torch.int64),
        embeddings=torch.zeros(4, 3, 3),
        present=PRESENT,
        predictions=torch.zeros(4, 3, 2),
        sizes=torch.tensor(list(SIZES.values())),
        fingerprints=("", "", ""),
    )


def value(owner, key):
    return 10.0 * ord(owner) + int(key[1])


def reply(owners, embed):
    """The answer of a node, with numbers that tell owner and sample."""
    embeddings = torch.zeros(len(owners), len(embed), max(SIZES[owner] for owner in owners))
    for row, owner in enumerate(owners):
        for column, key in enumerate(embed):
            embeddings[row, column, : SIZES[owner]] = value(owner, key)
    return StepReply(owners, embeddings).pack()


def exchanged(steps, rows, training=True, nodes=NODES):
    """What a step finds of the answers of some nodes, and the requests to them."""
    phase = steps.embed(rows, training)
    query = next(phase)
    assert isinstance(query, Query)
    requests, answers = [query.request(owners) for owners in nodes], {}
    for request in requests:
        found, lost = query.read(request.owners, reply(request.owners, request.embed))
        assert lost == {}
        answers |= found
    with pytest.raises(StopIteration) as end:
        phase.send(answers)
    return end.value.value, requests


def test_embeddings_are_placed_by_owner_and_masked():
    rows = torch.tensor([3, 1])
    found, requests = exchanged(VerticalSteps(joined()), rows)
    for place, row in enumerate(rows.tolist()):
        for column, owner in enumerate("abc"):
            there = PRESENT[row, column].item()
            wanted = [value(owner, f"k{row}") * there] * SIZES[owner] + [0.0] * (3 - SIZES[owner])
            assert found[place, column].tolist() == wanted
    for request in requests:
        assert (request.step, request.embed, request.update, request.training) == (1, ("k3", "k1"), (), True)
        assert request.gradient.shape[1] == 0


def test_a_gradient_goes_down_once_to_its_owners_for_samples_they_have():
    steps, rows = VerticalSteps(joined()), torch.tensor([0, 1, 2])
    exchanged(steps, rows)
    gradient = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0))
    steps.send_back(rows, gradient)
    _, first = exchanged(steps, torch.tensor([3]), training=False)
    _, second = exchanged(steps, torch.tensor([3]), training=False)
    for request, owners in zip(first, ([1], [0, 2]), strict=True):
        wanted = (gradient * PRESENT[rows][..., None])[:, owners].transpose(0, 1)
        assert torch.equal(request.gradient, wanted)
        assert (request.update, request.step, request.training) == (("k0", "k1", "k2"), 2, False)
    assert all((request.update, request.gradient.shape[1]) == ((), 0) for request in second)
    # Four bytes for each of three numbers, of 3, 1 and 1 samples up and 3 down.
    assert steps.bytes_per_owner == 4 * 3 * (3 + 1 + 1 + 3)
    assert steps.training_bytes_per_owner == 4 * 3 * (3 + 3), "the fourth sample is one of the test"


def test_owners_without_an_answer_are_forgotten_by_none():
    steps, rows = VerticalSteps(joined()), torch.tensor([0, 2])
    found, _ = exchanged(steps, rows, nodes=[("b",)])
    assert steps.lost == ["a", "c"]
    assert steps.present(rows).tolist() == [[False, True, False], [False, True, False]]
    assert not found[:, [0, 2]].any()
    assert found[:, 1].all()
    other = VerticalSteps(joined())
    other.load_state(steps.state())
    assert other.lost == ["a", "c"]
    assert torch.equal(other.present(rows), steps.present(rows))


def test_an_answer_of_another_shape_is_refused():
    phase = VerticalSteps(joined()).embed(torch.tensor([0]), training=True)
    query = next(phase)
    with pytest.raises(ReplyError, match="shape"):
        query.read(("b",), reply(("b",), ("k0", "k1")))


def test_what_is_still_to_be_sent_survives_a_stop():
    steps, rows = VerticalSteps(joined()), torch.tensor([0, 1, 2])
    _, requests = exchanged(steps, rows)
    assert {request.keep_from for request in requests} == {1}, "the start, until there is a checkpoint"
    gradient = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0))
    steps.send_back(rows, gradient)
    state = steps.state()
    other = VerticalSteps(joined())
    other.load_state(state)
    for each in (steps, other):
        _, requests = exchanged(each, torch.tensor([3]), training=False)
        for request in requests:
            assert (request.step, request.keep_from, request.update) == (2, 2, ("k0", "k1", "k2"))
        wanted = (gradient * PRESENT[rows][..., None])[:, [0, 2]].transpose(0, 1)
        assert torch.equal(requests[1].gradient, wanted)
    assert other.bytes_per_owner == steps.bytes_per_owner == 4 * 3 * (3 + 1 + 3)
    assert other.training_bytes_per_owner == steps.training_bytes_per_owner == 4 * 3 * (3 + 3)
