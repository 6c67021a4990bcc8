"""The exchanges of vertical federated learning, with nodes that answer by rule."""

from types import SimpleNamespace

import pytest
import torch
from flwr.app import Message

from fedgraph.federation.exchange import OrderedGrid
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.federation.joined_samples import JoinedSamples
from fedgraph.messages import check_content
from fedgraph.methods.vfl import StepReply, StepRequest
from fedgraph.strategies.engine.vertical_steps import VerticalSteps
from fedgraph.support.errors import RunError

RUN = {"client": "c:C", "experiment": "{}", "folder": SimpleNamespace(name="run"), "timeout": 1.0, "min_clients": 1}
PLAN = SimpleNamespace(**RUN, tolerant=False)
SIZES = {"a": 2, "b": 3, "c": 1}
PRESENT = torch.tensor([[True, True, True], [False, True, True], [True, True, False], [True, False, True]])


def joined():
    return JoinedSamples(
        owners=("a", "b", "c"),
        keys=("k0", "k1", "k2", "k3"),
        classes=("x", "y"),
        data="made up",
        hosts={1000: torch.tensor([1]), 1001: torch.tensor([0, 2])},
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


@pytest.fixture
def served():
    """The steps, and what their nodes are asked; each answers with numbers that tell owner and sample."""
    asked = []

    def node(message, context):
        request = StepRequest.unpack(check_content(message.content))
        asked.append((context.node_id, request))
        size = max(SIZES[owner] for owner in request.owners)
        answer = torch.zeros(len(request.owners), len(request.embed), size)
        for row, owner in enumerate(request.owners):
            for column, key in enumerate(request.embed):
                answer[row, column, : SIZES[owner]] = value(owner, key)
        return Message(StepReply(request.owners, answer).pack(), reply_to=message)

    grid = OrderedGrid(LocalGrid(node, [{}, {}]), joined().federation())
    return VerticalSteps(grid, PLAN, joined()), asked


def test_embeddings_are_placed_by_owner_and_masked(served):
    steps, asked = served
    rows = torch.tensor([3, 1])
    found = steps.embed(rows, training=True)
    for place, row in enumerate(rows.tolist()):
        for column, owner in enumerate("abc"):
            there = PRESENT[row, column].item()
            wanted = [value(owner, f"k{row}") * there] * SIZES[owner] + [0.0] * (3 - SIZES[owner])
            assert found[place, column].tolist() == wanted
    assert [(node, request.owners) for node, request in asked] == [(1001, ("a", "c")), (1000, ("b",))]
    for _, request in asked:
        assert (request.step, request.embed, request.update, request.training) == (1, ("k3", "k1"), (), True)
        assert request.gradient.shape[1] == 0


def test_a_gradient_goes_down_once_to_its_owners_for_samples_they_have(served):
    steps, asked = served
    rows = torch.tensor([0, 1, 2])
    steps.embed(rows, training=True)
    gradient = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0))
    steps.send_back(rows, gradient)
    asked.clear()
    steps.embed(torch.tensor([3]), training=False)
    steps.embed(torch.tensor([3]), training=False)
    first, second = asked[:2], asked[2:]
    for (_, request), owners in zip(first, ([0, 2], [1]), strict=True):
        wanted = (gradient * PRESENT[rows][..., None])[:, owners].transpose(0, 1)
        assert torch.equal(request.gradient, wanted)
        assert (request.update, request.step, request.training) == (("k0", "k1", "k2"), 2, False)
    assert all((request.update, request.gradient.shape[1]) == ((), 0) for _, request in second)
    # Four bytes for each of three numbers, of 3, 1 and 1 samples up and 3 down.
    assert steps.bytes_per_owner == 4 * 3 * (3 + 1 + 1 + 3)
    assert steps.training_bytes_per_owner == 4 * 3 * (3 + 3), "the fourth sample is one of the test"


def test_a_node_that_is_gone_is_named_by_its_owners(served):
    steps, _ = served
    del steps._grid._grid.contexts[1001]
    with pytest.raises(
        RunError,
        match="step 1: no usable embeddings from a, c: no reply in time. To go on without these owners, set",
    ):
        steps.embed(torch.tensor([0]), training=True)


def test_a_tolerant_run_goes_on_without_owners_that_are_gone_and_forgets_none_of_them(served):
    steps, asked = served
    steps._plan = SimpleNamespace(**RUN, tolerant=True)
    del steps._grid._grid.contexts[1001]
    rows = torch.tensor([0, 2])
    found = steps.embed(rows, training=True)
    assert steps.lost == dict.fromkeys(("a", "c"), "no reply in time")
    assert steps.present(rows).tolist() == [[False, True, False], [False, True, False]]
    assert not found[:, [0, 2]].any()
    assert found[:, 1].all()
    asked.clear()
    other = VerticalSteps(steps._grid, steps._plan, joined())
    other.load_state(steps.state())
    other.embed(rows, training=True)
    assert [request.owners for _, request in asked] == [("b",)]
    steps._plan = SimpleNamespace(**{**RUN, "min_clients": 2}, tolerant=True)
    del steps._grid._grid.contexts[1000]
    with pytest.raises(RunError, match="only 0 of at least 2 owners"):
        steps.embed(rows, training=True)


def test_what_is_still_to_be_sent_survives_a_stop(served):
    steps, asked = served
    rows = torch.tensor([0, 1, 2])
    steps.embed(rows, training=True)
    assert {request.keep_from for _, request in asked} == {1}, "the start, until there is a checkpoint"
    gradient = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0))
    steps.send_back(rows, gradient)
    state = steps.state()
    other = VerticalSteps(steps._grid, PLAN, joined())
    other.load_state(state)
    for each in (steps, other):
        asked.clear()
        each.embed(torch.tensor([3]), training=False)
        for _, request in asked:
            assert (request.step, request.keep_from, request.update) == (2, 2, ("k0", "k1", "k2"))
        wanted = (gradient * PRESENT[rows][..., None])[:, [0, 2]].transpose(0, 1)
        assert torch.equal(asked[0][1].gradient, wanted)
    assert other.bytes_per_owner == steps.bytes_per_owner == 4 * 3 * (3 + 1 + 3)
    assert other.training_bytes_per_owner == steps.training_bytes_per_owner == 4 * 3 * (3 + 3)
