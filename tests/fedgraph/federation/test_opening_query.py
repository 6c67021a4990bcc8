import re
import time

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedgraph.federation import opening_query
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.federation.identity import prove, read_public_keys
from fedgraph.federation.opening_query import ask_all_nodes, identify
from fedgraph.federation.roll_call import RollCall
from fedgraph.federation.traffic import Traffic
from fedgraph.messages import Identity
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import IdentityError

TASK = TaskSpec("regression", (2,), (1,))


def introduce(message, context):
    """Answers as the node config says: ``names``, and ``partition`` where there is one."""
    assert message.metadata.message_type == "query.identify"
    config = context.node_config
    if "problem" in config:
        return Message(RecordDict({"config": ConfigRecord({"error": config["problem"]})}), reply_to=message)
    if "nonsense" in config:
        return Message(RecordDict(), reply_to=message)
    names = tuple(config["names"].split())
    counts = torch.full((len(names),), 3)
    partition = tuple(config["partition"]) if "partition" in config else None
    said = Identity(
        names, TASK if names else None, "x", dict.fromkeys(("train", "validation", "test"), counts), None, partition
    )
    return Message(said.pack(), reply_to=message)


class Late(LocalGrid):
    """Every look at the nodes lets one more connect; ``silent`` ones are connected and do not answer so many times."""

    nodes_may_come = True

    def __init__(self, configs, silent=()):
        super().__init__(introduce, configs)
        self.looks = 0
        self.asked = []
        self.silent = dict(silent)

    def get_node_ids(self):
        self.looks += 1
        return list(self.contexts)[: self.looks - 1]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.asked += [message.metadata.dst_node_id for message in messages]
        for message in list(messages):
            node = message.metadata.dst_node_id
            if self.silent.get(node, 0) > 0:
                self.silent[node] -= 1
                messages.remove(message)
        return super().send_and_receive(messages)


@pytest.fixture(autouse=True)
def quick_poll(monkeypatch):
    monkeypatch.setattr(opening_query, "_POLL_SECONDS", 0.005)


def ask(grid, min_clients=1, wait=0.2, on_wait=lambda text: None, traffic=None):
    return identify(grid, "client", "{}", RollCall(min_clients, wait), False, on_wait, traffic)


def test_waits_for_nodes_that_come_late_and_asks_each_once():
    grid = Late([{"names": "c d"}, {"names": "a"}, {"names": "b"}])
    waited = []
    federation = ask(grid, min_clients=4, wait=20, on_wait=waited.append)
    assert federation.names == ("a", "b", "c", "d")
    assert grid.asked == [1000, 1001, 1002]
    assert waited == [
        "no node is connected (20 s left)",
        "only 2 of at least 4 clients are hosted (20 s left)",
        "only 3 of at least 4 clients are hosted (20 s left)",
    ]


def test_waits_for_all_partitions():
    grid = Late([{"names": name, "partition": [i, 3]} for i, name in ((2, "c"), (0, "a"), (1, "b"))])
    waited = []
    assert ask(grid, wait=20, on_wait=waited.append).names == ("a", "b", "c")
    left = "is hosted by nobody (20 s left)"
    assert waited[1:] == [f"'partition-id' 0, 1 of 3 {left}", f"'partition-id' 1 of 3 {left}"]


def test_a_node_whose_answer_was_lost_is_asked_again():
    grid = Late([{"names": "a", "partition": [0, 2]}, {"names": "b", "partition": [1, 2]}], silent={1001: 2})
    traffic = Traffic()
    assert ask(grid, wait=20, traffic=traffic).names == ("a", "b")
    assert grid.asked == [1000, 1001, 1001, 1001]
    assert traffic == Traffic(exchanges=1), "one opening query, however often it is asked; no label counts"


def test_label_counts_of_the_opening_query_are_counted():
    def with_labels(message, context):
        counts = dict.fromkeys(("train", "validation", "test"), torch.tensor([3]))
        name = (f"client-{context.node_id}",)
        return Message(Identity(name, TASK, "x", counts, torch.ones(1, 7).long()).pack(), reply_to=message)

    traffic = Traffic(exchanges=2, bytes_down=5, bytes_up=11)
    ask(LocalGrid(with_labels, [{}] * 3), min_clients=3, traffic=traffic)
    assert traffic == Traffic(3, 5, 11 + 3 * (7 * 8 + 128), 0, 3 * (7 * 8 + 128))


