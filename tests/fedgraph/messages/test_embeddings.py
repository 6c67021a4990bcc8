from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.algorithms.joining import join
from fedgraph.messages.embeddings import EmbedReply, EmbedRequest
from fedgraph.support.errors import FedgraphError, ReplyError

ADDRESS = {"client": "c:C", "experiment": "{}", "run": "run"}


def reply(**changes):
    """Two owners with embeddings of 3 and 2 numbers, four samples of which one is new; b lacks the second."""
    draw = torch.Generator().manual_seed(0)
    present = torch.tensor([[True, True, True, True], [True, False, True, True]])
    embeddings = torch.randn(2, 4, 3, generator=draw) * present[..., None]
    embeddings[1, :, 2] = 0.0
    whole = EmbedReply(
        clients=("a", "b"),
        partition=(1, 2),
        data="made up",
        classes=("no", "yes"),
        keys=("k1", "k2", "k3", "k4"),
        split=torch.tensor([0, 1, 2, 3], dtype=torch.int8),
        labels=torch.tensor([1, 0, 1, -1]),
        present=present,
        sizes=torch.tensor([3, 2]),
        embeddings=embeddings,
        predictions=torch.rand(2, 4, 2, generator=draw) * present[..., None],
        fingerprints=("f1", "f2"),
    )
    return replace(whole, **changes)


def assert_equal(got, wanted):
    for name, value in vars(wanted).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(got, name), value), name
            assert getattr(got, name).dtype == value.dtype, name
        else:
            assert getattr(got, name) == value, name


def test_a_request_arrives_as_it_was_sent():
    sent = EmbedRequest(("new",), False, {"a": "f1", "b": "f2"}, **ADDRESS)
    assert EmbedRequest.unpack(sent.pack()) == sent
    assert EmbedRequest.unpack(EmbedRequest(**ADDRESS).pack()).splits == ("train", "validation", "test")


@pytest.mark.parametrize("part", ["splits", "embeddings", "owners", "fingerprints", "fedgraph-run"])
def test_a_request_without_a_part_is_refused(part):
    content = EmbedRequest(**ADDRESS).pack()
    names = {name for name in content["config"] if part.removeprefix("fedgraph-") in name}
    assert names
    for name in names:
        del content["config"][name]
    with pytest.raises(ReplyError, match=r"the request lacks .*different versions"):
        EmbedRequest.unpack(content)


def test_an_answer_arrives_as_it_was_sent():
    assert_equal(EmbedReply.unpack(reply().pack()), reply())
    named = reply(partition=None)
    assert EmbedReply.unpack(named.pack()).partition is None
    silent = reply(predictions=torch.zeros(2, 4, 0))
    assert EmbedReply.unpack(silent.pack()).predictions.shape == (2, 4, 0)


@pytest.mark.parametrize("partition", [None, (0, 3)])
def test_a_node_without_owners_says_so(partition):
    empty = EmbedReply.empty(partition)
    got = EmbedReply.unpack(empty.pack())
    assert (got.clients, got.partition, got.keys) == ((), partition, ())
    assert got.unusable() == {}


def with_config(**changes):
    content = reply().pack()
    for name, value in changes.items():
        if value is None:
            del content["config"][name]
        else:
            content["config"][name] = value
    return content


def with_array(record, name, array):
    content = reply().pack()
    arrays = dict(content[record].items())
    if array is None:
        del arrays[name]
    else:
        arrays[name] = Array(array.numpy())
    content[record] = ArrayRecord(arrays)
    return content


