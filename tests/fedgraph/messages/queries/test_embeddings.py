"""Embeddings of one owner as a message."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from fedgraph.messages import check_content, mark_empty, to_record
from fedgraph.messages.queries import OwnEmbeddings, WantedEmbeddings, common_classes, restored
from fedgraph.support.errors import ReplyError


@pytest.fixture
def content():
    return OwnEmbeddings.of([3, 10, 2], np.eye(3), [1, 0, None], ["train", "test", "new"]).pack()


def test_a_reply_comes_back_as_it_was(content):
    found = OwnEmbeddings.unpack(check_content(mark_empty(content)))
    assert (found.keys, found.id_kind, found.classes, found.class_kind) == (("10", "2", "3"), "int", ("0", "1"), "int")
    assert (found.split.tolist(), found.labels.tolist()) == ([2, 3, 0], [0, -1, 1])
    assert found.embeddings.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    reply = found.as_reply("mercy", ("-1", "0", "1"))
    assert (reply.clients, reply.labels.tolist(), reply.present.all().item()) == (("mercy",), [1, -1, 2], True)


def test_a_request_comes_back_as_it_was():
    for told in ({}, {"splits": ("new",)}, {"splits": (), "ids": ()}, {"ids": ("1",)}):
        request = WantedEmbeddings(**told)
        assert WantedEmbeddings.unpack(check_content(mark_empty(request.pack()))) == request
    assert WantedEmbeddings.unpack(RecordDict()) == WantedEmbeddings()
    with pytest.raises(ReplyError, match="asks for unknown splits"):
        WantedEmbeddings.unpack(RecordDict({"embeddings": ConfigRecord({"splits": ["all"]})}))


@pytest.mark.parametrize(
    ("entry", "value", "problem"),
    [
        ("keys", ["10", "10", "3"], "not sorted, or one comes twice"),
        ("keys", ["10", "2", "3\u202e"], "cannot be shown"),
        ("keys", ["10", "2", "x"], "not of the kind"),
        ("keys", ["10", "2"], "shape"),
        ("classes", ["0", "0"], "names a class twice"),
        ("classes", ["1"], "labels outside its 1 classes"),
        ("id-kind", "float", "no kind of ids"),
        ("size", 0, "size outside"),
        ("size", 4, "shape"),
    ],
)
def test_what_is_no_such_answer(content, entry, value, problem):
    content["config"][entry] = value
    with pytest.raises(ReplyError, match=problem):
        OwnEmbeddings.unpack(content)


def test_arrays_of_other_types_and_unknown_splits(content):
    for name, values, problem in (
        ("split", torch.tensor([0, 1, 4], dtype=torch.int8), "into unknown splits"),
        ("labels", torch.tensor([0, 1, 0]), "type int64"),
        ("embeddings", torch.zeros(3, 3, dtype=torch.float64), "type float64"),
    ):
        samples = dict(content["samples"]) | dict(to_record({name: values}))
        broken = RecordDict({"config": content["config"], "samples": type(content["samples"])(samples)})
        with pytest.raises(ReplyError, match=problem):
            OwnEmbeddings.unpack(broken)


def test_classes_of_all_owners_are_in_their_own_order():
    def answer(labels):
        return OwnEmbeddings.of(range(len(labels)), np.zeros((len(labels), 1)), labels)

    assert common_classes({"a": answer([10, 9]), "b": answer([2]), "c": answer([None])}) == ("int", ("2", "9", "10"))
    assert common_classes({"a": answer([True]), "b": answer([False])}) == ("bool", ("False", "True"))
    assert common_classes({"a": answer([10]), "b": answer(["9", "x"])}) == ("text", ("10", "9", "x"))
    assert restored(("2", "10"), "int") == [2, 10]
    assert restored(("False", "True"), "bool") == [False, True]
