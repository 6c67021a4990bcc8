import pytest
import torch

from fedgraph.data.schema.json import schema_as_json
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.methods.fedngm import PhaseReply
from fedgraph.strategies.engine.members import Members
from fedgraph.support.errors import IdentityError

SCHEMA = Schema((Feature("age", "integer"),))


def reply(*clients, text=None):
    texts = tuple(schema_as_json(SCHEMA) if text is None else text for _ in clients)
    rows = tuple(10 * ord(name) for name in clients)
    return PhaseReply(clients, None, "people", rows, texts, torch.zeros(len(clients), 0))


def test_members_are_in_the_order_of_their_names():
    members = Members.of({4: reply("c", "a"), 2: reply("b"), 9: reply()})
    assert (members.names, members.num_rows, members.data) == (("a", "b", "c"), (970, 980, 990), "people")
    assert {node: places.tolist() for node, places in members.hosts.items()} == {4: [0, 2], 2: [1]}
    assert members.federation().clients_of(4) == ("a", "c")
    left = members.without({"a": "lost"})
    assert (left.names, left.num_rows, left.absent) == (("b", "c"), (980, 990), {"a": "lost"})
    assert {node: places.tolist() for node, places in left.hosts.items()} == {4: [1], 2: [0]}


def test_a_schema_that_cannot_be_used_costs_its_client_alone():
    members = Members.of({4: reply("c"), 2: reply("b", text="[]")})
    assert members.names == ("c",)
    assert "the schema of client 'b' cannot be used" in members.absent["b"]


def test_nobody_is_there_twice():
    with pytest.raises(IdentityError, match="client 'b' is hosted twice, by node 4 and by node 2"):
        Members.of({4: reply("a", "b"), 2: reply("b")})
