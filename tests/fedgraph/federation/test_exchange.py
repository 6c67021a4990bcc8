import random
import time
from dataclasses import replace

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedgraph.federation.exchange import OrderedGrid, quick, split_replies
from fedgraph.federation.federation import Federation
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.federation.traffic import Traffic
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ReplyError

TASK = TaskSpec("regression", (2,), (1,))


class Shuffled(LocalGrid):
    """Replies arrive in any order; nodes are listed in any order; some replies never arrive."""

    def __init__(self, *args, seed=0, lost=(), **kwargs):
        super().__init__(*args, **kwargs)
        self.random = random.Random(seed)
        self.lost = lost

    def get_node_ids(self):
        ids = list(super().get_node_ids())
        return self.random.sample(ids, len(ids))

    def send_and_receive(self, messages, *, timeout=None):
        replies = [r for r in super().send_and_receive(messages) if r.metadata.src_node_id not in self.lost]
        return self.random.sample(replies, len(replies))


def numbers(node):
    """Float32 numbers whose sum depends on the order of summation."""
    return torch.randn(5, generator=torch.Generator().manual_seed(node)) * 10.0 ** (node % 5)


def answer(message, context):
    arrays = ArrayRecord({"x": Array(numbers(context.node_id).numpy())})
    return Message(RecordDict({"x": arrays}), reply_to=message)


def federation_of(hosts):
    names = tuple(sorted(name for own in hosts.values() for name in own))
    positions = {node: torch.tensor(sorted(names.index(name) for name in own)) for node, own in hosts.items()}
    counts = torch.ones(len(names), dtype=torch.int64)
    return Federation(names, positions, TASK, "x", dict.fromkeys(("train", "validation", "test"), counts))


HOSTS = {1000: ("e", "q"), 1001: ("b",), 1003: ("a", "z"), 1004: ("c", "d")}


def to_all(grid):
    config = ConfigRecord({"x": 1})
    return [Message(RecordDict({"config": config}), node, "train") for node in grid.get_node_ids()]


@pytest.mark.parametrize("seed", range(4))
def test_nodes_and_replies_come_in_the_order_of_the_clients_names(seed):
    ordered = OrderedGrid(Shuffled(answer, [{}] * 6, seed=seed), federation_of(HOSTS))
    assert list(ordered.get_node_ids()) == [1003, 1001, 1004, 1000]
    replies = ordered.send_and_receive(to_all(ordered))
    assert [reply.metadata.src_node_id for reply in replies] == [1003, 1001, 1004, 1000]
    pushed = ordered.push_messages(reversed(to_all(ordered)))
    assert [reply.metadata.src_node_id for reply in ordered.pull_messages(pushed)] == [1003, 1001, 1004, 1000]


def test_sums_do_not_depend_on_the_order_of_arrival():
    hosts = {1000 + i: (f"client-{i}",) for i in range(12)}

    def total(grid):
        parts = [torch.from_numpy(reply.content["x"]["x"].numpy()) for reply in grid.send_and_receive(to_all(grid))]
        return sum(parts[1:], parts[0])

    shuffled = [Shuffled(answer, [{}] * 12, seed=seed) for seed in range(20)]
    assert len({tuple(total(OrderedGrid(grid, federation_of(hosts))).tolist()) for grid in shuffled}) == 1
    assert len({tuple(total(grid).tolist()) for grid in shuffled}) > 1, "the numbers do not show the order of summation"


def test_exchanges_and_bytes_are_counted():
    ordered = OrderedGrid(Shuffled(answer, [{}] * 6), federation_of(HOSTS))
    assert ordered.send_and_receive([]) == []
    assert ordered.traffic == Traffic(0, 0, 0)
    ordered.send_and_receive(to_all(ordered))
    array = Array(numbers(1).numpy())
    assert ordered.traffic == Traffic(1, 0, 4 * len(array.data), 0, 4 * len(array.data))
    sent = RecordDict({"x": ArrayRecord({"a": array, "b": array})})
    ordered.send_and_receive([Message(sent, 1000, "train")])
    assert ordered.traffic == Traffic(2, *(number * len(array.data) for number in (2, 5, 2, 5)))


