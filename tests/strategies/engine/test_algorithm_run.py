"""An algorithm in a run, with nodes that answer whatever a test says."""

import json

import pytest
import torch

from fedgraph.algorithms import Algorithm, Ask, written
from fedgraph.federation import Federation
from fedgraph.models import Layout, TaskSpec
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.algorithm_run import AlgorithmRun
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import RunError
from fedgraph.support.settings import Settings

NAMES = ("a", "b", "c")
INITIAL = {"w": torch.zeros(2)}


class Answering:
    """Nodes whose clients answer the number of the exchange; those named in ``away[number]`` are absent in it."""

    def __init__(self, away):
        self.away, self.asked = away, []

    def ask(self, number, stacked, shared, splits, shapes, further, predictions, types, only, means):
        self.asked.append((sorted(stacked), splits, shapes))
        away = self.away.get(len(self.asked), "")
        positions = torch.tensor([place for place, name in enumerate(NAMES) if name not in away])
        value = float(len(self.asked))
        tensors = {name: torch.full((len(positions), *shape), value) for name, shape in (shapes or {}).items()}
        metrics = {"loss": torch.full((len(positions),), value, dtype=torch.float64)}
        return Replies.of(self.federation, positions, tensors, metrics, dict.fromkeys(away, "gone"))


class TwoOfThree(Algorithm):
    """Clients train, tell something, and train again."""

    def init(self, clients, models):
        return {"models": models, "told": torch.zeros(len(clients))}

    def round(self, clients, state, number):
        first = yield self.ask(clients, state)
        told = yield Ask({}, {}, {"told": (1,)})
        heard = torch.zeros(len(clients)).index_copy(0, told.positions, told.tensors["told"][:, 0])
        models = written(state["models"], first.positions, first.parameters)
        second = yield self.ask(clients, {**state, "models": models})
        return {"models": written(models, second.positions, second.parameters), "told": heard}


def made(kind=TwoOfThree, **plan):
    counts = torch.ones(3, dtype=torch.int64)
    task = TaskSpec("regression", (2,), (1,))
    federation = Federation(NAMES, {7: torch.arange(3)}, task, "x", dict.fromkeys(("train", "test"), counts))
    plan = RunPlan(**{"layout": Layout.of(INITIAL), "client": "c", "experiment": "{}", "run": "run",
                      "splits": ("test",), **plan})  # fmt: skip
    return AlgorithmRun(kind(Settings()), federation, plan, INITIAL)


@pytest.mark.parametrize(
    ("data", "own"),
    [({}, ("test",)), ({"test": "shared"}, ()), ({"test": "shared", "scaling": "none"}, ()),
     ({"test": "shared", "scaling": "client"}, ("test",))],
)  # fmt: skip
def test_shared_rows_that_clients_scale_by_their_own_count_as_their_own(data, own):
    assert made(experiment=json.dumps({"data": data})).clients.facts.own_splits == own


def one_round(run, away):
    nodes = Answering(away)
    nodes.federation = run.federation
    return nodes, list(run.round(1, nodes))


def test_models_are_measured_in_the_first_exchange_in_which_clients_train():
    nodes, reports = one_round(made(), {})
    models, told = {"parameters": (2,)}, {"told": (1,)}
    assert nodes.asked == [(["parameters"], ("test",), models), ([], (), told), (["parameters"], (), models)]
    assert [report.metrics["loss"].tolist() for report in reports] == [[1.0] * 3, [3.0] * 3]
    assert [dict(report.tensors) for report in reports] == [{}, {}], "what is reported keeps no models"


def test_earlier_models_stand_in_for_those_that_are_missing_and_nothing_else_does():
    run = made(on_missing="keep-last")
    one_round(run, {2: "b", 3: "b"})
    assert run.models[:, 0].tolist() == [3.0, 1.0, 3.0]
    assert run.state["told"].tolist() == [2.0, 0.0, 2.0]


@pytest.mark.parametrize("exchange", [1, 2, 3])
def test_every_exchange_wants_all_clients_unless_they_may_be_absent(exchange):
    with pytest.raises(RunError, match="1: no usable"):
        one_round(made(), {exchange: "b"})
    run = made(on_missing="skip", min_clients=2)
    one_round(run, {exchange: "b"})
    with pytest.raises(RunError, match="only 1 of at least 2 clients"):
        one_round(run, {exchange: "bc"})


def test_a_round_that_fails_leaves_the_state_as_it_was():
    run = made()
    with pytest.raises(RunError):
        one_round(run, {3: "b"})
    assert torch.equal(run.models, torch.zeros(3, 2))


class OfTheEngine(TwoOfThree):
    def init(self, clients, models):
        return {"models": models, "progress": 0.0}


def test_names_of_the_engine_are_taken():
    with pytest.raises(RunError, match="OfTheEngine.init .*'progress'"):
        made(OfTheEngine)


class Other(Algorithm):
    def aggregate(self, clients, state, answers):
        return answers.parameters


def test_the_state_of_another_algorithm_is_not_loaded():
    saved = made().saved()
    run = made()
    run.load(saved)
    with pytest.raises(KeyError, match="instead of"):
        made(Other).load(saved)


class ByPosition(TwoOfThree):
    def init(self, clients, models):
        return {"models": models, "told": {0: 1.0}}


class WithTuple(TwoOfThree):
    def round(self, clients, state, number):
        return {**(yield from super().round(clients, state, number)), "told": (1, 2)}


def test_a_state_that_would_not_be_the_same_in_a_resumed_run_is_refused_in_the_first_round():
    with pytest.raises(RunError, match=r'ByPosition\.init .*state\["told"\] .*key 0'):
        made(ByPosition)
    with pytest.raises(RunError, match=r'WithTuple\.round, .*state\["told"\] .*tuple'):
        one_round(made(WithTuple), {})


class OfThosePresent(TwoOfThree):
    def round(self, clients, state, number):
        answers = yield self.ask(clients, state)
        return {**state, "models": answers.parameters}


def test_rows_of_those_present_alone_are_refused_with_what_has_all():
    words = (
        r'OfThosePresent.round, in round 1, returned models \[2, 2\] in place of \[3, 2\].*written\(state\["models"\]'
    )
    with pytest.raises(RunError, match=words):
        one_round(made(OfThosePresent, on_missing="skip"), {1: "b"})
