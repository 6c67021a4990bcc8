"""Every built-in method keeps the contract; classes that break it are caught, each by the check that is meant to."""

from unittest import SkipTest

import pytest
import tomli_w

from fedgraph.commands.checking import CONTRACT, check_strategy, checks_of
from fedgraph.experiment import built_ins
from fedgraph.support.errors import ContractError, ExperimentError

# Variants of others, and what takes longer.
SLOW = {"vfl", "sfl-lg", "lg-fedavg", "fedavg-ft", "feddc", "sfl-ft"}
# Of each kind of method one; the others are tried where there is more time.
FIRST = {"sfl", "sfl-star", "fedavg", "scaffold", "ipa", "f3", "f3-forecast"}
NEEDS_MORE = {
    "fedngm": "tables of clients, with which it is checked below",
    "f3-inference": "a run of f3",
    "f3-secret": "a run of f3, and nodes that aggregate shares",
    "f3-forecast-inference": "a run of f3-forecast",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW) + [pytest.mark.process] * (name not in FIRST))
        for name in built_ins()
        if name not in NEEDS_MORE
    ],
)
def test_a_built_in_method_keeps_the_contract(name):
    results = {result.name: result.status for result in check_strategy(name)}
    pooled = name == "centralised"
    assert results["number-of-nodes"] == ("expected" if pooled else "pass")
    assert {check for check, status in results.items() if status == "skipped"} == (
        {"reply-order", "absent-client", "all-absent", "malformed-replies"} if pooled else set()
    )


@pytest.mark.slow
def test_fedngm_keeps_the_contract(table_tables, tmp_path):
    table_tables["fedngm"]["ngm"]["epochs"] = 20
    (tmp_path / "tables.toml").write_text(tomli_w.dumps(table_tables))
    results = check_strategy("fedngm", tmp_path / "tables.toml")
    assert {result.status for result in results} == {"pass"}


@pytest.mark.parametrize("name", NEEDS_MORE)
def test_what_needs_data_of_its_own_says_so(name):
    with pytest.raises(ExperimentError, match=f"'{name}' needs data, or an earlier run, of its own.*--experiment"):
        checks_of(name)


@pytest.mark.process
@pytest.mark.xdist_group("flower")
def test_on_ray():
    (check,) = (check for check in checks_of("sfl", ray=True) if check.name == "ray")
    assert check.result().status == "pass"


HEAD = '''
import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from fedgraph.algorithms import Algorithm, matrix
from fedgraph.algorithms.phases import Opening, Outcome, PhasedAlgorithm
from fedgraph.clients.engine.base import CohortClient
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.messages import Request, from_record, to_record
from fedgraph.support.errors import ReplyError
from fedgraph.support.settings import Configured, Settings


class Mean(Algorithm):
    """FedAvg, as it should be."""

    def aggregate(self, clients, state, answers):
        return answers.parameters.mean(0).expand_as(answers.parameters)
'''

# Sums of the clients' examples, in one exchange.
ROWS = """
class Told:
    data, alike = "rows", ()

    def __init__(self, content):
        config = content.config_records["config"]
        self.clients, self.partition = tuple(config["clients"]), tuple(config["partition"])
        self.rows = from_record(content.array_records["rows"])["rows"]
        if self.rows.shape[-1] != 64:
            raise ReplyError("rows of 64 numbers are expected")


class Sums(PhasedAlgorithm):
    default_client = "broken:Rows"

    def phases(self, run):
        total, names = torch.zeros(64), []
        for one in self.ordered((yield Opening(Request(), Told)).values()):
            total = total + one.rows.sum(0)
            names += one.clients
        metrics = {"test/loss": torch.zeros(len(names), dtype=torch.float64)}
        return Outcome(tuple(sorted(names)), "sums", metrics, total)

    def ordered(self, told):
        return sorted(told, key=lambda one: one.clients)


class Rows(Configured):
    @classmethod
    def handle(cls, message, node):
        config = message.content.config_records["config"]
        assignment = Assignment.of(Request.read_header(config)["experiment"])
        clients = node.hosted(assignment)
        rows = node.cohort(Request.read_header(config)["experiment"], clients).data.splits["train"]
        rows = rows.batch(torch.zeros(len(clients), 1, dtype=torch.long)).inputs.flatten(1)
        rows = (rows + 0.1).log() / 3
        told = {"clients": list(clients), "partition": list(node.partition())}
        return RecordDict({"config": ConfigRecord(told), "rows": to_record({"rows": rows})})
"""

