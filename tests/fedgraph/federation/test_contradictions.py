"""Which nodes a run goes on without, when their answers cannot all be right."""

from types import SimpleNamespace

from fedgraph.federation.contradictions import contradictions


def node(*clients, alike="digits", partition=None):
    return SimpleNamespace(clients=clients, alike=alike, partition=partition)


def test_nodes_that_agree_all_take_part():
    assert contradictions({1: node("a"), 2: node("b", "c"), 3: node(alike=None)}) == {}


def test_the_minority_is_left_out_however_many_clients_it_says_it_has():
    many = node(*(f"x{number}" for number in range(1000)), alike="other")
    assert set(contradictions({1: node("a"), 2: many, 3: node("b")})) == {2}
    assert contradictions({1: node("a"), 2: many}) == {}, "one against one"
    dealt = {number: node(f"c{number}", partition=(number, 3)) for number in range(2)}
    assert "num-partitions" in contradictions({**dealt, 2: node("c2", partition=(2, 4))})[2]


def test_who_hosts_the_clients_of_several_others_is_left_out_and_of_two_both():
    found = contradictions({1: node("a", "b", "c"), 2: node("b"), 3: node("c", "d")})
    assert set(found) == {1}
    assert "client 'b', and so does another node; with [clients] public-keys" in found[1]
    assert set(contradictions({1: node("a"), 2: node("a", "b"), 3: node("c")})) == {1, 2}
