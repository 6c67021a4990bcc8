"""What metrics of tables read, taken apart and put together again."""

import pytest

from fedgraph.reproduce.quantity import Quantity


def test_quantities():
    assert Quantity.of("test/mae-60min") == ("test", "mae-60min", "mean", None, None)
    assert Quantity.of("validation/accuracy:worst5@cold") == ("validation", "accuracy", "worst5", "cold", None)
    assert (Quantity.of("test/accuracy").better, Quantity.of("test/accuracy:rounds").better) == ("higher", "lower")
    taken = [Quantity.of(f"test/loss:{what}") for what in ("rounds", "first-bytes", "seconds")]
    assert [each.better for each in taken] == ["lower"] * 3
    assert [each.is_count for each in taken] == [True, False, False]
    assert not Quantity.of("test/loss:bytes").has_course
    assert (Quantity.of("test/loss").better, Quantity.of("test/loss:fairness").better) == ("lower", "higher")
    with pytest.raises(ValueError, match="fairness is that of all clients, not of a group"):
        Quantity.of("test/accuracy:fairness@cold")
    with pytest.raises(ValueError, match="counted for all clients, not for a group"):
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
        with pytest.raises(ValueError, match=f"'{text}' is of several clients together: client 'north' has none"):
            Quantity.of(text).at("north", "")
    assert Quantity.of("run/bytes").at("north", "-local") == Quantity.of("run/bytes"), "of the whole run"
    with pytest.raises(ValueError, match="'peers/l1' has no suffix '-local'"):
        Quantity.of("peers/l1").at(None, "-local")


def test_they_are_said_as_they_are_written():
    for text in ("test/mae-60min", "validation/accuracy:worst5@cold", "test/accuracy:rounds", "peers/l1", "run/bytes"):
        assert str(Quantity.of(text)) == text
    assert str(Quantity.of("test/mae").at("north", "-local")) == "test/mae-local of north"
