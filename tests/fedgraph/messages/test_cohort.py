import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedgraph.data.base import SPLITS
from fedgraph.messages import Identity, WorkReply, WorkRequest
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ReplyError

NAMES = ("a", "b")


def reply_content(stacked=None, metrics=None, clients=NAMES):
    return WorkReply(
        clients,
        {"parameters": torch.ones(2, 3)} if stacked is None else stacked,
        {"loss": torch.tensor([0.5, 0.25], dtype=torch.float64)} if metrics is None else metrics,
    ).pack()


def test_a_reply_is_read_where_it_lies():
    content = reply_content()
    reply = WorkReply.unpack(content, NAMES, {"parameters": (3,)})
    data = content["stacked"]["parameters"].data
    first = np.frombuffer(data, np.uint8).ctypes.data
    assert first < reply.stacked["parameters"].data_ptr() < first + len(data)


def test_request_round_trip():
    request = WorkRequest(
        NAMES, 7, {"parameters": torch.rand(2, 3)}, {"global": torch.rand(3)}, ("test",),
        train=False, keep_from=4, predict=True, client="pkg:Client", experiment="{}", run="run-1",
        attempts={"0123abcd": 3, "ff00ff00": 1 << 40},
    )  # fmt: skip
    back = WorkRequest.unpack(request.pack())
    assert torch.equal(back.stacked["parameters"], request.stacked["parameters"])
    assert torch.equal(back.shared["global"], request.shared["global"])
    for field in (
        *("clients", "round", "client", "experiment", "run", "evaluate", "train", "keep_from", "predict", "attempts"),
    ):
        assert getattr(back, field) == getattr(request, field)


@pytest.mark.parametrize(
    ("attempts", "message"),
    [
        ({"../../etc": 3}, "8 hexadecimal digits"),
        ({"0123abcd": "x"}, "malformed"),
    ],
)
def test_attempts_become_parts_of_file_names_and_are_checked(attempts, message):
    content = WorkRequest(NAMES, 7, {}, run="run", attempts={"0123abcd": 3}).pack()
    content["config"]["attempts"], content["config"]["attempts-until"] = list(attempts), list(attempts.values())
    with pytest.raises(ReplyError, match=message):
        WorkRequest.unpack(content)


def test_a_request_without_attempts_is_of_an_older_version():
    content = WorkRequest(NAMES, 7, {}, run="run", attempts={"0123abcd": 3}).pack()
    del content["config"]["attempts"], content["config"]["attempts-until"]
    assert WorkRequest.unpack(content).attempts == {}


def test_request_of_another_version_is_refused():
    content = RecordDict({"config": ConfigRecord({"server-round": 1})})
    with pytest.raises(ReplyError, match="different versions"):
        WorkRequest.unpack(content)


def test_reply_round_trip():
    reply = WorkReply.unpack(reply_content(), NAMES, {"parameters": (3,)})
    assert reply.clients == NAMES
    assert torch.equal(reply.stacked["parameters"], torch.ones(2, 3))
    assert reply.metrics["loss"].tolist() == [0.5, 0.25]
    assert reply.unusable() == {}


def test_tensors_of_another_type_are_read_where_they_are_expected():
    content = reply_content({"classes": torch.ones(2, 3, dtype=torch.int32)})
    reply = WorkReply.unpack(content, NAMES, {"classes": (3,)}, {"classes": "int32"})
    assert reply.stacked["classes"].dtype == torch.int32
    with pytest.raises(ReplyError, match="'classes' .*int32"):
        WorkReply.unpack(content, NAMES, {"classes": (3,)})