@pytest.mark.parametrize(
    ("configs", "min_clients", "message"),
    [
        ([], 1, "0 s .*no node is connected"),
        ([{"names": "a b"}], 3, "0 s .*only 2 of at least 3"),
        ([{"names": "a", "partition": [0, 3]}], 1, "'partition-id' 1, 2 of 3"),
        ([{"names": "a"}, {"problem": "no such file: x.h5"}], 3, r"node 1001 .*x\.h5"),
        ([{"nonsense": 1}], 1, "node 1000 .*malformed"),
        ([{"names": "a"}, {"names": "a"}], 2, "client .a. is hosted twice"),
    ],
)
def test_who_is_missing_is_named(configs, min_clients, message):
    with pytest.raises(IdentityError, match=message):
        ask(Late(configs), min_clients, wait=0.05)


def test_an_exception_at_a_node_is_told_in_its_own_words():
    with pytest.raises(IdentityError, match="node 1000 .*'names'"):
        ask(Late([{}]))


def test_a_connected_node_that_does_not_answer_is_not_forgotten():
    class Both(Late):
        def get_node_ids(self):
            return list(self.contexts)

    grid = Both([{"names": "a"}, {"names": "b"}], silent={1001: 1})
    assert ask(grid, wait=20).names == ("a", "b")


def test_nodes_that_disagree_on_the_number_of_partitions_are_told_so():
    with pytest.raises(IdentityError, match="disagree on 'num-partitions'"):
        ask(Late([{"names": "a", "partition": [0, 2]}, {"names": "b", "partition": [1, 3]}]), wait=0.05)


def test_silent_nodes_are_named_when_time_runs_out():
    grid = Late([{"names": "a"}], silent={1000: 1000})
    with pytest.raises(IdentityError, match="1000"):
        ask(grid, wait=0.05)


# ---- clients that are expected by name


def expect(grid, *names, wait=20.0, on_wait=lambda text: None, keys=None):
    return identify(grid, "client", "{}", RollCall(1, wait, names, keys), False, on_wait)


def test_the_run_begins_when_all_expected_clients_are_there():
    grid = Late([{"names": "mercy"}, {"names": ""}, {"names": "ucla"}, {"names": "st-olav"}])
    waited = []
    assert expect(grid, "mercy", "st-olav", "ucla", on_wait=waited.append).names == ("mercy", "st-olav", "ucla")
    assert [text.partition(" (2")[0] for text in waited] == [
        "0 of 3 clients are here (nobody); nobody hosts mercy, st-olav, ucla",
        "1 of 3 clients are here (mercy); nobody hosts st-olav, ucla",
        "2 of 3 clients are here (mercy, ucla); nobody hosts st-olav",
    ]


def test_a_resumed_run_waits_for_the_clients_that_it_had_and_takes_others_too():
    nodes, before = [{"names": "a"}, {"names": "c"}, {"names": "b"}], ("a", "b")
    found = identify(Late(nodes), "client", "{}", RollCall(1, 20, before=before), False)
    assert found.names == ("a", "b", "c")
    with pytest.raises(
        IdentityError, match="^waited 0 s for nodes, but of the clients that took part .* nobody hosts b$"
    ):
        identify(Late(nodes[:2]), "client", "{}", RollCall(1, 0.1, before=before), False)
    notes = []
    identify(Late(nodes[:2]), "client", "{}", RollCall(1, 0.1, before=before), False, tolerate=True, notes=notes)
    assert notes == ["the run began although of the clients that took part before the run was stopped, nobody hosts b"]


def test_who_is_there_and_who_is_missing_is_told_when_time_is_up():
    with pytest.raises(IdentityError, match="2 of 3 .*nobody hosts c; node 1001: no such"):
        expect(Late([{"names": "a b"}, {"problem": "no such file"}]), "a", "b", "c", wait=0.1)


