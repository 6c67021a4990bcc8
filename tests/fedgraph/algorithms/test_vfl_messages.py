import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedgraph.algorithms.vfl_messages import StepReply, StepRequest
from fedgraph.support.errors import ReplyError

OWNERS = ("a", "b")
SHAPE = (2, 3, 4)
ADDRESS = {"client": "c:C", "experiment": "{}", "run": "run"}


def request():
    gradient = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(1))
    return StepRequest(OWNERS, 7, ("k1",), gradient, ("k2", "k3", "k4"), True, 5, **ADDRESS)


def test_a_request_arrives_as_it_was_sent():
    got = StepRequest.unpack(request().pack())
    assert torch.equal(got.gradient, request().gradient)
    assert {**vars(got), "gradient": 0} == {**vars(request()), "gradient": 0}
    first = StepRequest(OWNERS, 1, (), torch.zeros(2, 0, 4), ("k1",), False, 0, **ADDRESS)
    assert StepRequest.unpack(first.pack()).gradient.shape == (2, 0, 4)


@pytest.mark.parametrize("part", ["owners", "update", "embed", "training", "keep-from"])
def test_a_request_without_a_part_is_refused(part):
    content = request().pack()
    del content["config"][part]
    with pytest.raises(ReplyError, match=f"the request lacks '{part}'"):
        StepRequest.unpack(content)


def reply(values=None, owners=OWNERS):
    values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)) if values is None else values
    return StepReply(owners, values)


def test_a_reply_arrives_as_it_was_sent():
    got = StepReply.unpack(reply().pack(), OWNERS, SHAPE)
    assert got.owners == OWNERS
    assert torch.equal(got.embeddings, reply().embeddings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RecordDict(), "malformed"),
        (RecordDict({"config": ConfigRecord({"owners": ["a", "b"]})}), "malformed .*stacked"),
        (RecordDict({**reply().pack(), "config": ConfigRecord({"owners": 3})}), "is for 3, but"),
        (
            RecordDict({**reply().pack(), "config": ConfigRecord({"owners": [3]})}),
            "is for .3., but a, b were asked",
        ),
        (reply(owners=("b", "a")).pack(), "is for .'b', 'a'., but a, b were asked"),
        (reply(torch.zeros(2, 3, 3)).pack(), "shape"),
        (reply(torch.zeros(SHAPE).double()).pack(), "type float64"),
        (reply(torch.full(SHAPE, torch.nan)).pack(), "NaN, .*learning-rate"),
        (reply(torch.zeros(SHAPE).index_fill(0, torch.tensor([1]), torch.inf)).pack(), "NaN, infinite or huge"),
    ],
)
def test_malformed_replies_are_refused(content, message):
    with pytest.raises(ReplyError, match=message):
        StepReply.unpack(content, OWNERS, SHAPE)


def test_arrays_beside_the_embeddings_are_refused():
    content = reply().pack()
    content["stacked"] = ArrayRecord({**dict(content["stacked"].items()), "w": Array(torch.zeros(1).numpy())})
    with pytest.raises(ReplyError, match="holds the arrays"):
        StepReply.unpack(content, OWNERS, SHAPE)
