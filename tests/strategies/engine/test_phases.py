"""The engine runs algorithms of phases: a small one, over nodes that answer by rule."""

import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedgraph.algorithms.phases import (
    Consult,
    Keep,
    Opening,
    Outcome,
    PhasedAlgorithm,
    PhaseRun,
    Query,
    Recall,
    Without,
)
from fedgraph.federation import RollCall
from fedgraph.federation.grids import LocalGrid
from fedgraph.messages import Request, check_content, error_content
from fedgraph.runs import RunFolder
from fedgraph.strategies.engine.phases import PhasesPlan, PhasesRun
from fedgraph.support.errors import DataError, ReplyError, RunError
from fedgraph.support.settings import Settings

NODES = ("c", "a,d", "b")


class Table(Settings):
    times: int = 1
    epochs: int = 1


@dataclass(frozen=True)
class Asked(Request):
    """What is asked, beside the address."""

    what: str = "hosts"
    names: tuple[str, ...] = ()

    def pack(self):
        return RecordDict({"config": ConfigRecord({**self.header(), "what": self.what, "names": list(self.names)})})


@dataclass(frozen=True)
class Hosts:
    clients: tuple[str, ...]
    partition: None = None
    alike: None = None
    data: str = "letters"

    @classmethod
    def unpack(cls, content):
        return cls(tuple(content.config_records["config"]["clients"]))


def numbers(names, content):
    """The answers of a node: numbers, of which negative ones are no good."""
    told = dict(zip(names, content.config_records["config"]["numbers"], strict=True))
    return {name: value for name, value in told.items() if value >= 0}, {
        name: "below zero" for name, value in told.items() if value < 0
    }


@dataclass
class Nodes:
    """Nodes by rule, and what they have been asked."""

    spoil: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)

    def __call__(self, message, context):
        config = check_content(message.content)["config"]
        self.asked.append((message.metadata.group_id, dict(config)))
        hosted = context.node_config["clients"].split(",")
        if config["what"] == "hosts":
            return Message(RecordDict({"config": ConfigRecord({"clients": hosted})}), reply_to=message)
        told = [self.spoil.get(name, float(ord(name[0]))) for name in config["names"]]
        if "silent" in told:
            return Message(error_content("the disk is full"), reply_to=message)
        return Message(RecordDict({"config": ConfigRecord({"numbers": told})}), reply_to=message)


class Adding(PhasedAlgorithm[Table]):
    """Asks who is there, and then for a number of each; ``steps`` may say something else."""

    may_change = ("epochs",)

    def phases(self, run):
        yield Opening(Asked(), Hosts.unpack)
        found = yield Query(lambda names: Asked("numbers", names), numbers, step=2)
        values = torch.tensor(list(found.values()))
        return Outcome(
            tuple(found), "letters", {"test/number": values.double()}, values, arrays={"sum": values.sum()[None]},
            files={"sum.txt": lambda path: path.write_text(str(float(values.sum())))},
        )  # fmt: skip


def running(tmp_path, algorithm=Adding, tolerant=False, least=1, **table):
    (tmp_path / "run").mkdir(exist_ok=True)
    settings = Table(**table)
    run = PhaseRun(0, Settings(), lambda: None, tolerant=tolerant)
    experiment = json.dumps({"seed": 0, "method": settings.as_table()})
    plan = PhasesPlan("c:C", experiment, RollCall(least, 0.0), 1.0, RunFolder(tmp_path / "run"), run)
    return PhasesRun(algorithm(settings), plan)


def grid(nodes):
    return LocalGrid(nodes, [{"clients": names} for names in NODES])


def of(*steps):
    """An algorithm that yields these steps after the opening, and what it got for them."""
    got = []

    class Stepping(Adding):
        def phases(self, run):
            yield Opening(Asked(), Hosts.unpack)
            for step in steps:
                got.append((yield step))
            return Outcome(("a",), "nothing", {})

    return Stepping, got