@pytest.mark.parametrize("tolerate", [False, True])
def test_nobody_is_waited_for_where_all_nodes_are_there(tolerate, caplog):
    grid = LocalGrid(introduce, [{"names": "a b"}, {"problem": "no such file"}])
    started, roll_call = time.monotonic(), RollCall(2, 60, ("a", "b", "c"))
    if tolerate:
        assert identify(grid, "client", "{}", roll_call, False, tolerate=True).names == ("a", "b")
        assert caplog.messages[-1] == "going on although 2 of 3 clients are here (a, b); nobody hosts c"
    else:
        with pytest.raises(IdentityError, match="^2 of 3 .*nobody hosts c; node 1001: no such"):
            identify(grid, "client", "{}", roll_call, False)
    assert time.monotonic() - started < 5


def test_who_is_there_and_has_not_answered_is_waited_for_on_any_grid():
    class AllThereFromTheStart(Late):
        nodes_may_come = False

        def get_node_ids(self):
            return list(self.contexts)

    assert ask(AllThereFromTheStart([{"names": "a"}, {"names": "b"}], silent={1001: 1}), wait=20).names == ("a", "b")


def test_what_goes_wrong_at_a_stranger_is_not_the_concern_of_a_run_that_expects_others():
    assert expect(Late([{"problem": "no such file"}, {"names": "a"}]), "a").names == ("a",)


def test_a_node_that_was_of_no_use_is_asked_again_while_its_clients_are_waited_for(monkeypatch):
    monkeypatch.setattr(opening_query, "_REMIND_SECONDS", 0.01)
    grid = Late([{"names": "a"}, {"problem": "no such file", "names": "b"}])

    def mended(text):
        if "nobody hosts b" in text:
            grid.contexts[1001].node_config.pop("problem", None)

    assert expect(grid, "a", "b", on_wait=mended).names == ("a", "b")


def test_a_node_that_speaks_for_others_than_the_expected_is_refused():
    with pytest.raises(IdentityError, match="node 1001: .*b, .*expect"):
        expect(Late([{"names": "a"}, {"names": "b c"}]), "a", "c", wait=0.1)


def test_news_come_when_something_changes_and_now_and_then(monkeypatch):
    told = []
    with pytest.raises(IdentityError):
        expect(Late([{"names": "a"}]), "a", "b", wait=0.2, on_wait=told.append)
    assert len(told) == 2
    monkeypatch.setattr(opening_query, "_REMIND_SECONDS", 0.05)
    with pytest.raises(IdentityError):
        expect(Late([{"names": "a"}]), "a", "b", wait=0.3, on_wait=told.append)
    assert len(told) >= 2 + 4


# ---- nodes that prove whom they host


@pytest.fixture
def keys(tmp_path, write_key):
    """Public keys of mercy and ucla; the private ones are files of their names."""
    for name in ("mercy", "ucla"):
        write_key(tmp_path / name)
    return read_public_keys(tmp_path)


def proving(message, context):
    """Signs what it says with the key of the node config, in the manner of the node config."""
    reply = introduce(message, context)
    said = reply.content.config_records["config"]
    challenge = message.content["config"]["identity-challenge"]
    config = context.node_config
    if "key" in config and said["clients"]:
        node = config.get("node", context.node_id)
        said["identity-proof"] = prove(config["key"], config.get("challenge", challenge), node, said["clients"])
    return reply


def test_nodes_that_prove_whom_they_host_take_part(keys, tmp_path):
    configs = [
        {"names": "mercy", "key": tmp_path / "mercy"},
        {"names": ""},
        {"names": "ucla", "key": tmp_path / "ucla"},
    ]
    assert expect(LocalGrid(proving, configs), "mercy", "ucla", keys=keys).names == ("mercy", "ucla")


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"key": "ucla"}, "node 1000: .*private key of 'mercy'"),
        ({}, "node 1000: .*mercy .*no proof"),
        ({"key": "mercy", "challenge": "of another run"}, "private key of 'mercy'"),
        ({"key": "mercy", "node": 1001}, "private key of 'mercy'"),
    ],
)
def test_a_node_that_claims_the_client_of_another_is_refused(keys, tmp_path, lie, message):
    if "key" in lie:
        lie = {**lie, "key": tmp_path / lie["key"]}
    grid = LocalGrid(proving, [{"names": "mercy", **lie}, {"names": "ucla", "key": tmp_path / "ucla"}])
    with pytest.raises(IdentityError, match=message):
        expect(grid, "mercy", "ucla", wait=0.1, keys=keys)