MALFORMED = {
    "nothing at all": (RecordDict(), "malformed"),
    "no config": (RecordDict({"samples": ArrayRecord(), "stacked": ArrayRecord()}), "malformed"),
    "no arrays": (RecordDict({"config": reply().pack()["config"]}), "malformed"),
    "no keys": (with_config(keys=None), "malformed"),
    "no owners": (with_config(clients=None), "malformed"),
    "owners are a number": (with_config(clients=7), "malformed"),
    "half a partition": (with_config(partition=[1]), "malformed"),
    "a partition beyond the last": (with_config(partition=[2, 2]), "it is partition 2 of 2"),
    "a partition of more than can be waited for": (with_config(partition=[0, 10**12]), "it is partition 0 of 1000000"),
    "sizes are words": (with_config(sizes=["three", "2"]), "malformed"),
    "sizes too large for a number": (with_config(sizes=[float("inf"), 2.0]), "malformed"),
    "owner twice": (with_config(clients=["a", "a"]), "names an owner twice"),
    "owner without a name": (with_config(clients=["a", ""]), "the name of a client is not text"),
    "size missing": (with_config(sizes=[3]), "a size and a fingerprint"),
    "fingerprint missing": (with_config(fingerprints=["f"]), "a size and a fingerprint"),
    "no classes": (with_config(classes=[]), "names no classes"),
    "keys not sorted": (with_config(keys=["k2", "k1", "k3", "k4"]), "not sorted"),
    "key twice": (with_config(keys=["k1", "k1", "k3", "k4"]), "comes twice"),
    "key too many": (with_config(keys=["k1", "k2", "k3", "k4", "k5"]), "shape"),
    "negative size": (with_config(sizes=[3, -1]), "embedding sizes outside"),
    "huge size": (with_config(sizes=[3, 1 << 40]), "embedding sizes outside"),
    "other size": (with_config(sizes=[4, 2]), "'embeddings' has the shape"),
    "more classes": (with_config(classes=["a", "b", "c"]), "'predictions' has the shape"),
    "no predictions though announced": (with_array("stacked", "predictions", torch.zeros(2, 4, 0)), "shape"),
    "an array too few": (with_array("stacked", "embeddings", None), "holds the arrays"),
    "an array too many": (with_array("stacked", "weights", torch.zeros(3)), "holds the arrays"),
    "another model in the samples": (with_array("samples", "x", torch.zeros(3)), "holds the arrays"),
    "transposed embeddings": (with_array("stacked", "embeddings", torch.zeros(4, 2, 3)), "shape"),
    "float64": (with_array("stacked", "embeddings", torch.zeros(2, 4, 3).double()), "type float64"),
    "labels as floats": (with_array("samples", "labels", torch.zeros(4)), "type float32"),
    "an unknown split": (with_array("samples", "split", torch.tensor([0, 1, 2, 4], dtype=torch.int8)), "unknown"),
    "a negative split": (with_array("samples", "split", torch.tensor([0, 1, 2, -1], dtype=torch.int8)), "unknown"),
    "a label too large": (with_array("samples", "labels", torch.tensor([1, 0, 2, -1]).int()), "labels outside 0 to 1"),
    "a label too small": (with_array("samples", "labels", torch.tensor([1, 0, -2, -1]).int()), "labels outside"),
    "no label": (with_array("samples", "labels", torch.tensor([1, -1, 1, -1]).int()), "sample 'k2'.*without a label"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_answers_are_refused(kind):
    content, message = MALFORMED[kind]
    with pytest.raises(ReplyError, match=message):
        EmbedReply.unpack(content)


def test_arrays_that_are_no_arrays_are_refused():
    content = reply().pack()
    good = content["stacked"]["embeddings"]
    broken = Array(good.dtype, good.shape, good.stype, good.data[:-1])
    content["stacked"] = ArrayRecord({"embeddings": broken, "predictions": content["stacked"]["predictions"]})
    with pytest.raises(ReplyError):
        EmbedReply.unpack(content)


_TEXT = st.text("abk12", max_size=3)
_VALUES = st.one_of(
    _TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(max_size=3),
    st.lists(_TEXT, max_size=4),
    st.lists(st.integers(-3, 5), max_size=4),
    st.lists(st.floats(), max_size=4),
    st.lists(st.booleans(), max_size=4),
)
_NUMBERS = st.lists(st.integers(-2, 5), min_size=4, max_size=4)


@settings(max_examples=300, derandomize=True)
@given(
    config=st.dictionaries(st.sampled_from(sorted(reply().pack()["config"])), _VALUES, min_size=0, max_size=3),
    split=st.none() | _NUMBERS,
    labels=st.none() | _NUMBERS,
    value=st.sampled_from([None, float("nan"), float("inf"), 1e38]),
)
def test_whatever_a_node_answers_is_used_or_refused(config, split, labels, value):
    content = reply().pack()
    samples = dict(content["samples"].items())
    if split is not None:
        samples["split"] = Array(torch.tensor(split, dtype=torch.int8).numpy())
    if labels is not None:
        samples["labels"] = Array(torch.tensor(labels, dtype=torch.int32).numpy())
    content["samples"] = ArrayRecord(samples)
    content["config"] = ConfigRecord({**content["config"], **config})
    if value is not None:
        spoilt = reply().embeddings.index_put((torch.tensor(0), torch.tensor(0), torch.tensor(0)), torch.tensor(value))
        content["stacked"] = ArrayRecord(
            {"embeddings": Array(spoilt.numpy()), "predictions": content["stacked"]["predictions"]}
        )
    try:
        answer = EmbedReply.unpack(content)
        joined, absent = join({5: answer, 6: reply(clients=("y", "z"))})
    except FedgraphError:
        return
    assert bool(joined.embeddings.isfinite().all())
    assert set(joined.owners) | set(absent) == {*answer.clients, "y", "z"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2e30])
@pytest.mark.parametrize("name", ["embeddings", "predictions"])
def test_one_owner_with_bad_numbers_is_named_and_the_others_are_not(name, value):
    values = getattr(reply(), name).clone()
    values[1, 2, 1] = value
    said = EmbedReply.unpack(reply(**{name: values}).pack()).unusable()
    assert list(said) == ["b"]
    assert name in said["b"]
    assert reply().unusable() == {}


@pytest.mark.parametrize("value", [-0.1, 1.1, 1e10])
def test_predictions_that_are_no_probabilities_cannot_be_used(value):
    values = reply().predictions.clone()
    values[1, 2, 1] = value
    assert reply(predictions=values).unusable() == {"b": "its predictions are no probabilities"}
    values[1, 2, 1], values[1, 1, 1] = 0.5, value
    assert reply(predictions=values).unusable() == {}, "b lacks the sample"