def test_what_a_node_gets_or_gives_once_counts_for_each_of_its_clients_where_they_are_taken_apart():
    array = Array(numbers(1).numpy())

    def mean(message, context):
        return Message(RecordDict({"arrays": ArrayRecord({"x": array})}), reply_to=message)

    ordered = OrderedGrid(LocalGrid(mean, [{}] * 6), federation_of(HOSTS))
    size = len(array.data)
    model = RecordDict({"shared": ArrayRecord({"x": array}), "stacked": ArrayRecord({"x": array})})
    ordered.send_and_receive([Message(model, 1000, "train"), Message(model, 1001, "train")])
    assert ordered.traffic == Traffic(1, 4 * size, 2 * size, (2 + 1 + 1 + 1) * size, (2 + 1) * size)
    # A request to one of the clients of a node, as of a peer that takes its turn, counts for this one.
    turn = RecordDict({"shared": ArrayRecord({"x": array}), "config": ConfigRecord({"clients": ["e"]})})
    before = replace(ordered.traffic)
    ordered.send_and_receive([Message(turn, 1000, "train")])
    assert ordered.traffic.since(before) == Traffic(1, size, size, size, size)


def test_lost_replies_and_strangers_are_left_out():
    grid = Shuffled(answer, [{}] * 6, lost=(1001,))
    ordered = OrderedGrid(grid, federation_of(HOSTS))
    replies = ordered.send_and_receive([*to_all(ordered), Message(RecordDict(), 1005, "train")])
    assert [reply.metadata.src_node_id for reply in replies] == [1003, 1004, 1000]


def test_a_node_that_is_gone_is_not_asked():
    grid = LocalGrid(answer, [{}] * 6)
    del grid.contexts[1001]
    assert list(OrderedGrid(grid, federation_of(HOSTS)).get_node_ids()) == [1003, 1004, 1000]


def test_the_run_is_that_of_the_grid_below():
    grid = LocalGrid(answer, [{}])
    OrderedGrid(grid, federation_of({1000: ("a",)})).set_run("described")
    assert grid.run == "described"


def test_a_node_counts_once_and_strangers_not_at_all():
    def reply(node, content):
        message = Message(RecordDict(), node, "train")
        answer = Message(RecordDict({"config": ConfigRecord(content)}), reply_to=message)
        answer.metadata.__dict__["_src_node_id"] = node
        return answer

    def read(node, content):
        if "n" not in content["config"]:
            raise ReplyError("no number")
        return node, content["config"]["n"]

    replies = [reply(1, {"n": 5}), reply(1, {"n": 6}), reply(1, {"error": "late"}), reply(2, {}), reply(9, {"n": 7}),
               reply(3, {"error": "the disc is full"}), reply(3, {"n": 8})]  # fmt: skip
    found, problems = split_replies(replies, [1, 2, 3, 4], read)
    assert found == {1: (1, 5)}
    assert problems == {2: "no number", 3: "the disc is full", 4: "no reply in time"}
    assert split_replies([], [4], read, 0.5)[1] == {4: "no reply in time, which is 0.5 s ([experiment] timeout)"}


class SlowFlower(LocalGrid):
    """Answers each message some looks after it was pushed, as Flower's grid; what asks it to wait itself fails."""

    def __init__(self, *args, looks=3, **kwargs):
        super().__init__(*args, **kwargs)
        self.left, self.looked = looks, []

    def pull_messages(self, message_ids):
        self.looked.append(time.monotonic())
        self.left -= 1
        return super().pull_messages(sorted(message_ids)[: 1 if self.left > 0 else 3])

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("it would look every three seconds")


def test_replies_of_flowers_grid_are_looked_for_soon(monkeypatch):
    grid = SlowFlower(answer, [{}] * 4, looks=3)
    assert quick(grid) is grid, "one that answers at once is left alone"
    monkeypatch.setattr(SlowFlower, "__module__", "flwr.superlink.grid.http_grid")
    began = time.monotonic()
    replies = quick(grid).send_and_receive(to_all(grid), timeout=30)
    assert len({reply.metadata.src_node_id for reply in replies}) == 4
    assert time.monotonic() - began < 2
    # A node that does not answer is waited for until the timeout, with a look at its end.
    silent = Message(RecordDict(), 1000, "train")
    monkeypatch.setattr(SlowFlower, "push_messages", lambda self, messages: ["never answered" for _ in messages])
    began = time.monotonic()
    assert quick(grid).send_and_receive([silent], timeout=0.4) == []
    assert 0.4 <= grid.looked[-1] - began < 1.5