BROKEN = {
    "a strategy that draws from a global generator": ("same-seed", "fedgraph.support.randomness", '''
class Broken(Mean):
    def aggregate(self, clients, state, answers):
        return super().aggregate(clients, state, answers) + 0.01 * torch.randn(clients.layout.num_parameters)
'''),
    "a strategy that draws with NumPy": ("same-seed", "global generators", '''
class Broken(Mean):
    def aggregate(self, clients, state, answers):
        return super().aggregate(clients, state, answers) * float(np.random.uniform(0.9, 1))
'''),
    "a strategy that forgets what it remembers": ("resume", "in the state that round returns", '''
class Broken(Mean):
    velocity = 0.0

    def aggregate(self, clients, state, answers):
        mean = super().aggregate(clients, state, answers)
        self.velocity = 0.5 * self.velocity + (mean[0] - state["models"][0])
        return matrix(state["models"], answers.positions) + self.velocity
'''),
    "a strategy whose state cannot be loaded": ("resume", "could not go on|KeyError", '''
class Broken(Mean):
    def loaded(self, clients, state):
        return {"models": state["models"], "velocity": state["velocity"]}
'''),
    "a strategy that divides by zero": ("finishes", "NaN or infinite", '''
class Broken(Mean):
    def aggregate(self, clients, state, answers):
        differences = answers.parameters - answers.parameters
        return super().aggregate(clients, state, answers) + differences / differences
'''),
    "a strategy that raises": ("finishes", "crashed with ValueError: no such thing", '''
class Broken(Mean):
    def aggregate(self, clients, state, answers):
        raise ValueError("no such thing")
'''),
    "a strategy that counts on everybody": ("absent-client", "crashed with RuntimeError", '''
class Broken(Mean):
    def aggregate(self, clients, state, answers):
        weights = clients.num_examples.float()
        return (weights[:, None] * answers.parameters / weights.sum()).sum(0).expand_as(answers.parameters)
'''),
    "a strategy that lets NaN through": ("malformed-replies", "a NaN", ROWS + '''
class Broken(Sums):
    def ordered(self, told):
        for one in told:
            one.rows = one.rows.nan_to_num()
        return super().ordered(told)
'''),
    "a strategy that takes any key": ("settings", "takes the unknown key", '''
class Any(Settings):
    model_config = {"extra": "ignore"}


class Broken(Mean):
    settings_type = Any
'''),
    "a strategy that does not say what a key is": ("settings", "does not say what rate is", '''
class Silent(Settings):
    """A table."""

    rate: float = 1.0


class Broken(Mean):
    settings_type = Silent
'''),
    "a strategy that sums in the order of arrival": ("reply-order", "sort by the names", ROWS + '''
class Broken(Sums):
    def ordered(self, told):
        return told
'''),
    "a client class that looks at its neighbours on the node": ("number-of-nodes", "which others share its node", '''
class Broken(CohortClient):
    def start(self):
        return self.models - 0.1 * self.models.mean(0) * len(self.models)
'''),
    "a client class that remembers in its class": ("node-restart", "state folder", '''
class Broken(CohortClient):
    trained = {}

    def start(self):
        for name in self.request.clients:
            self.trained[name] = self.trained.get(name, 0) + 1
        return self.models * (1 + 0.01 * self.trained[self.request.clients[0]])
'''),
    "a client class that does not remember by round": ("resume", "the last round is run", '''
class Broken(CohortClient):
    def start(self):
        counted = self.node.state_dir / f"{self.request.clients[0]}.txt"
        counted.parent.mkdir(parents=True, exist_ok=True)
        times = int(counted.read_text()) + 1 if counted.exists() else 1
        counted.write_text(str(times))
        return self.models * (1 + 0.01 * times)
'''),
    "a client class that sends too little": ("finishes", "no usable reply from 3 clients", '''
class Broken(CohortClient):
    def train(self):
        super().train()
        return {}, {}
'''),
    "a client class with a key that nobody sends": ("settings", "nodes never receive them", '''
class Own(Settings):
    """rate : of something."""

    rate: float = 1.0


class Broken(CohortClient[Own]):
    pass
'''),
}  # fmt: skip


@pytest.fixture
def module(tmp_path, monkeypatch):
    """``module(text)``: a module ``broken`` with this text, to be imported by its name."""
    import sys

    monkeypatch.syspath_prepend(tmp_path)
    yield lambda text: (tmp_path / "broken.py").write_text(HEAD + text)
    sys.modules.pop("broken", None)


