"""A few hundred mutated replies and requests, and all examples that ever failed; more by ``python -m disturbances``."""

import json
import random
from pathlib import Path

import pytest
import torch
from disturbances.mutations import MUTATIONS, mutated
from disturbances.replay import DELIVERIES, Case, Method
from disturbances.requests import OWN, node_of, recorded_requests, try_request
from disturbances.results import Judgement, judge, workplace
from safetensors.torch import save_file

HERE = Path(__file__).parent
REPLIES = json.loads((HERE / "replies.json").read_text())
REQUESTS = json.loads((HERE / "requests.json").read_text())
METHODS = ("sfl", "fedavg", "ipa", "f3", "vfl", "cnfgnn", "f3-forecast", "fedngm")
A_FEW = {"fedngm": 4}
FIRST = ("sfl", "fedavg", "f3")


def by_method(names):
    """Parameters of a test: the first methods in every run of the tests, the others where there is more time."""
    return [pytest.param(name, marks=[pytest.mark.process] * (name not in FIRST)) for name in names]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """``recorded(name)``: an experiment and the replies of its clients, recorded once."""
    known = {}
    with workplace() as folder:

        def of(name):
            if name not in known:
                known[name] = Method.recorded(name, folder / name)
            return known[name]

        yield of


def failures(method, cases):
    """What went wrong with each mutated reply: the run ended, or something in its results is not finite."""
    judged = {(case.reply, case.mutation, case.seed): method.try_case(case) for case in cases}
    return {case: found for case, found in judged.items() if found.failed}


@pytest.mark.parametrize("name", by_method(METHODS))
def test_one_bad_reply_neither_ends_a_run_nor_reaches_its_results(recorded, name):
    method, chance = recorded(name), random.Random(name)
    names = [*MUTATIONS, *DELIVERIES]
    chance.shuffle(names)
    cases = [
        Case(name, chance.randrange(method.replies), mutation, chance.randrange(10**6))
        for mutation in names[: A_FEW.get(name, 12)]
    ]
    assert failures(method, cases) == {}


@pytest.mark.parametrize("name", by_method(METHODS))
def test_one_bad_node_keeps_nobody_from_starting(recorded, name):
    method, chance = recorded(name), random.Random(f"opening {name}")
    cases = [
        Case(name, chance.randrange(method.opening), chance.choice([*MUTATIONS, *DELIVERIES]), chance.randrange(10**6))
        for _ in range(A_FEW.get(name, 10) // 2)
    ]
    assert failures(method, cases) == {}


@pytest.mark.parametrize("name", by_method(sorted({case["method"] for case in REPLIES})))
def test_replies_that_once_did(recorded, name):
    assert failures(recorded(name), [Case(**case) for case in REPLIES if case["method"] == name]) == {}


def answers(method, cases):
    requests = recorded_requests(method)
    grid = node_of(method)
    found = {(case.reply, case.mutation, case.seed): try_request(grid, requests, case).failed for case in cases}
    return {case: failed for case, failed in found.items() if failed}


@pytest.mark.parametrize("name", by_method(METHODS))
def test_a_node_answers_a_malformed_request_in_time_and_in_foreseen_words(recorded, name):
    chance = random.Random(f"requests {name}")
    count = len(recorded_requests(recorded(name)))
    mutations = [*MUTATIONS, *OWN, *OWN, *OWN]
    cases = [
        Case(name, chance.randrange(count), mutation, chance.randrange(10**6))
        for mutation in chance.sample(mutations, A_FEW.get(name, 15))
    ]
    assert answers(recorded(name), cases) == {}


@pytest.mark.parametrize("name", by_method(sorted({case["method"] for case in REQUESTS})))
def test_requests_that_a_node_once_did_not(recorded, name):
    assert answers(recorded(name), [Case(**case) for case in REQUESTS if case["method"] == name]) == {}


def test_the_undisturbed_runs_are_judged_well_and_a_bad_result_is_seen(recorded):
    folder = recorded("sfl").run()
    assert judge(folder) == Judgement()
    save_file({"x": torch.tensor([1.0, torch.inf])}, folder / "more.safetensors")
    assert judge(folder).broken == "more.safetensors: x"
    save_file({"x": torch.tensor([1.0, 1e9])}, folder / "more.safetensors")
    assert judge(folder).absurd == 1e9


def test_mutations_are_the_same_for_the_same_seed(recorded):
    content = next(iter(recorded("sfl").grid.known.values()))
    for name in MUTATIONS:
        first, second = (mutated(content, name, 5) for _ in range(2))
        assert repr(first) == repr(second)
    changed = sum(repr(mutated(content, name, 5)) not in ("None", repr(content)) for name in MUTATIONS)
    assert changed > len(MUTATIONS) // 2
