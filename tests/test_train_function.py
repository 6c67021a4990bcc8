"""``[train] function``: clients trained by a function of the user's, with the terms of the method, or refused."""

import json

import pytest
import torch

import fedgraph
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import FedgraphError

CODE = """
import copy

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def step(model, examples, optimiser, batch_size, penalty=None):
    for inputs, targets in DataLoader(examples, batch_size):
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        (loss if penalty is None else loss + penalty(model, len(inputs))).backward()
        optimiser.step()
        return loss.item()


def train(model, examples, local_steps, batch_size, learning_rate, penalty):
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    return sum(step(model, examples, optimiser, batch_size, penalty) for _ in range(local_steps)) / local_steps


def without_penalty(model, examples, local_steps, batch_size, learning_rate):
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(local_steps):
        step(model, examples, optimiser, batch_size)


def forgets_it(model, examples, penalty, **others):
    without_penalty(model, examples, others["local_steps"], others["batch_size"], others["learning_rate"])


def drops_it(model, examples, penalty, **others):
    penalty(model)
    without_penalty(model, examples, others["local_steps"], others["batch_size"], others["learning_rate"])


def without_examples(model, learning_rate, **others):
    return None


def trains_a_copy(model, examples, **others):
    another(model, examples, **others)


def another(model, examples, **others):
    copied = copy.deepcopy(model)
    named = ("local_steps", "batch_size", "learning_rate", "penalty")
    train(copied, examples, *(others[name] for name in named))
    return copied


def noisy(model, examples, **others):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.01)


def needs_more(model, examples, teacher):
    return None


def of_one(model):
    return None


def without_rate(model, examples, local_steps, batch_size):
    return None


def returns_text(model, examples, **others):
    return "trained"
"""

SFL = {"lambda-global": 0.1, "lambda-personal": 0.05}
METHODS = {
    "sfl": SFL,
    "sfl-star": {},
    "sfl-ft": {**SFL, "local-steps": 2},
    "sfl-per": SFL,
    "sfl-cold-start": {},
    "fedavg": {},
    "fedavg-ft": {"local-steps": 2, "learning-rate": 0.05},
    "fedprox": {"proximal-mu": 0.5},
    "fedper": {},
    "ditto": {"lambda-personal": 0.5},
    "feddyn": {"alpha": 0.1},
    "pfedgraph": {"lambda-similarity": 0.1},
    "ipa": {"turns": "simultaneous", "lambda-alignment": 0.1},
    "ipa-turns": {"moves-others": False, "lambda-alignment": 0.1},
    "local": {},
    "centralised": {},
}


