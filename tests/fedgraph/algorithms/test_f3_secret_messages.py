"""What goes to and fro in inference on shares, and what is refused of it."""

import pytest
import torch
from flwr.app import ConfigRecord

from fedgraph.algorithms.f3_secret_messages import (
    TAG_BYTES,
    ComputeReply,
    ComputeRequest,
    Introduction,
    ShareReply,
    ShareRequest,
    binding,
    sealed_bytes,
)
from fedgraph.messages.array_records import to_record
from fedgraph.messages.embeddings import EmbedReply
from fedgraph.privacy.secret.sealed import Context, KeyPair, seal
from fedgraph.privacy.secret.shamir import ShareSettings
from fedgraph.support.errors import ReplyError

ADDRESS = {"client": "c:C", "experiment": "{}", "run": "run"}
SEALED = {"a": torch.arange(120, dtype=torch.uint8).view(2, 60), "b": torch.ones(2, 48, dtype=torch.uint8)}


def compute_request(**changed):
    parts = {
        "client": "c",
        "experiment": "{}",
        "run": "run",
        "request": "r",
        "aggregator": "north",
        "owners": ("a", "b"),
        "keys": ("x", "y", "z"),
        "sizes": torch.tensor([4, 3]),
        "fingerprints": ("f", "g"),
        "present": torch.tensor([[True, False, True], [True, True, True]]),
        "patterns": torch.tensor([1, 0, 1]),
        "mixing": torch.arange(16).view(2, 2, 2, 2),
        "projections": torch.arange(16).view(2, 2, 4),
        "sealed": {"b": torch.arange(7, dtype=torch.uint8)},
    }
    return ComputeRequest(**{**parts, **changed})


