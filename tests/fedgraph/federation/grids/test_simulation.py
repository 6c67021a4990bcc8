import logging
import re
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgraph.federation.grids import SimulationGrid, simulation
from fedgraph.support.errors import RunError


def message(node_id, **config):
    return Message(RecordDict({"config": ConfigRecord(config)}), node_id, "train")


def grid_of(handler, nodes=4, **options):
    return SimulationGrid(handler, [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)], **options)


def echo(received, context):
    return Message(RecordDict({"config": ConfigRecord({"by": context.node_config["partition-id"]})}), reply_to=received)


def by(replies):
    return [reply.content["config"]["by"] for reply in replies]


def test_nodes_work_and_replies_come_in_their_order_whatever_that_of_messages():
    worked = []

    def noting(received, context):
        worked.append(context.node_config["partition-id"])
        return echo(received, context)

    grid = grid_of(noting)
    ids = list(grid.get_node_ids())
    shuffled = [ids[2], ids[0], ids[3], ids[1]]
    assert by(grid.send_and_receive([message(node) for node in shuffled])) == [0, 1, 2, 3]
    pushed = grid.push_messages([message(node) for node in shuffled])
    assert worked == [0, 1, 2, 3] * 2
    # Each id belongs to the message at its place.
    assert by(grid.pull_messages(pushed[:1])) == [2]
    assert by(grid.pull_messages(reversed(pushed))) == [0, 1, 3]
    assert list(grid.pull_messages(pushed)) == []
    assert grid.answered == 8


def test_messages_of_a_generator_are_made_one_by_one():
    happened = []

    def noting(received, context):
        happened.append(f"node {context.node_config['partition-id']}")
        return echo(received, context)

    def messages():
        for node in (1002, 1000):
            happened.append(f"message to {node}")
            yield message(node)

    assert by(grid_of(noting).send_and_receive(messages())) == [0, 2]
    assert happened == ["message to 1002", "node 2", "message to 1000", "node 0"]


def test_messages_to_one_node_keep_their_order_and_one_to_nobody_gets_an_error():
    grid = grid_of(lambda received, _: Message(received.content, reply_to=received))
    first, second, *_ = grid.get_node_ids()
    replies = grid.send_and_receive(
        [message(second, by=1), message(7, by=0), message(first, by=2), message(second, by=3), message(first, by=4)]
    )
    assert by(replies[:4]) == [2, 4, 1, 3]
    assert replies[4].error.reason == "node 7 is not connected"


def test_a_node_works_on_copies_and_keeps_its_state_only_if_it_returns():
    kept = ConfigRecord({"list": [1]})

    def counting(received, context):
        state = context.state.setdefault("state", ConfigRecord({"count": 0, "list": []}))
        state["count"] += 1
        state["list"].append(state["count"])
        received.content["config"]["list"].append(9)
        context.run_config["lr"] = 5.0
        if received.content["config"]["fail"]:
            raise ValueError("no")
        return Message(RecordDict({"state": state}), reply_to=received)

    grid = grid_of(counting, nodes=1, run_config={"lr": 1.0})
    (node,) = grid.get_node_ids()
    counts = []
    for fail in (False, True, False):
        content = RecordDict({"config": ConfigRecord({"fail": fail, "list": [1]}), "kept": kept})
        (reply,) = grid.send_and_receive([Message(content, node, "train")])
        assert content["config"]["list"] == [1]
        if not fail:
            counts.append(list(reply.content["state"]["list"]))
            # What the server does to a reply is not done to the node.
            reply.content["state"]["list"].clear()
    assert counts == [[1], [1, 2]]
    assert grid.contexts[node].state["state"]["count"] == 2


def test_an_exception_is_logged_with_its_node_and_traceback_and_becomes_an_error_reply(caplog):
    def failing(received, context):
        if context.node_config["partition-id"]:
            raise KeyError("arrays")
        return echo(received, context)

    grid = grid_of(failing, nodes=3)
    with caplog.at_level(logging.WARNING, "fedgraph"):
        replies = grid.send_and_receive([message(node) for node in grid.get_node_ids()])
    assert [reply.has_error() for reply in replies] == [False, True, True]
    assert replies[1].error.reason == "KeyError: 'arrays'"
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("ClientApp of node 1001 (partition 1), message 'train':\nTraceback")
    assert 'raise KeyError("arrays")' in first
    assert "in_process.py" not in first
    assert second == "ClientApp of node 1002 (partition 2), message 'train': KeyError: 'arrays' (traceback as above)"
    assert [(failure.partition, type(failure.error)) for failure in grid.failures] == [(1, KeyError), (2, KeyError)]


