from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.federation.federation import Federation, hosts_of, nodes_of
from fedgraph.messages import Identity
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import DataError, IdentityError

TASK = TaskSpec("classification", (4,), (3,), classes=("x", "y", "z"))


def counts_of(name):
    """Numbers that only this client has."""
    return sum(name.encode()) + 1


def identity(*names, partition=None, task=TASK, labels=True, data="x", empty=(), untrained=(), groups=True):
    count = torch.tensor([0 if name in empty else counts_of(name) for name in names], dtype=torch.int64)
    label_counts = torch.stack([count, 2 * count, 3 * count], dim=1) if labels else None
    return Identity(
        names,
        task if names else None,
        data,
        dict.fromkeys(("train", "validation", "test"), count),
        label_counts,
        partition,
        tuple(f"group of {name}" for name in names) if groups else None,
        tuple(untrained),
    )


def test_clients_are_in_the_order_of_their_names():
    federation = Federation.of({9: identity("b", "d"), 4: identity("c", "a")})
    assert federation.names == ("a", "b", "c", "d")
    assert federation.hosts[9].tolist() == [1, 3]
    assert federation.hosts[4].tolist() == [0, 2]
    assert federation.clients_of(4) == ("a", "c")
    assert dict(federation.positions) == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert federation.num_examples["test"].tolist() == [counts_of(name) for name in "abcd"]
    assert federation.label_counts[:, 2].tolist() == [3 * counts_of(name) for name in "abcd"]


@settings(max_examples=40, derandomize=True)
@given(
    st.lists(st.text("abcXYZ-09é _.", min_size=1, max_size=6), min_size=1, max_size=12, unique=True),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_no_packing_changes_what_belongs_to_a_client(names, random, nodes):
    shuffled = random.sample(names, len(names))
    packed = {7 * node + 1: identity(*shuffled[node::nodes]) for node in random.sample(range(nodes), nodes)}
    federation = Federation.of(packed)
    alone = Federation.of({1: identity(*names)})
    assert federation.names == alone.names == tuple(sorted(names))
    assert torch.equal(federation.num_examples["train"], alone.num_examples["train"])
    assert torch.equal(federation.label_counts, alone.label_counts)
    for node, said in packed.items():
        if said.clients:
            assert federation.clients_of(node) == tuple(sorted(said.clients))
        else:
            assert node not in federation.hosts
    assert sorted(torch.cat(list(federation.hosts.values())).tolist()) == list(range(len(names)))


def test_label_counts_only_when_all_nodes_give_them():
    assert Federation.of({1: identity("a"), 2: identity("b", labels=False)}).label_counts is None


def test_groups_follow_the_names_and_only_when_all_nodes_give_them():
    federation = Federation.of({2: identity("c", "a"), 1: identity("b")})
    assert federation.groups == ("group of a", "group of b", "group of c")
    assert Federation.of({2: identity("c", "a"), 1: identity("b", groups=False)}).groups is None


def test_moments_follow_the_names_and_only_when_all_nodes_give_them():
    def told(*names):
        rows = [[counts_of(name) + part for part in range(4)] for name in names]
        return replace(identity(*names), moments=torch.tensor(rows, dtype=torch.float64))

    federation = Federation.of({2: told("c", "a"), 1: told("b"), 3: identity()})
    assert federation.moments.tolist() == [[counts_of(name) + part for part in range(4)] for name in "abc"]
    assert Federation.of({2: told("c", "a"), 1: identity("b")}).moments is None


def test_clients_that_are_meant_to_be_without_training_examples_take_part():
    federation = Federation.of(
        {1: identity("a", "b", empty="b", untrained="b"), 2: identity("c", empty="c", untrained="c")}
    )
    assert federation.num_examples["train"].tolist() == [counts_of("a"), 0, 0]


def test_data_of_all_nodes_is_named_once_each():
    federation = Federation.of({1: identity("a", data="y"), 2: identity("b", data="x"), 3: identity("c", data="y")})
    assert federation.data == "x; y"


@pytest.mark.parametrize(
    ("identities", "error", "message"),
    [
        ({1: identity("a", "b"), 2: identity("b")}, IdentityError, "'b' .*node 1 .*node 2"),
        ({}, IdentityError, "no connected node hosts a client"),
        ({1: identity()}, IdentityError, "no connected node hosts a client"),
        ({1: identity("a", "b", empty="b")}, DataError, "no training examples at client b"),
        ({1: identity("a", "b", "c", empty="bc", untrained="b")}, DataError, "no training examples at client c:"),
        ({1: identity("a", "b", empty="ab", untrained="ab")}, DataError, "no client has training examples"),
        (
            {1: identity("a"), 2: identity("b", task=TaskSpec("classification", (5,), (3,), classes=("x", "y", "z")))},
            DataError,
            r"'a' and 'b' .*input_shape: \(4,\)",
        ),
    ],
)
def test_disagreement_is_explained(identities, error, message):
    with pytest.raises(error, match=message):
        Federation.of(identities)


def test_nodes_of_clients_and_back():
    node_of = nodes_of({7: ["c", "a"], 3: ["b"], 5: []})
    assert node_of == {"c": 7, "a": 7, "b": 3}
    hosts = hosts_of(["a", "x", "b", "c"], node_of)
    assert {node: positions.tolist() for node, positions in hosts.items()} == {7: [0, 3], 3: [2]}
    with pytest.raises(IdentityError, match="'a' .*node 1 .*node 2"):
        nodes_of({1: ["a"], 2: ["a"]}, "owner")


def test_data_that_nodes_of_their_own_describe_alike_is_counted():
    own, file = "own data, 1 client, 1,320 hourly steps", "rows.csv, 4 clients"
    alike = Federation.of({1: identity("a", data=own), 2: identity("b", data=own), 3: identity(data=own)})
    assert alike.data == f"2 nodes, each with {own}"
    mixed = Federation.of({1: identity("a", data=file), 2: identity("b", data=file), 3: identity("c", data=own)})
    assert mixed.data == f"{own}; {file}"
