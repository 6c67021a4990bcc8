"""Nodes that are waited for, and asked by query."""

import logging

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedgraph.federation.grids import LocalGrid
from fedgraph.strategies.engine.app_queries import ask_clients, connected_nodes, with_config
from fedgraph.support.errors import ReplyError, RunError


class Slow(LocalGrid):
    """A grid on which the second node connects later."""

    nodes_may_come = True
    looked = 0

    def get_node_ids(self):
        self.looked += 1
        return list(self.contexts)[: 2 if self.looked > 2 else 1]


def told(message, context):
    name = context.node_config["client"]
    return Message(RecordDict({"fedgraph": ConfigRecord({"client": name})}), reply_to=message)


def test_nodes_are_waited_for(monkeypatch):
    monkeypatch.setattr("fedgraph.strategies.engine.app_queries._POLL_SECONDS", 0.0)
    assert connected_nodes(Slow(told, [{}, {}]), 2, timeout=10) == [1000, 1001]
    with pytest.raises(RunError, match="^1 nodes .*min_available_nodes = 2"):
        connected_nodes(Slow(told, [{}, {}]), 2, timeout=-1)


def test_answers_are_sorted_by_name_and_names_are_remembered(caplog):
    grid, names = LocalGrid(told, [{"client": name} for name in "cab"]), {}
    found = ask_clients(grid, [1000, 1001, 1002], RecordDict(), "query", len, names, 1)
    assert list(found) == ["a", "b", "c"]
    assert names == {1000: "c", 1001: "a", 1002: "b"}

    def silent(message, context):
        raise OSError("disk is full")

    with caplog.at_level(logging.ERROR, "fedgraph"):
        grid = LocalGrid(silent, [{}, {}])
        assert ask_clients(grid, [1000, 1001], RecordDict(), "query", len, {1000: "c"}, 1) == {}
    assert "going on without client 'c' (node 1000): OSError: disk is full" in caplog.text
    assert "going on without node 1001: OSError: disk is full" in caplog.text


def test_the_config_has_a_record_of_its_own():
    content = RecordDict({"embeddings": ConfigRecord({})})
    # Mods of people read the round, as every message of Flower's strategies says it.
    assert dict(with_config(content, "config", ConfigRecord({"lr": 1}))["config"]) == {"lr": 1, "server-round": 1}
    assert dict(with_config(content, "other", None)["other"]) == {"server-round": 1}
    with pytest.raises(ReplyError, match="configrecord_key = 'embeddings'"):
        with_config(content, "embeddings", ConfigRecord({}))