def test_an_exception_is_raised_as_it_is_on_demand():
    error = KeyError("arrays")

    def failing(received, context):
        raise error

    grid = grid_of(failing, raise_errors=True)
    with pytest.raises(KeyError) as raised:
        grid.send_and_receive([message(next(iter(grid.get_node_ids())))])
    assert raised.value is error
    assert raised.traceback[-1].name == "failing"
    assert error.__notes__ == ["Raised by the ClientApp of node 1000 (partition 0), message 'train'"]


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (lambda received, _: None, "TypeError: the ClientApp returned NoneType instead of a Message"),
        (lambda received, _: received, "ValueError: the ClientApp returned a Message that is no reply to the one it"),
        (lambda received, _: message(1), "ValueError: the ClientApp returned a Message that is no reply to the one it"),
        (lambda received, _: exit(3), r"RunError: the ClientApp has called sys.exit\(3\)"),
        (ClientApp(), "ValueError: No train function registered"),
    ],
)
def test_what_is_no_reply_is_said_to_be_that(handler, reason):
    grid = grid_of(handler, nodes=1)
    (reply,) = grid.send_and_receive([message(1000)])
    assert reply.has_error()
    assert re.match(reason, reply.error.reason)


def test_an_error_reply_of_the_app_itself_is_passed_on():
    grid = grid_of(lambda received, _: Message(Error(code=7, reason="no data"), reply_to=received), nodes=1)
    (reply,) = grid.send_and_receive([message(1000)])
    assert (reply.error.code, reply.error.reason) == (7, "no data")


@pytest.fixture
def impatient(monkeypatch):
    """Waiting in vain takes seconds."""
    monkeypatch.setattr(simulation, "_WAITED_SECONDS", 0.3)
    monkeypatch.setattr(simulation, "_QUESTIONS", 10_000)


def wait_for(condition, seconds):
    while not condition():
        time.sleep(seconds)


@pytest.mark.parametrize("seconds", [0.1, 0.0])
def test_a_loop_that_waits_for_nodes_ends_in_an_error(impatient, seconds):
    grid = grid_of(echo, nodes=3)
    began = time.monotonic()
    with pytest.raises(RunError, match="again and again, .*3"):
        wait_for(lambda: len(list(grid.get_node_ids())) >= 5, seconds)
    assert time.monotonic() - began < 10


def test_a_loop_that_waits_for_replies_ends_in_an_error(impatient):
    grid = grid_of(echo, nodes=3)
    ids, replies = list(grid.push_messages([message(node) for node in grid.get_node_ids()])), []

    def four_are_there():
        replies.extend(grid.pull_messages(ids))
        return len(replies) >= 4

    with pytest.raises(RunError, match="waits for replies that will not come"):
        wait_for(four_are_there, 0.1)
    assert len(replies) == 3


def test_who_asks_often_but_does_not_wait_is_answered(impatient):
    grid = grid_of(echo, nodes=3)
    for _ in range(5):
        # Sleeps between rounds, as long as there are rounds.
        for _ in range(1000):
            grid.get_node_ids()
        time.sleep(0.1)
        grid.send_and_receive([message(1000)])
    for _ in range(8):
        end = time.process_time() + 0.1
        while time.process_time() < end:
            sum(range(1000))
        assert list(grid.get_node_ids()) == [1000, 1001, 1002]


def test_who_does_with_fewer_nodes_than_it_would_like_is_answered():
    grid = grid_of(echo, nodes=3)

    def wanted(min_available_nodes):
        return list(grid.get_node_ids())[:min_available_nodes]

    assert [wanted(5) for _ in range(3)] == [[1000, 1001, 1002]] * 3


def test_arrays_are_shared_and_not_copied():
    array = Array(np.zeros(4))
    grid = grid_of(lambda received, _: Message(received.content, reply_to=received), nodes=1)
    content = RecordDict({"arrays": ArrayRecord({"w": array})})
    (reply,) = grid.send_and_receive([Message(content, 1000, "train")])
    assert reply.content["arrays"]["w"].data is array.data
    assert reply.content["arrays"] is not content["arrays"]