def test_a_client_without_a_public_key_cannot_take_part(keys, tmp_path):
    grid = LocalGrid(proving, [{"names": "st-olav", "key": tmp_path / "ucla"}])
    with pytest.raises(IdentityError, match="'st-olav' .*public"):
        identify(grid, "client", "{}", RollCall(1, 0.1, None, keys), False)


# ---- any question to all nodes


def ask_all(grid, min_clients=1, wait=0.05, tolerate=False, traffic=None, notes=None, expected=None):
    content = RecordDict({"config": ConfigRecord({"x": 1})})
    return ask_all_nodes(
        grid,
        content,
        "query.identify",
        Identity.unpack,
        RollCall(min_clients, wait, expected),
        tolerate=tolerate,
        traffic=traffic,
        notes=notes,
    )


class AllThere(Late):
    def get_node_ids(self):
        return list(self.contexts)


BAD = [{"names": "a"}, {"problem": "no such file: x.h5"}, {"nonsense": 1}, {}]


def test_answers_come_by_node():
    answers = ask_all(AllThere([{"names": "c d"}, {"names": ""}, {"names": "b"}]))
    assert {node: answer.clients for node, answer in answers.items()} == {1000: ("c", "d"), 1001: (), 1002: ("b",)}


def test_nodes_without_a_usable_answer_are_gone_without_where_that_may_be(caplog):
    grid, traffic = AllThere(BAD), Traffic()
    with caplog.at_level("WARNING", logger="fedgraph"):
        answers = ask_all(grid, tolerate=True, traffic=traffic)
    assert list(answers) == [1000]
    assert traffic.exchanges == 1
    assert grid.asked == [1000, 1001, 1002, 1003], "who has failed is not asked again"
    for text in ("node 1001: no such file: x.h5", "node 1002: .*malformed", "node 1003: KeyError"):
        assert re.search(f"going on without {text}", caplog.text, re.DOTALL), text
    with pytest.raises(IdentityError, match="node 1001 cannot take part"):
        ask_all(AllThere(BAD))


def test_who_is_left_out_is_noted():
    twice = [{"names": "a b"}, {"names": "c d"}, {"names": "d"}]
    notes = []
    assert list(ask_all(AllThere([*twice, BAD[1]]), tolerate=True, notes=notes)) == [1000]
    assert sorted(note.partition(": ")[0] for note in notes) == [
        "the run began without the node 1003",
        "the run began without the node of 'c', 'd'",
        "the run began without the node of 'd'",
    ]
    assert "it says that it hosts client 'd', and so does another node" in "".join(notes)


def test_missing_clients_are_noted_and_other_nodes_are_not_where_names_are_expected():
    notes = []
    ask_all(AllThere(BAD[:2]), tolerate=True, notes=notes, expected=("a",))
    assert not notes
    ask_all(AllThere(BAD[:2]), tolerate=True, notes=notes, expected=("a", "b"))
    assert notes == [
        "the run began without the node 1001: no such file: x.h5",
        "the run began although 1 of 2 clients are here (a); nobody hosts b",
    ]


def test_without_enough_clients_the_reasons_are_told():
    reasons = r"only 1 of at least 2 clients.*; node 1001: no such file: x\.h5; node 1002"
    with pytest.raises(IdentityError, match=reasons):
        ask_all(AllThere(BAD), min_clients=2, tolerate=True)
    with pytest.raises(IdentityError, match="node 1000: no such file"):
        ask_all(AllThere(BAD[1:2]), tolerate=True)


def test_a_silent_node_and_a_partition_of_nobody_are_waited_for_and_then_gone_without():
    configs = [{"names": "a", "partition": [0, 3]}, {"names": "b", "partition": [1, 3]}]
    assert list(ask_all(AllThere(configs, silent={1001: 10**6}), tolerate=True)) == [1000]
    assert list(ask_all(AllThere(configs, silent={1001: 2}), wait=0.5, tolerate=True)) == [1000, 1001]
    with pytest.raises(IdentityError, match="'partition-id' 2 of 3"):
        ask_all(AllThere(configs))
    grid = AllThere([*configs, {"problem": "no such file"}])
    assert list(ask_all(grid, tolerate=True)) == [1000, 1001]
    assert grid.asked == [1000, 1001, 1002], "who has failed is not asked again while others are waited for"