@pytest.fixture
def tables(digits_tables, tmp_path, monkeypatch):
    """Minibatches are all examples of a client, so that their order is of no matter."""
    (tmp_path / "their_training.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    del digits_tables["sfl"]
    # Not a complete one: models that are all the mean are at distances of rounding errors.
    digits_tables["graph"] = {"source": "labels", "main-labels": 2}
    digits_tables["train"] = {"learning-rate": 0.2, "batch-size": 2000, "local-steps": 3}
    return digits_tables


def with_method(tables, name, own=None, function="train"):
    method = name.removesuffix("-turns")
    changed = {**tables, "experiment": {**tables["experiment"], "method": method}, method: own or {}}
    return {**changed, "train": {**tables["train"], "function": f"their_training:{function}"}}


@pytest.mark.parametrize("name", METHODS)
def test_the_loop_of_a_student_is_the_training_of_the_method(name, tables, run_experiment):
    own = with_method(tables, name, METHODS[name])
    nodes = 1 if name == "centralised" else 2
    found = run_experiment(own, nodes)
    expected = run_experiment({**own, "train": tables["train"]}, nodes)
    for ours, theirs in zip(*(load_models(folder.models)[0].values() for folder in (found, expected)), strict=True):
        for tensor, value in ours.items():
            torch.testing.assert_close(value, theirs[tensor], rtol=1e-3, atol=2e-5)
    numbers = [json.loads((folder.path / "summary.json").read_text())["metrics"] for folder in (found, expected)]
    assert numbers[0]["test"]["loss"] == pytest.approx(numbers[1]["test"]["loss"], rel=1e-3)


def test_what_it_returns_is_the_loss_or_the_model(tables, run_experiment):
    lines = [
        json.loads(line)
        for line in run_experiment(with_method(tables, "fedavg")).metrics.read_text().splitlines()
        if '"training"' in line
    ]
    assert lines[1]["metrics"]["loss"]["mean"] < lines[0]["metrics"]["loss"]["mean"] < 2.4
    in_place, other = (run_experiment(with_method(tables, "fedavg", function=name)) for name in ("train", "another"))
    assert in_place.summary()["weights_sha256"] == other.summary()["weights_sha256"]


def test_a_model_that_nobody_has_moved_is_said(tables, run_experiment, caplog):
    run_experiment(with_method(tables, "fedavg", function="trains_a_copy"))
    told = [record.getMessage() for record in caplog.records if "has not changed the model" in record.getMessage()]
    assert told[0].endswith("train the given module in place, or return the trained one")


def test_draws_depend_on_client_and_round_and_not_on_the_packing(tables, run_experiment):
    own = with_method(tables, "local", function="noisy")
    models = [load_models(run_experiment(own, nodes).models)[0] for nodes in (1, 3)]
    for name, state in models[0].items():
        for tensor, value in state.items():
            assert torch.equal(value, models[1][name][tensor])
    first, second = (models[0][name] for name in ("client-0", "client-1"))
    assert not torch.equal(*(next(iter(state.values())) for state in (first, second)))


@pytest.mark.parametrize(
    ("name", "own", "function", "message"),
    [
        ("sfl", SFL, "without_penalty", r"`penalty`, .*penalty\(model\)"),
        ("sfl", SFL, "forgets_it", "did not use `penalty`"),
        ("sfl", SFL, "drops_it", "did not use `penalty`"),
        ("scaffold", {}, "train", "ScaffoldClient: .*steps"),
        ("feddc", {}, "train", "cannot be used by FedDCClient"),
        ("ipa", {}, "train", r"set \[ipa\] moves-others = false"),
        ("fedavg", {}, "nothing_here", "has no 'nothing_here'"),
        ("fedavg", {}, "no:path", "write it as 'package.module:function'"),
        ("fedavg", {}, "CODE", "has no 'CODE'"),
        ("fedavg", {}, "needs_more", r"'teacher', .*train\(model, examples\), .*learning_rate"),
        ("fedavg", {}, "of_one", "takes no examples, its second argument"),
        ("fedavg", {}, "without_examples", "takes no examples, its second argument"),
        ("fedavg", {}, "returns_text", "returned str: .*trained module"),
    ],
)
def test_what_does_not_fit_is_refused(tables, run_experiment, name, own, function, message):
    with pytest.raises(FedgraphError, match=message):
        run_experiment(with_method(tables, name, own, function))


def test_keys_that_would_have_no_effect_are_refused(tables, run_experiment):
    own = with_method(tables, "fedavg")
    own["train"]["momentum"] = 0.9
    decayed = with_method(tables, "fedavg", function="without_rate")
    decayed["train"]["learning-rate-decay"] = 0.5
    del decayed["train"]["learning-rate"]
    with pytest.raises(FedgraphError, match="learning-rate-decay .*'learning_rate'"):
        run_experiment(decayed)
    with pytest.raises(FedgraphError, match=r"\[train\] momentum .*'momentum'"):
        run_experiment(own)


def test_a_function_of_this_process_and_a_run_that_goes_on(tables, data_dir, tmp_path):
    seen = []

    def train(model, examples, client, round, learning_rate):
        seen.append((client, round, learning_rate))
        inputs, target = examples[0]
        assert inputs.shape == (1, 8, 8)
        assert target.dtype == torch.int64
        with pytest.raises(IndexError):
            examples[len(examples)]
        for parameter in model.parameters():
            parameter.data.mul_(0.9)

    tables["train"] = {"function": train, "learning-rate": 0.2, "learning-rate-decay": 0.5}
    tables["experiment"]["method"] = "local"
    run = fedgraph.run(tables, data_dir=data_dir, out=tmp_path / "runs", progress=False)
    assert sorted(seen) == [(f"client-{i}", r, 0.2 * 0.5 ** (r - 1)) for i in range(6) for r in (1, 2)]
    assert "training" not in run.summary
    assert parse_experiment(run.experiment.as_dict()).train.function.endswith(":train")
