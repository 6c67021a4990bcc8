"""``fedgraph check`` of a data set: one that keeps the contract, and one for each promise that does not."""

import itertools

import pytest
import torch

from fedgraph.commands.checking import checks_of
from fedgraph.commands.templates.my_data_set import MyData
from fedgraph.data import InputScale
from fedgraph.graph import ClientGraph
from fedgraph.models import TaskSpec

pytestmark = pytest.mark.usefixtures("leave_no_trace")
CALLS = itertools.count()


def statuses(kind, *overrides):
    return {check.name: check.result() for check in checks_of(kind, overrides=overrides)}


def test_the_template_keeps_the_contract():
    found = statuses(MyData, "data.patients=60")
    assert {name: result.status for name, result in found.items() if result.status != "pass"} == {"graph": "skipped"}
    assert found["examples"].text == "168 train, 24 validation, 48 test"


class OfOtherSizes(MyData):
    """Clients with other numbers of examples, which pad each other's minibatches."""

    def client_names(self):
        return ["amy", "bob", "cat", "dan"]

    def task(self):
        return TaskSpec("classification", (6,), (3,), features=tuple("abcdef"), classes=("r", "g", "b"))

    def examples(self, client):
        place = self.client_names().index(client)
        draw = torch.Generator().manual_seed(100 + place)
        count = (20, 35, 12, 50)[place]
        inputs = torch.randn(count, 6, generator=draw)
        inputs[:, 5] = torch.randint(0, 4, (count,), generator=draw).float()
        weights = torch.randn(6, 3, generator=torch.Generator().manual_seed(7 + place // 2))
        return dict.fromkeys(("train", "validation", "test"), (inputs, (inputs @ weights).argmax(1)))

    def input_scale(self, client):
        return InputScale.of(torch.zeros(6), torch.ones(6))

    def target_scale(self, client):
        return 0.0, 1.0

    def given_graph(self):
        return None


def test_another_order_of_sums_on_two_nodes_breaks_no_promise():
    found = statuses(OfOtherSizes)
    assert {name: result.text for name, result in found.items() if result.status == "fail"} == {}


class TwoOfAName(MyData):
    """Clients that nobody can tell apart."""

    def client_names(self):
        return ["east", "east"]


class OtherEachTime(MyData):
    """Examples that are drawn anew."""

    def examples(self, client):
        inputs, targets = super().examples(client)["train"]
        return {"train": (inputs + next(CALLS), targets)}


class InARow(MyData):
    """Examples that depend on which clients were loaded before."""

    def examples(self, client):
        self.loaded = getattr(self, "loaded", 0) + (client == "east")
        inputs, targets = super().examples(client)["train"]
        return {"train": (inputs + self.loaded, targets)}

    def input_scale(self, client):
        return InputScale.of(torch.zeros(3), torch.ones(3))

    def target_scale(self, client):
        return 0.0, 1.0


class NotANumber(MyData):
    """A feature that is missing, and no fill."""

    def input_scale(self, client):
        return InputScale(torch.zeros(3), torch.ones(3), torch.full((3,), torch.nan))

    def examples(self, client):
        inputs, targets = super().examples(client)["train"]
        inputs[0, 0] = torch.nan
        return {"train": (inputs, targets)}


class AnyClient(MyData):
    """A client of any name."""

    def load(self, names):
        data = super().load([name if name in self.client_names() else "east" for name in names])
        return data


class HalfAGraph(MyData):
    """A graph that lacks clients."""

    def given_graph(self):
        return ClientGraph.from_edges([("east", "north")])


class WrongNames(MyData):
    """Fewer names of features than features."""

    def task(self):
        from dataclasses import replace

        return replace(super().task(), features=("age",))


@pytest.mark.parametrize(
    ("kind", "check", "message"),
    [
        (TwoOfAName, "names", "has a name twice"),
        (OtherEachTime, "repeats", "examples are others than before when it was loaded again"),
        (InARow, "clients-alone", "examples are others than before when west were loaded alone"),
        (NotANumber, "examples", "inputs are NaN or infinite; input_scale says what"),
        (AnyClient, "stranger", "load returned data of an unknown client"),
        (HalfAGraph, "graph", "given_graph has no south, west"),
        (WrongNames, "task", "there are 1 names of features, and an input has"),
    ],
)
def test_a_promise_that_is_not_kept_is_named(kind, check, message):
    found = statuses(kind)
    assert found[check].status == "fail"
    assert message in found[check].text


class ConstantAndUnknown(MyData):
    """A feature that never changes, and one without a value; scaled as in the template."""

    def examples(self, client):
        inputs, targets = super().examples(client)["train"]
        inputs[:, 0], inputs[:, 1] = 0.1, torch.nan
        return {"train": (inputs, targets)}


def test_constant_and_unknown_features_are_scaled_to_numbers():
    found = statuses(ConstantAndUnknown, "data.patients=60")
    assert {name for name, result in found.items() if result.status != "pass"} == {"graph"}
    scale = InputScale.of(torch.tensor([0.1, torch.nan]), torch.tensor([0.0, torch.nan]))
    assert scale.inputs(torch.tensor([[0.1, torch.nan]])).tolist() == [[0.0, 0.0]]
