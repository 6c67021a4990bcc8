import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedgraph.commands.checking import disturbance
from fedgraph.commands.checking.disturbance import (
    ALL_LOST,
    CUT,
    LOST,
    SPOILT,
    ChangedNodes,
    PowerCut,
    restartable,
    spoil,
)
from fedgraph.messages import WorkReply, read_error
from fedgraph.support.errors import ReplyError

CLIENTS = ("a", "b")


def exchanged(server_round=1, kind="train"):
    """A request in a round, and a good reply to it."""
    request = Message(RecordDict({"config": ConfigRecord({"server-round": server_round})}), 1000, kind)
    reply = WorkReply(CLIENTS, {"parameters": torch.ones(2, 3)}, {"loss": torch.zeros(2)})
    return request, Message(reply.pack(), reply_to=request)


def read(message):
    return WorkReply.unpack(message.content, CLIENTS, {"parameters": (3,)})


@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_spoilt_is_refused_and_the_rest_is_not(kind):
    _, reply = exchanged()
    assert not read(reply).unusable()
    assert spoil(reply, kind)
    if kind == "a NaN":
        assert list(read(reply).unusable()) == ["a"]
    else:
        with pytest.raises(ReplyError):
            read(reply)


def test_what_cannot_be_spoilt_is_told():
    request, _ = exchanged()
    bare = Message(RecordDict({"config": ConfigRecord({"text": "x"}), "stacked": ArrayRecord()}), reply_to=request)
    assert not any(spoil(bare, kind) for kind in SPOILT)
    whole = RecordDict({"stacked": ArrayRecord({"counts": Array(np.ones((2, 3), np.int64))})})
    assert not spoil(Message(whole, reply_to=request), "a NaN")


@pytest.fixture
def arrives(monkeypatch):
    """``arrives(change, node, server_round)``: whether a reply arrives as it was sent."""

    def arrives(change, node, server_round, has_rounds=True, kind="train"):
        request, reply = exchanged(server_round, kind)
        monkeypatch.setattr(disturbance, "client_app", lambda message, context: reply)
        nodes = ChangedNodes(change, has_rounds, lambda: None)
        found = nodes(request, Context(1, 1000, {"partition-id": node}, RecordDict(), {}))
        assert nodes.happened == (read_error(found) is not None)
        return read_error(found) is None

    return arrives


def test_two_replies_are_lost_and_never_one_to_the_opening_query(arrives):
    places = [(node, number) for node in (0, 1) for number in (1, 2, 3)]
    assert [place for place in places if not arrives(LOST, *place)] == [(0, 1), (1, 2)]
    assert [place for place in places if not arrives(ALL_LOST, *place)] == [(0, 2), (1, 2)]
    assert [arrives(LOST, node, 0, has_rounds=False) for node in (0, 1)] == [False, True]
    assert arrives(LOST, 0, 1, kind="query.identify")


def test_the_power_is_cut_once(arrives):
    assert arrives(CUT, 0, 1)
    assert arrives(CUT, 1, 2)
    with pytest.raises(PowerCut):
        arrives(CUT, 0, 2)
    nodes = ChangedNodes(CUT, False, lambda: None)
    with pytest.raises(PowerCut):
        nodes.on_epoch("fusion", 2)
    nodes.on_epoch("fusion", 2)


def test_a_restart_loads_a_users_modules_anew_and_puts_them_back(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "restarted_module.py").write_text("kept = []\n")
    import restarted_module

    restarted_module.kept.append(1)
    with restartable(["restarted_module", "fedgraph.clients.sfl", "fedgraph.strategies.sfl"]) as restart:
        restart()
        import restarted_module as anew

        assert anew.kept == []
    import restarted_module as again

    assert again is restarted_module
    assert again.kept == [1]