def test_nan_costs_only_the_client_that_sent_it():
    bad = torch.ones(2, 3)
    bad[1, 2] = torch.nan
    reply = WorkReply.unpack(reply_content({"parameters": bad}), NAMES, {"parameters": (3,)})
    (client, reason) = next(iter(reply.unusable().items()))
    assert client == "b"
    assert "array 'parameters' holds NaN or infinite values" in reason
    assert "learning-rate" in reason, "says what to do"
    assert len(reply.unusable()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (reply_content({"parameters": torch.ones(2, 4)}), r"has the shape \(2, 4\), expected \(2, 3\)"),
        (reply_content({"parameters": torch.ones(1, 3)}), r"has the shape \(1, 3\), expected \(2, 3\)"),
        (reply_content({"parameters": torch.ones(2, 3).double()}), "has the type float64, expected float32"),
        (reply_content({}), r"holds the arrays \[\], expected \['parameters'\]"),
        (reply_content({"parameters": torch.ones(2, 3), "more": torch.ones(2)}), "holds the arrays"),
        (reply_content(clients=("a", "c")), "speaks for a, c, but a, b were asked"),
        (reply_content(metrics={"loss": torch.ones(3)}), "'loss' .*2"),
        (RecordDict({}), "the reply has no 'config'"),
    ],
)
def test_malformed_reply_is_refused_with_the_reason(content, message):
    with pytest.raises(ReplyError, match=message):
        WorkReply.unpack(content, NAMES, {"parameters": (3,)})


def forged(**changes):
    honest = Array(np.ones((2, 3), np.float32))
    fields = {"dtype": honest.dtype, "shape": honest.shape, "stype": honest.stype, "data": honest.data, **changes}
    return RecordDict(
        {
            "config": ConfigRecord({"clients": list(NAMES)}),
            "stacked": ArrayRecord({"parameters": Array(**fields)}),
            "metrics": MetricRecord({"loss": [0.0, 0.0]}),
        }
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (forged(data=b"x" * 10_000), "takes 10000 bytes, more than its shape"),
        (forged(data=b"garbage"), "takes 7 bytes, fewer than its shape"),
        (forged(data=Array(np.ones((3, 2), np.float32)).data), r"not that of float32 \(2, 3\)"),
        (forged(stype="pickle"), "in the encoding pickle"),
    ],
)
def test_forged_array_is_refused(content, message):
    with pytest.raises(ReplyError, match=message):
        WorkReply.unpack(content, NAMES, {"parameters": (3,)})


def identity(**changes):
    counts = {split: torch.tensor([5, 6]) for split in ("train", "validation", "test")}
    fields = {"clients": NAMES, "task": TaskSpec("forecast", (12, 1), (12,), 5.0, "mph"), "data": "x"}
    return Identity(**{**fields, "num_examples": counts, "partition": (0, 2), **changes})


def test_identity_round_trip():
    said = identity(label_counts=torch.tensor([[1, 4], [6, 0]]), groups=("cold", "warm"), untrained=(NAMES[0],))
    heard = Identity.unpack(said.pack())
    assert (heard.groups, heard.untrained) == (("cold", "warm"), (NAMES[0],))
    plain = Identity.unpack(identity().pack())
    assert (plain.groups, plain.untrained) == (None, ())
    assert (heard.clients, heard.task, heard.data, heard.partition) == (NAMES, said.task, "x", (0, 2))
    assert heard.num_examples["train"].tolist() == [5, 6]
    assert torch.equal(heard.label_counts, said.label_counts)