def test_requests_arrive_as_they_were_sent():
    shared = ShareRequest("r", "new", {"a": "f", "b": "g"}, {"north": b"1" * 32, "east": b"2" * 32}, **ADDRESS)
    assert ShareRequest.unpack(shared.pack()) == shared
    assert list(ShareRequest.unpack(shared.pack()).aggregators) == ["north", "east"], "their order is their points"
    sent = compute_request()
    got = ComputeRequest.unpack(sent.pack())
    for name, value in vars(sent).items():
        found = getattr(got, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(found, value)
        elif name == "sealed":
            assert list(found) == ["b"]
            assert torch.equal(found["b"], value["b"])
        else:
            assert found == value


@pytest.mark.parametrize(
    "changed",
    [
        {"sizes": torch.tensor([4, 5])},
        {"sizes": torch.tensor([4])},
        {"keys": ("x", "y")},
        {"fingerprints": ("f",)},
        {"mixing": torch.zeros(2, 2, 2, 3, dtype=torch.int64)},
        {"projections": torch.zeros(3, 2, 4, dtype=torch.int64)},
        {"patterns": torch.tensor([1, 0])},
        {"sealed": {"c": torch.zeros(1, dtype=torch.uint8)}},
        # Halves of whole numbers pass for nothing where ranks are counted, and give every number away.
        {"projections": torch.eye(2, 4, dtype=torch.float64).expand(2, 2, 4) / 2},
        {"mixing": torch.zeros(2, 2, 2, 2, dtype=torch.float64)},
        {"projections": torch.zeros(2, 4, dtype=torch.int64)},
        {"mixing": torch.zeros(2, 2, dtype=torch.int64)},
        {"patterns": torch.tensor([1, 0, 2])},
        {"patterns": torch.tensor([1, -1, 0])},
        {"sizes": torch.tensor([4, -1])},
    ],
    ids=str,
)
def test_a_request_whose_parts_do_not_fit_is_refused(changed):
    with pytest.raises(ReplyError, match="do not fit each other"):
        ComputeRequest.unpack(compute_request(**changed).pack())


def test_requests_of_another_version_are_refused():
    for request in (ShareRequest("r", "new", {}, {}, **ADDRESS), compute_request()):
        content = request.pack()
        del content["config"]["request"]
        with pytest.raises(ReplyError, match="lacks 'request'"):
            type(request).unpack(content)


def test_replies_arrive_as_they_were_sent():
    reply = ShareReply.unpack(ShareReply(SEALED).pack(), {"a": 60, "b": 48}, 2)
    assert all(torch.equal(reply.sealed[owner], part) for owner, part in SEALED.items())
    shares = torch.randint(2**61 - 1, (2, 3, 4, 5))
    refusal = ComputeReply(None, ("b",)).pack()
    assert ComputeReply.unpack(refusal, (2,), SEALED) == ComputeReply(None, ("b",))
    with pytest.raises(ReplyError, match="without shares"):
        ComputeReply.unpack(refusal, (2,), {"a": SEALED["a"]})
    assert torch.equal(ComputeReply.unpack(ComputeReply(shares).pack(), (2, 3, 4, 5), SEALED).shares, shares)


def test_replies_that_are_not_what_was_asked_for_are_refused():
    content = ShareReply(SEALED).pack()
    with pytest.raises(ReplyError, match="is for a, b, but b, a were asked"):
        ShareReply.unpack(content, {"b": 48, "a": 60}, 2)
    with pytest.raises(ReplyError, match=r"'0' has the shape \(2, 60\), expected \(3, 60\)"):
        ShareReply.unpack(content, {"a": 60, "b": 48}, 3)
    with pytest.raises(ReplyError, match=r"'1' has the shape \(2, 48\), expected \(2, 56\)"):
        ShareReply.unpack(content, {"a": 60, "b": 56}, 2)
    content["config"] = ConfigRecord({})
    with pytest.raises(ReplyError, match="malformed"):
        ShareReply.unpack(content, {"a": 60, "b": 48}, 2)
    for wrong in (-1, 2**61 - 1):
        with pytest.raises(ReplyError, match="not elements of the field"):
            ComputeReply.unpack(ComputeReply(torch.tensor([0, wrong])).pack(), (2,), SEALED)
    with pytest.raises(ReplyError, match="int32, expected int64"):
        ComputeReply.unpack(ComputeReply(torch.zeros(2, dtype=torch.int32)).pack(), (2,), SEALED)
    empty = ComputeReply(torch.zeros(2)).pack()
    del empty["shares"]
    with pytest.raises(ReplyError, match="holds no shares"):
        ComputeReply.unpack(empty, (2,), SEALED)


def test_introductions():
    nobody = EmbedReply.empty((1, 3))
    for answer in (Introduction(nobody), Introduction(nobody, "north", b"k" * 32)):
        got = Introduction.unpack(answer.pack())
        assert (got.aggregator, got.public, got.partition, got.clients) == (
            answer.aggregator, answer.public, (1, 3), (),
        )  # fmt: skip
    for name, public in (("north", b"short"), (None, b"k" * 32)):
        with pytest.raises(ReplyError, match="does not have 32 bytes"):
            Introduction.unpack(Introduction(nobody, name, public).pack())
    with pytest.raises(ReplyError, match="is malformed"):
        Introduction.unpack(nobody.pack())


def test_an_introduction_with_embeddings_is_refused():
    there, label = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    owners = EmbedReply(
        ("a",), None, "data", ("no", "yes"), ("x",), label.to(torch.int8), label, there, torch.tensor([2]),
        torch.ones(1, 1, 2), torch.zeros(1, 1, 0), ("f",),
    )  # fmt: skip
    whole = Introduction(owners)
    with pytest.raises(ReplyError, match="in the clear"):
        Introduction.unpack(whole.pack())


def test_a_share_is_bound_to_all_that_it_is_of():
    settings = ShareSettings()
    first = binding("r", settings, ["x", "y"], 4, "f")
    assert first == binding("r", ShareSettings(), ("x", "y"), 4, "f")
    others = [
        ("s", settings, ["x", "y"], 4, "f"),
        ("r", ShareSettings(random_bits=0), ["x", "y"], 4, "f"),
        ("r", settings, ["x", "z"], 4, "f"),
        ("r", settings, ["y", "x"], 4, "f"),
        ("r", settings, ["x", "y"], 3, "f"),
        ("r", settings, ["x", "y"], 4, "g"),
    ]
    assert len({first, *(binding(*other) for other in others)}) == 7


def test_the_length_of_a_sealed_share():
    sealed = seal(KeyPair.create().public, bytes(3 * (8 * 5 + TAG_BYTES)), Context("run", "a", "north", "r"))
    assert len(sealed) == sealed_bytes(3, 5)


def test_arrays_beside_those_expected_are_refused():
    content = ShareReply(SEALED).pack()
    content["sealed"] = to_record({**{"0": SEALED["a"], "1": SEALED["b"]}, "embeddings": torch.ones(3)})
    with pytest.raises(ReplyError, match="holds the arrays"):
        ShareReply.unpack(content, {"a": 60, "b": 48}, 2)
