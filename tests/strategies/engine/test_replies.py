import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedgraph.federation.federation import Federation
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.messages import WorkReply
from fedgraph.models.base import TaskSpec
from fedgraph.strategies.engine.replies import collect

NAMES = ("a", "b", "c", "d", "e")
PACKINGS = {
    "one node": {1000: (0, 1, 2, 3, 4)},
    "contiguous": {1000: (0, 1), 1001: (2, 3, 4)},
    "interleaved": {1000: (1, 4), 1001: (0, 3), 1002: (2,)},
}


def exchange(packing):
    """Client i answers with the tensor ``[i, i]``, the number 10 i, and one that only the first node reports."""
    hosts = {node: torch.tensor(rows) for node, rows in packing.items()}
    counts = dict.fromkeys(("train", "validation", "test"), torch.arange(1, 6))
    federation = Federation(NAMES, hosts, TaskSpec("regression", (1,), (1,)), "x", counts)

    def answer(message, context):
        rows = torch.tensor(packing[context.node_id])
        metrics = {"loss": 10.0 * rows} | ({"extra": 1.0 * rows} if context.node_id == 1000 else {})
        stacked = {"parameters": rows[:, None].expand(-1, 2).float()}
        return Message(WorkReply(federation.clients_of(context.node_id), stacked, metrics).pack(), reply_to=message)

    grid = LocalGrid(answer, [{}] * len(packing))
    asked = [Message(RecordDict({"config": ConfigRecord({"x": 1})}), node, "train") for node in grid.get_node_ids()]
    return federation, list(grid.send_and_receive(asked))


def read(content, clients):
    return WorkReply.unpack(content, clients, {"parameters": (2,)}), {}


@pytest.mark.parametrize("packing", PACKINGS.values(), ids=PACKINGS)
def test_rows_come_in_the_order_of_the_names_and_are_no_views_of_messages(packing):
    federation, messages = exchange(packing)
    sent = [message.content["stacked"]["parameters"].data for message in messages]
    copies = [bytes(bytearray(data)) for data in sent]
    replies = collect(federation, federation.hosts, messages, read)
    assert replies.names == NAMES
    assert replies.tensors["parameters"].tolist() == [[i, i] for i in range(5)]
    assert replies.metrics["loss"].tolist() == [0, 10, 20, 30, 40]
    first = set(packing[1000])
    assert replies.metrics["extra"].nan_to_num(-1).tolist() == [i if i in first else -1 for i in range(5)]
    replies.tensors["parameters"].fill_(7)
    assert sent == copies


def test_a_client_left_out_takes_its_row_along():
    federation, messages = exchange(PACKINGS["interleaved"])
    replies = collect(
        federation, federation.hosts, messages, lambda content, clients: (read(content, clients)[0], {"d": "broken"})
    )
    assert replies.names == ("a", "b", "c", "e")
    assert replies.tensors["parameters"][:, 0].tolist() == [0, 1, 2, 4]
    assert replies.absent == {"d": "broken"}
