import random

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedgraph.commands.checking.disturbances import SPOILT, OwnModules, Place, ShuffledGrid, lost
from fedgraph.commands.checking.subject import Subject
from fedgraph.commands.checking.trials import Finished, Trials
from fedgraph.messages import WorkReply, read_error
from fedgraph.support.errors import ReplyError

CLIENTS = ("a", "b")


def exchanged(server_round=1):
    """A request in a round, and a good reply to it."""
    request = Message(RecordDict({"config": ConfigRecord({"server-round": server_round})}), 1000, "train")
    reply = WorkReply(CLIENTS, {"parameters": torch.ones(2, 3)}, {"loss": torch.zeros(2)})
    return request, Message(reply.pack(), reply_to=request)


def read(message):
    return WorkReply.unpack(message.content, CLIENTS, {"parameters": (3,)})


@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_spoilt_is_refused_and_the_rest_is_not(kind):
    assert not read(exchanged()[1]).unusable()
    spoilt = SPOILT[kind](*exchanged())
    if kind == "a NaN":
        assert list(read(spoilt).unusable()) == ["a"]
    else:
        with pytest.raises(ReplyError):
            read(spoilt)


def test_what_cannot_be_spoilt_is_told():
    request, _ = exchanged()
    bare = Message(RecordDict({"config": ConfigRecord({"text": "x"}), "stacked": ArrayRecord()}), reply_to=request)
    assert [kind for kind, spoil in SPOILT.items() if spoil(request, bare) is not None] == []
    whole = RecordDict({"stacked": ArrayRecord({"counts": Array(np.ones((2, 3), np.int64))})})
    assert SPOILT["a NaN"](request, Message(whole, reply_to=request)) is None


def test_a_lost_reply_is_an_error_in_its_place():
    request, reply = exchanged()
    assert "no answer" in read_error(lost(request, reply))


def test_a_place_is_a_node_in_a_round_and_never_the_opening_query():
    seen = []

    def serve(message, context):
        seen.append([Place(*place).holds(message, context) for place in ((0, 1), (0, 2), (1, 1), (0, None))])
        return Message(RecordDict(), reply_to=message)

    grid = ShuffledGrid.of_partitions(serve, 2)
    node = next(id for id, context in grid.contexts.items() if context.node_config["partition-id"] == 0)
    request = exchanged()[0].content
    for kind in ("train", "query.identify"):
        list(grid.send_and_receive([Message(request, node, kind)]))
    assert seen == [[True, False, False, True], [False] * 4]


def test_replies_are_shuffled():
    grid = ShuffledGrid.of_partitions(lambda message, context: Message(RecordDict(), reply_to=message), 3)
    nodes = list(grid.get_node_ids())
    assert [grid.contexts[node].node_config["partition-id"] for node in nodes] == [2, 1, 0]
    replies = grid.send_and_receive([Message(RecordDict(), node, "train") for node in nodes])
    assert [reply.metadata.src_node_id for reply in replies] == [nodes[2], nodes[0], nodes[1]]


def test_a_restart_loads_a_users_modules_anew_and_puts_them_back(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "restarted_module.py").write_text("kept = []\n")
    import restarted_module

    restarted_module.kept.append(1)
    modules = OwnModules(["restarted_module", "fedgraph.clients.sfl", "fedgraph.strategies.sfl"])
    with modules.kept():
        modules.restart()
        import restarted_module as anew

        assert anew.kept == []
    import restarted_module as again

    assert again is restarted_module
    assert again.kept == [1]


def finished(change=0.0, sha="x", loss=1.0):
    measured = {"test": {"loss": {"a": loss, "b": None}}}
    return Finished({"weights_sha256": sha, "metrics": {}, "per_client": measured}, {"w": torch.ones(3) + change})


def test_the_difference_of_runs_is_in_units_of_the_tolerance():
    assert finished().difference(finished()) == 0
    assert 0 < finished(1e-6, "y").difference(finished()) < 1
    assert finished(1e-2, "y").difference(finished()) > 1
    assert finished(float("nan"), "y").difference(finished()) == float("inf")
    assert 0 < finished(sha="y").difference(finished()) < 1
    bare = [Finished(finished(loss=loss, sha=str(loss)).summary, {}) for loss in (1.0, 1.000001, 1.1)]
    assert 0 < bare[1].difference(bare[0]) < 1 < bare[2].difference(bare[0])
    assert Finished(finished().summary, {"w": torch.ones(4)}).difference(finished(sha="y")) == float("inf")


def test_global_generators_are_left_as_they_were():
    trials = Trials(Subject.of("local", overrides=["experiment.rounds=1"]))
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    trials.run(1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]
