"""What metrics of tables name, taken apart and put together again, and what they read from runs."""

import json

import pytest

from fedgraph.reproduce.quantity import Quantity, over_rounds


def test_quantities():
    assert Quantity.of("test/mae-60min") == ("test", "mae-60min", "mean", None, None)
    assert Quantity.of("validation/accuracy:worst5@cold") == ("validation", "accuracy", "worst5", "cold", None)
    assert (Quantity.of("test/accuracy").better, Quantity.of("test/accuracy:rounds").better) == ("higher", "lower")
    taken = [Quantity.of(f"test/loss:{what}") for what in ("rounds", "first-bytes", "seconds")]
    assert [each.better for each in taken] == ["lower"] * 3
    assert [each.is_count for each in taken] == [True, False, False]
    assert not Quantity.of("test/loss:bytes").has_course
    assert (Quantity.of("test/loss").better, Quantity.of("test/loss:fairness").better) == ("lower", "higher")
    with pytest.raises(ValueError, match="fairness is known for all clients, not for a group"):
        Quantity.of("test/accuracy:fairness@cold")
    with pytest.raises(ValueError, match="known for all clients, not for a group"):
        Quantity.of("test/accuracy:first-rounds@cold")
    assert Quantity.of("peers/both-right") == ("peers", "both-right", "mean", None, None)
    assert (Quantity.of("peers/hamming").better, Quantity.of("test/accuracy:std").better) == (None, None)
    with pytest.raises(ValueError, match="or 'peers/' and one of l1, l2, hamming, both-right, both-wrong; or 'graph/'"):
        Quantity.of("peers/examples")
    assert Quantity.of("graph/precision") == ("graph", "precision", "mean", None, None)
    recall = Quantity.of("graph/recall")
    assert (recall.better, recall.has_course, recall.is_count) == ("higher", False, False)
    assert Quantity.of("run/passes") == ("run", "passes", "mean", None, None)
    assert (Quantity.of("run/exchanges").is_count, Quantity.of("run/exchanges").better) == (True, None)
    for text in (
        "run/seconds",
        "graph/edges",
        "run/rounds:std",
        "mae",
        "tests/mae",
        "peers/accuracy",
        "peers/l1:std",
        "peers/l1@cold",
        "test/l1",
        "test/mae:median",
        "test/mae@",
        "test/wrong",
        "test/mae:std:std",
    ):
        with pytest.raises(ValueError, match=text.partition("/")[0]):
            Quantity.of(text)


def test_one_client_and_one_of_several_models():
    weight = Quantity.of("public/weight-mae")
    assert weight.at(None, "") == weight
    assert weight.at("north", "-local") == ("public", "weight-mae-local", "mean", None, "north")
    assert weight.at("north", "-local").better == "lower"
    assert Quantity.of("test/accuracy:worst5@cold").at(None, "-local").metric == "accuracy-local"
    for text in ("test/accuracy:worst5", "test/accuracy@cold", "test/accuracy:rounds", "peers/l1"):
        with pytest.raises(ValueError, match=f"'{text}' is defined over several clients, not for client 'north' alone"):
            Quantity.of(text).at("north", "")
    assert Quantity.of("run/bytes").at("north", "-local") == Quantity.of("run/bytes"), "of the whole run"
    with pytest.raises(ValueError, match="'peers/l1' has no suffix '-local'"):
        Quantity.of("peers/l1").at(None, "-local")


def test_they_are_said_as_they_are_written():
    for text in ("test/mae-60min", "validation/accuracy:worst5@cold", "test/accuracy:rounds", "peers/l1", "run/bytes"):
        assert str(Quantity.of(text)) == text
    assert str(Quantity.of("test/mae").at("north", "-local")) == "test/mae-local of north"


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
    assert LOSS.by_client(summary) == {"a": 1.0, "b": None}
    assert ACCURACY.by_client(summary) == LOSS.by_client({}) == {}


def test_a_learned_graph_beside_groups():
    assert Quantity.of("graph/precision").value({"graph": {"precision": 0.9, "recall": None}}) == 0.9
    assert Quantity.of("graph/recall").value({"graph": {"precision": 0.9, "recall": None}}) is None
    assert Quantity.of("graph/weight").value({}) is None


def test_what_a_run_took():
    summary = {"rounds": 7, "bytes_down": 30, "bytes_up": 12, "training": {"minibatches": 140, "passes": 2.5}}
    took = {what: Quantity.of(f"run/{what}").value(summary) for what in ("rounds", "minibatches", "passes", "bytes")}
    assert took == {"rounds": 7.0, "minibatches": 140.0, "passes": 2.5, "bytes": 42.0}
    assert Quantity.of("run/bytes-per-client").value(summary) is None, "a run of an earlier version"
    summary |= {"bytes_down_per_client": 20.0, "bytes_up_per_client": 12.5, "models_per_round": 6.0}
    assert Quantity.of("run/bytes-per-client").value(summary) == 32.5
    assert Quantity.of("run/models-per-round").value(summary) == 6
    assert Quantity.of("run/training-bytes-per-owner").value(summary) is None, "a method without owners"
    summary |= {"exchanges": 175, "training_bytes_per_owner": 4230, "core_seconds": 1.5}
    assert Quantity.of("run/exchanges").value(summary) == 175
    assert Quantity.of("run/core-seconds").value(summary) == 1.5
    assert Quantity.of("run/training-bytes-per-owner").value(summary) == 4230
    del summary["training"]
    assert Quantity.of("run/passes").value(summary) is None, "a run of an earlier version"


def test_by_round_without_restored_models(run):
    assert LOSS.by_round(run) == {0: {"a": 9.0, "b": 9.0}, 1: {"a": 1.0, "b": None}, 3: {"a": 2.0, "b": 4.0}}
    assert ACCURACY.by_round(run) == {2: {"a": 1.0}}


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
    assert over_rounds(run, LOSS, rounds) == expected
