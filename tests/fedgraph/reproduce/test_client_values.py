import json

import pytest

from fedgraph.reproduce.client_values import at_the_end, averaged, by_round, value_of
from fedgraph.reproduce.quantity import Quantity

ACCURACY, LOSS = Quantity.of("test/accuracy"), Quantity.of("test/loss:fairness")


@pytest.fixture
def run(tmp_path):
    def line(number, loss, phase="evaluation", split="test", **more):
        values = {"loss": loss} if loss else {"accuracy": {"a": 1.0}}
        return {"round": number, "phase": phase, "split": split, "per_client": values, **more}

    lines = [
        line(0, {"a": 9.0, "b": 9.0}),
        line(1, {"a": 5.0, "b": 5.0}, phase="training", split="train"),
        line(1, {"a": 1.0, "b": None}),
        line(1, {"a": 7.0, "b": 7.0}, split="validation"),
        line(2, None),
        line(3, {"a": 2.0, "b": 4.0}),
        line(3, {"a": 0.0, "b": 0.0}, restored=True),
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return tmp_path


def test_at_the_end():
    summary = {"per_client": {"test": {"loss": {"a": 1.0, "b": None}}}}
    assert at_the_end(summary, LOSS) == {"a": 1.0, "b": None}
    assert at_the_end(summary, ACCURACY) == at_the_end({}, LOSS) == {}


def test_a_learned_graph_beside_groups():
    assert value_of({"graph": {"precision": 0.9, "recall": None}}, Quantity.of("graph/precision")) == 0.9
    assert value_of({"graph": {"precision": 0.9, "recall": None}}, Quantity.of("graph/recall")) is None
    assert value_of({}, Quantity.of("graph/weight")) is None


def test_what_a_run_took():
    summary = {"rounds": 7, "bytes_down": 30, "bytes_up": 12, "training": {"minibatches": 140, "passes": 2.5}}
    took = {
        what: value_of(summary, Quantity.of(f"run/{what}")) for what in ("rounds", "minibatches", "passes", "bytes")
    }
    assert took == {"rounds": 7.0, "minibatches": 140.0, "passes": 2.5, "bytes": 42.0}
    assert value_of(summary, Quantity.of("run/bytes-per-client")) is None, "a run of an earlier version"
    summary |= {"bytes_down_per_client": 20.0, "bytes_up_per_client": 12.5, "models_per_round": 6.0}
    assert value_of(summary, Quantity.of("run/bytes-per-client")) == 32.5
    assert value_of(summary, Quantity.of("run/models-per-round")) == 6
    assert value_of(summary, Quantity.of("run/training-bytes-per-owner")) is None, "a method without owners"
    summary |= {"exchanges": 175, "training_bytes_per_owner": 4230, "core_seconds": 1.5}
    assert value_of(summary, Quantity.of("run/exchanges")) == 175
    assert value_of(summary, Quantity.of("run/core-seconds")) == 1.5
    assert value_of(summary, Quantity.of("run/training-bytes-per-owner")) == 4230
    del summary["training"]
    assert value_of(summary, Quantity.of("run/passes")) is None, "a run of an earlier version"


def test_by_round_without_restored_models(run):
    assert by_round(run, LOSS) == {0: {"a": 9.0, "b": 9.0}, 1: {"a": 1.0, "b": None}, 3: {"a": 2.0, "b": 4.0}}
    assert by_round(run, ACCURACY) == {2: {"a": 1.0}}


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ((0, 3), {"a": 4.0, "b": 6.5}),
        ((1, 3), {"a": 1.5, "b": 4.0}),
        ((1, 1), {"a": 1.0}),
        ((3, 9), {"a": 2.0, "b": 4.0}),
        ((4, 9), {}),
    ],
)
def test_means_over_rounds_from_first_to_last(run, rounds, expected):
    assert averaged(run, LOSS, rounds) == expected
