import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.federation.identity import hosted_clients
from fedgraph.support.errors import IdentityError

KNOWN = ["a", "b", "c", "d", "e"]


def test_clients_by_name():
    assert hosted_clients({"clients": "d, a", "partition-id": 0, "num-partitions": 1}, KNOWN) == ("d", "a")
    assert hosted_clients({"clients": '"x,y", z'}, ["x,y", "z"]) == ("x,y", "z")


@settings(max_examples=50, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 12))
def test_partitions_cover_all_clients_once_in_contiguous_even_blocks(clients, partitions):
    known = [f"client-{i:02d}" for i in range(clients)]
    blocks = [hosted_clients({"partition-id": i, "num-partitions": partitions}, known) for i in range(partitions)]
    assert [name for block in blocks for name in block] == known
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "hosts.*'clients'"),
        ({"partition-id": 1}, "does not know which clients it hosts"),
        ({"partition-id": 2, "num-partitions": 2}, "'partition-id' is 2.*0 to 1"),
        ({"clients": "a,z"}, "names z, "),
        ({"clients": "a,a"}, "names a client twice"),
        ({"clients": ""}, "is empty"),
    ],
)
def test_bad_node_config_is_explained(config, message):
    with pytest.raises(IdentityError, match=message):
        hosted_clients(config, KNOWN)