def moments(*rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


NAN, KNOWN = float("nan"), [60.0, 0.0, 62.0, 9.0, 7.0]


def test_identity_with_moments():
    told = moments([60.1, 0.0, NAN, NAN, 0.0], [-1 / 3, 2.5, 62.0, 9.0, 4.0])
    heard = Identity.unpack(identity(moments=told).pack()).moments
    torch.testing.assert_close(heard, told, rtol=0, atol=0, equal_nan=True)
    assert Identity.unpack(identity().pack()).moments is None


@pytest.mark.parametrize(
    "told",
    [
        moments(KNOWN),
        moments(KNOWN[:4], KNOWN[:4]),
        moments(KNOWN, KNOWN, dtype=torch.float32),
        moments([60, 1, 62, 9, 7], [60, 1, 62, 9, 7], dtype=torch.int64),
        moments(KNOWN, [60.0, -1e-9, 62.0, 9.0, 7.0]),
        moments(KNOWN, [60.0, 1.0, float("inf"), 9.0, 7.0]),
        moments(KNOWN, [60.0, float("inf"), 62.0, 9.0, 7.0]),
        moments(KNOWN, [60.0, 1.0, -1e31, 9.0, 7.0]),
        moments(KNOWN, [60.0, 1e31, 62.0, 9.0, 7.0]),
        moments(KNOWN, [60.0, NAN, 62.0, 9.0, 7.0]),
        moments(KNOWN, [60.0, 1.0, NAN, 9.0, 7.0]),
        moments(KNOWN, [60.0, 1.0, 62.0, 9.0, -7.0]),
        moments(KNOWN, [60.0, 1.0, 62.0, 9.0, 7.5]),
        moments(KNOWN, [60.0, 1.0, 62.0, 9.0, NAN]),
        moments(KNOWN, [60.0, 1.0, 62.0, 9.0, 0.0]),
        moments(KNOWN, [60.0, 1.0, 62.0, 9.0, 1e13]),
        moments(KNOWN, [60.0, 1.0, NAN, NAN, 7.0]),
    ],
)
def test_malformed_moments_are_refused(told):
    with pytest.raises(ReplyError, match="mean and deviation"):
        Identity.unpack(identity(moments=told).pack())


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (identity(clients=("a", "a")), "names a client twice"),
        (identity(num_examples={s: torch.tensor([5]) for s in ("train", "validation", "test")}), "does not count"),
        (identity(num_examples={"train": torch.tensor([5, 6])}), "malformed"),
        (identity(num_examples={s: torch.tensor([5, NAN]) for s in ("train", "validation", "test")}), "malformed"),
        (identity(num_examples={s: torch.tensor([5, 6.0]) for s in ("train", "validation", "test")}), "malformed"),
        (identity(task=None), "does not describe the task"),
        (identity(groups=("cold",)), "does not name the group of each"),
        (identity(groups=("cold", "")), "does not name the group of each"),
        (identity(groups=(1, 2)), "does not name the group of each"),
        (identity(untrained=("somebody else",)), "untrained clients"),
    ],
)
def test_malformed_identity_is_refused(said, message):
    with pytest.raises(ReplyError, match=message):
        Identity.unpack(said.pack())


@pytest.mark.parametrize("partition", [[2, 2], [-1, 2], [0, 1 << 21]])
def test_an_identity_of_an_impossible_partition_is_refused(partition):
    nothing = torch.zeros(0, dtype=torch.int64)
    content = Identity((), None, "", dict.fromkeys(SPLITS, nothing), None, (0, 1)).pack()
    content.config_records["config"]["partition"] = partition
    with pytest.raises(ReplyError, match=f"partition {partition[0]} of {partition[1]}"):
        Identity.unpack(content)


def test_a_reply_says_which_state_its_clients_had():
    sent = replace(WorkReply(NAMES), found={"personal-layers": (4, -1)}, saved={"personal-layers": 5})
    reply = WorkReply.unpack(sent.pack(), NAMES, {})
    assert reply.found == {"personal-layers": (4, -1)}
    assert reply.saved == {"personal-layers": 5}


@pytest.mark.parametrize(
    "config",
    [
        {"found": "["},
        {"found": "[1]"},
        {"found": '{"a": [1]}'},
        {"found": '{"a": [1, -2]}'},
        {"found": '{"a": [1, 1e9]}'},
        {"found": '{"a": [1, 99999999999999999999]}'},
        {"found": json.dumps({str(number): [1, 1] for number in range(30)})},
        {"saved": "a"},
        {"saved": '{"a": [1, 2]}'},
        {"saved": json.dumps({str(number): 1 for number in range(30)})},
    ],
)
def test_a_malformed_account_of_state_is_refused(config):
    content = WorkReply(NAMES).pack()
    content.config_records["config"].update(config)
    with pytest.raises(ReplyError):
        WorkReply.unpack(content, NAMES, {})
