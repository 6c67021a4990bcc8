"""Requests and answers of federated graphical models: they come back as they were, and nonsense does not."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import RecordDict

from fedgraph.algorithms.fedngm_messages import (
    PhaseReply,
    PhaseRequest,
    graph_from_text,
    scores_as_text,
    scores_from_text,
)
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graph.feature_graph import FeatureGraph
from fedgraph.support.errors import ReplyError

COMMON = Schema((Feature("age", "real"), Feature("ill", "binary", ("n", "y"))))
GRAPH = FeatureGraph(("age", "ill"), (("age", "ill"),))
ADDRESS = {"client": "c:C", "experiment": "{}", "run": "run"}


def answer(**changes):
    kept = {"clients": ("a", "b"), "partition": (0, 2), "data": "d", "num_rows": (5, 6), "texts": ("{}", "[]")}
    return PhaseReply(**{**kept, "parameters": torch.arange(6.0).view(2, 3), **changes})


def test_requests_come_back():
    request = PhaseRequest("fit", 3, COMMON, Scaling({"age": (0.0, 9.0)}), GRAPH, torch.ones(1, 4), **ADDRESS)
    found = PhaseRequest.unpack(request.pack())
    assert torch.equal(found.parameters, request.parameters)
    for name in ("client", "experiment", "run", "phase", "round", "common", "scaling", "graph"):
        assert getattr(found, name) == getattr(request, name)
    bare = PhaseRequest.unpack(PhaseRequest("schema", **ADDRESS).pack())
    assert (bare.common, bare.scaling, bare.graph, bare.parameters) == (None,) * 4


def test_requests_of_another_version_are_refused():
    content = PhaseRequest("schema", **ADDRESS).pack()
    content.config_records["config"]["phase"] = "polish"
    with pytest.raises(ReplyError, match="unknown phase 'polish'"):
        PhaseRequest.unpack(content)
    del content.config_records["config"]["phase"]
    with pytest.raises(ReplyError, match="lacks 'phase'"):
        PhaseRequest.unpack(content)


def test_answers_come_back():
    found = PhaseReply.unpack(answer().pack(), 3)
    assert torch.equal(found.parameters, answer().parameters)
    for name in ("clients", "partition", "data", "num_rows", "texts"):
        assert getattr(found, name) == getattr(answer(), name)
    assert PhaseReply.unpack(PhaseReply.empty((1, 2)).pack()).clients == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": ("a", "a")}, "names a client twice"),
        ({"clients": ("a", "")}, "the name of a client is not text"),
        ({"texts": ("{}",)}, "lacks entries for some"),
        ({"num_rows": (5,)}, "lacks entries for some"),
        ({"num_rows": (5, 0)}, "rows outside 1 to"),
        ({"num_rows": (5, -1)}, "rows outside 1 to"),
        ({"partition": (2, 2)}, "partition 2 of 2"),
        ({"parameters": torch.zeros(2, 4)}, "shape"),
        ({"parameters": torch.zeros(2, 3).double()}, "type"),
        ({"parameters": torch.tensor([[0.0, 0.0, math.nan]] * 2)}, "NaN, infinite or huge"),
        ({"parameters": torch.tensor([[0.0, 0.0, math.inf]] * 2)}, "NaN, infinite or huge"),
    ],
)
def test_answers_that_are_none(changes, message):
    with pytest.raises(ReplyError, match=message):
        PhaseReply.unpack(answer(**changes).pack(), 3)


def test_an_answer_without_its_parts():
    with pytest.raises(ReplyError, match="malformed"):
        PhaseReply.unpack(RecordDict({}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "malformed"),
        ("[]", "cannot be used"),
        ('{"names": ["age", "ill"], "edges": [["age", "age"]]}', "cannot be used"),
        ('{"names": ["age"], "edges": []}', "not over the common features"),
        ('{"names": ["age", "ill", "x"], "edges": []}', "not over the common features"),
    ],
)
def test_graphs_that_are_none(text, message):
    with pytest.raises(ReplyError, match=message):
        graph_from_text(text, COMMON)


def test_scores_come_back():
    scores = {"test/age-mae": 1.5, "public/ill-auc": math.nan}
    found = scores_from_text(scores_as_text(scores))
    assert found["test/age-mae"] == 1.5
    assert math.isnan(found["public/ill-auc"])


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"a": 1}', '{"test/a": "b"}', '{"test/a": true}', '{"test/a\\n": 1}', '{"test/a": 1e99}']
)
def test_scores_that_are_none(text):
    with pytest.raises(ReplyError, match="scores of a client"):
        scores_from_text(text)