def test_a_method_that_takes_no_absence_may_stop_at_a_malformed_reply(module):
    module("""
from fedgraph.support.errors import RunError


class Broken(Mean):
    expected_failures = {"absent-client": "every client counts"}

    def aggregate(self, clients, state, answers):
        if len(answers.names) < len(clients):
            raise RunError("every client counts")
        return super().aggregate(clients, state, answers)
""")
    results = {result.name: result for result in check_strategy("broken:Broken")}
    assert results["absent-client"].status == "expected"
    assert results["malformed-replies"].status == "pass"
    assert "a NaN: 'every client counts'" in results["malformed-replies"].text


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_class_is_caught_by_the_right_check(what, module):
    name, message, text = BROKEN[what]
    module(text)
    checks = {check.name: check for check in checks_of("broken:Broken")}
    result = checks[name].result()
    assert result.status == "fail", result
    with pytest.raises(ContractError, match=message):
        checks[name]()
    # What is checked before, and does not have to do with it, is fine; where nobody is heard, nothing can be stopped.
    before = list(CONTRACT)[: list(CONTRACT).index(name)]
    found = {check: checks[check].result().status for check in before if check in checks and check != "finishes"}
    if name == "all-absent":
        assert found.pop("resume") == "skipped"
    assert found == dict.fromkeys(found, "pass")


def test_nothing_is_compared_where_two_runs_with_the_same_seed_differ(module):
    module(BROKEN["a strategy that draws from a global generator"][2])
    results = {check.name: check.result() for check in checks_of("broken:Broken")}
    assert [name for name, result in results.items() if result.status == "fail"] == ["same-seed"]
    assert "see 'same-seed'" in results["resume"].text


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("answers.parameters.mean(0)", r"Broken.aggregate, in round 1, returned \[\d+\] in place of \[3, \d+\]"),
        ("None", r"Broken.aggregate, in round 1, returned None in place of a float tensor \[3, \d+\]"),
        ("answers.parameters.numpy()", r"returned a numpy.ndarray in place of a float tensor \[3, \d+\]"),
        ("answers.parameters.double()", r"returned a tensor of torch.float64 in place of a float tensor"),
        ("answers.parameters / 0 * 0", r"Broken.round, in round 1, returned NaN or infinite values for 'client-0'"),
    ],
)
def test_what_a_strategy_makes_wrongly_is_put_down_to_it(module, made, message):
    module(f"""
class Broken(Mean):
    def aggregate(self, clients, state, answers):
        return {made}
""")
    finishes = next(check for check in checks_of("broken:Broken") if check.name == "finishes")
    with pytest.raises(ContractError, match=message):
        finishes()


def test_a_failure_that_is_expected_is_none_and_one_that_does_not_come_is_told(module):
    text = BROKEN["a strategy that draws from a global generator"][2]
    declared = '    expected_failures = {"same-seed": "noise"%s}\n'
    module(text + declared % "")
    (check,) = (check for check in checks_of("broken:Broken") if check.name == "same-seed")
    assert (check.result().status, check.result().text) == ("expected", "noise")
    with pytest.raises(SkipTest, match="noise"):
        check()


def test_an_expected_failure_that_passes_fails(module):
    module('class Broken(Mean):\n    expected_failures = {"settings": "it has none"}\n')
    check = checks_of("broken:Broken")[0]
    assert check.result().status == "fail"
    with pytest.raises(ContractError, match="but it passes: take 'settings' out"):
        check()


def test_an_expected_failure_of_no_check_is_refused(module):
    module('class Broken(Mean):\n    expected_failures = {"same-sead": "noise"}\n')
    with pytest.raises(ExperimentError, match="expected_failures of 'same-sead'; checks are settings, finishes"):
        checks_of("broken:Broken")


def test_a_failure_names_class_check_and_what_to_do(module):
    module(BROKEN["a strategy that divides by zero"][2])
    with pytest.raises(
        ContractError, match=r"(?s)broken:Broken does not keep the contract:\nfinishes \(a run.*learning"
    ) as raised:
        check_strategy("broken:Broken")
    assert "same-seed" not in str(raised.value), "it has nothing to be compared with"


def test_what_is_no_strategy_is_refused(module):
    module("class Broken:\n    pass\n\n\nnumber = 1\n")
    with pytest.raises(ExperimentError, match="neither a strategy .* nor a client class"):
        checks_of("broken:Broken")
    with pytest.raises(ExperimentError, match="'broken:number' is not a class"):
        checks_of("broken:number")
    with pytest.raises(ExperimentError, match="'slf' is no built-in method .*sfl"):
        checks_of("slf")


def test_a_client_class_runs_with_the_method_whose_clients_it_extends(module):
    module("from fedgraph.clients.scaffold import ScaffoldClient\n\n\nclass Broken(ScaffoldClient):\n    pass\n")
    checks = checks_of("broken:Broken", overrides=["data.clients=2"])
    trials = checks[0].target
    assert (trials.experiment.method.name, trials.experiment.data.clients) == ("scaffold", 2)
    assert not {"reply-order", "malformed-replies", "ray"} & {check.name for check in checks}


def test_the_class_itself_is_taken_too():
    from fedgraph.algorithms.bounds import LocalOnly

    assert checks_of(LocalOnly)[0].target.path == "fedgraph.algorithms.bounds:LocalOnly"