def test_answers_come_in_the_order_of_names_and_what_comes_out_is_written(tmp_path):
    nodes, served = Nodes(), running(tmp_path)
    outcome = served.run(grid(nodes))
    assert outcome.names == ("a", "b", "c", "d")
    assert outcome.metrics["test/number"].tolist() == [97, 98, 99, 100]
    assert (served.data, served.nodes, served.absent, served.traffic.exchanges) == ("letters", 3, {}, 2)
    assert (tmp_path / "run" / "sum.txt").read_text() == "394.0"
    assert outcome.arrays["sum"].tolist() == [394]
    for _, config in nodes.asked:
        assert (config["fedgraph-client"], config["fedgraph-run"]) == ("c:C", "run")
        assert json.loads(config["fedgraph-experiment"])["method"] == {"times": 1, "epochs": 1}
    assert [(group, config["names"]) for group, config in nodes.asked[3:]] == [
        ("2", ["a", "d"]), ("2", ["b"]), ("2", ["c"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "lost", "reason"),
    [({"a": -1.0}, ("a",), "below zero"), ({"d": "silent"}, ("a", "d"), "the disk is full")],
)
def test_who_has_no_usable_answer_ends_the_run_or_takes_part_no_longer(tmp_path, spoil, lost, reason):
    plural = "s" if len(lost) > 1 else ""
    message = rf"^step 2: nothing usable from {len(lost)} client{plural} \({', '.join(lost)}: {reason}\)\. To go on"
    with pytest.raises(RunError, match=message):
        running(tmp_path).run(grid(Nodes(spoil)))
    served = running(tmp_path, tolerant=True)
    outcome = served.run(grid(Nodes(spoil)))
    assert served.absent == dict.fromkeys(lost, reason)
    assert set(outcome.names) == set("abcd") - set(lost)
    with pytest.raises(RunError, match=rf"step 2: only {4 - len(lost)} of at least 4 clients .*{reason}"):
        running(tmp_path, tolerant=True, least=4).run(grid(Nodes(spoil)))


def test_an_algorithm_leaves_clients_out_where_that_is_tolerated(tmp_path):
    algorithm, got = of(Without({"b": "it differs"}, DataError("b differs")), Without({}))
    with pytest.raises(DataError, match="^b differs$"):
        running(tmp_path, algorithm).run(grid(Nodes()))
    served = running(tmp_path, algorithm, tolerant=True)
    served.run(grid(Nodes()))
    assert got == [("a", "c", "d")] * 2
    assert served.absent == {"b": "it differs"}


def test_an_algorithm_may_want_more_clients_than_the_run(tmp_path):
    class Shy(Adding):
        def check_enough(self, present, least):
            if present < 5:
                raise RunError(f"{present} are too few, whatever {least}")

    nodes = Nodes()
    with pytest.raises(RunError, match="4 are too few, whatever 1"):
        running(tmp_path, Shy).run(grid(nodes))
    assert {config["what"] for _, config in nodes.asked} == {"hosts"}, "nothing more was sent to anybody"


def test_only_clients_that_are_known_take_part(tmp_path):
    class Some(Adding):
        def phases(self, run):
            yield Opening(Asked(), Hosts.unpack, known=("a", "b"))
            found = yield Query(lambda names: Asked("numbers", names), numbers)
            return Outcome(tuple(found), "letters", {})

    nodes, served = Nodes(), running(tmp_path, Some)
    outcome = served.run(grid(nodes))
    assert outcome.names == ("a", "b")
    assert [config["names"] for _, config in nodes.asked[3:]] == [["a"], ["b"]]


class Keeping(Adding):
    """Keeps a number between its phases."""

    def phases(self, run):
        kept = yield Recall(("of these",))
        if not kept:
            yield Opening(Asked(), Hosts.unpack)
            yield Without({"d": "it is lost"})
            kept = {"number": torch.ones(2)}
            yield Keep(kept)
        return Outcome(("a",), "a number", {}, kept["number"])


def test_what_is_kept_is_there_when_the_run_goes_on_unless_something_else_is_asked(tmp_path):
    first = running(tmp_path, Keeping, tolerant=True)
    outcome = first.run(grid(Nodes()))
    silent = Nodes()
    again = running(tmp_path, Keeping, tolerant=True, epochs=7)
    outcome = again.run(grid(silent))
    assert silent.asked == []
    assert outcome.parameters.tolist() == [1, 1]
    assert (again.absent, again.data, again.traffic) == (first.absent, first.data, first.traffic)
    assert again.present.names == ("a", "b", "c")
    other = running(tmp_path, Keeping, tolerant=True, times=2)
    outcome = other.run(grid(silent))
    assert len(silent.asked) == len(NODES), "of another experiment, which begins anew"


def test_nodes_are_consulted_for_what_they_are_beside_their_clients(tmp_path):
    def read(name, content):
        if name == "east":
            raise ReplyError("it says nothing")
        return content.config_records["config"]["numbers"]

    algorithm, got = of(Consult({"west": 1000, "east": 1002}, lambda name: Asked("numbers", (name,)), read))
    served = running(tmp_path, algorithm)
    served.run(grid(Nodes({"west": 1.0, "east": 2.0})))
    assert got == [({"west": [1.0]}, {"east": "it says nothing"})]
    assert (served.absent, served.traffic.exchanges) == ({}, 2)


def test_what_an_algorithm_does_wrongly_is_told(tmp_path):
    class Plain(Adding):
        def phases(self, run):
            return Outcome((), "", {})

    with pytest.raises(RunError, match="Plain.phases must be a generator"):
        running(tmp_path, Plain).run(grid(Nodes()))
    algorithm, _ = of(7)
    with pytest.raises(RunError, match=r"Stepping\.phases yielded int"):
        running(tmp_path, algorithm).run(grid(Nodes()))

    class Endless(Adding):
        def phases(self, run):
            yield Opening(Asked(), Hosts.unpack)

    with pytest.raises(RunError, match="Endless.phases .*NoneType"):
        running(tmp_path, Endless).run(grid(Nodes()))
    algorithm, _ = of(Query({"what": "numbers"}, numbers))
    with pytest.raises(RunError, match=r"Stepping\.phases must .*dict"):
        running(tmp_path, algorithm).run(grid(Nodes()))


def test_a_request_that_names_a_run_keeps_the_name(tmp_path):
    algorithm, _ = of(Query(lambda names: replace(Asked("numbers", names), run="before"), numbers))
    nodes = Nodes()
    running(tmp_path, algorithm).run(grid(nodes))
    assert {config["fedgraph-run"] for _, config in nodes.asked[3:]} == {"before"}
