"""What the content of a message must keep to before anything of it is read."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedgraph.messages import check_content
from fedgraph.messages.content import check_array
from fedgraph.support.errors import ReplyError

NUMBERS = Array(np.zeros((2, 3), np.float32))


def array(dtype="float32", shape=(2, 3), stype="numpy.ndarray", data=NUMBERS.data):
    return Array(dtype, shape, stype, data)


def test_an_ordinary_message_passes():
    content = {"config": ConfigRecord({"clients": ["a"]}), "stacked": ArrayRecord({"x": NUMBERS})}
    check_content(RecordDict({**content, "metrics": MetricRecord({"loss": [0.5]})}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({f"r{number}": ConfigRecord() for number in range(51)}, "51 records"),
        ({"x" * 201: ConfigRecord()}, "the name of a record"),
        ({"metrics": MetricRecord({"a\nb": 1.0})}, "record 'metrics'"),
        ({"metrics": MetricRecord({f"m{number}": 1 for number in range(1001)})}, "1,001 entries"),
        ({"config": ConfigRecord({"text": ["a", "b" * ((1 << 24) + 1)]})}, "the text 'text' is longer"),
        ({"stacked": ArrayRecord({"x": array(shape=(20, 4000))})}, "152 bytes, fewer than its shape"),
    ],
)
def test_what_is_too_much_or_cannot_be_shown_is_refused(content, message):
    with pytest.raises(ReplyError, match=message):
        check_content(RecordDict(content))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (array(shape=(2**40,)), "fewer than its shape"),
        (array(shape=(2**31, 2**31)), "fewer than its shape"),
        (array(shape=(-2, -3)), "impossible shape"),
        (array(shape=(0, 2**50)), "impossible shape"),
        (array(shape=(1,) * 40), "impossible shape"),
        (array(data=NUMBERS.data + b"x" * 5000), "more than its shape"),
        (array(dtype="no such"), "unknown type"),
        (array(dtype="O"), "not plain numbers"),
        (array(stype="pickle"), "in the encoding pickle"),
        (array(dtype=">f4"), "another order"),
    ],
)
def test_arrays_that_are_not_what_they_say_are_refused_before_they_are_decoded(given, message):
    with pytest.raises(ReplyError, match=message):
        check_array("x", given)
