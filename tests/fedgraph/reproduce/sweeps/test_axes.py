import pytest

from fedgraph.reproduce.sweeps.axes import Axis, grid
from fedgraph.support.errors import ExperimentError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sfl.alpha=0,0.3,1", (0, 0.3, 1)),
        ("train.optimizer=sgd,adam", ("sgd", "adam")),
        ('train.optimizer="sgd", "adam"', ("sgd", "adam")),
        ("train.nesterov=true,false", (True, False)),
        ("model.hidden=[16],[32, 16]", ([16], [32, 16])),
        ("experiment.strategy=mine:One,mine:Two", ("mine:One", "mine:Two")),
        ("sfl.hops=1,1,2", (1, 2)),
        ("sfl.mixes=models,0.5", ("models", 0.5)),
    ],
)
def test_lists(text, values):
    axis = Axis.of(text)
    assert axis.values == values
    assert [axis.value(params[axis.key]) for params in grid([axis])] == list(values)
    assert [type(value) for value in axis.values] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "ends", "log", "whole"),
    [
        ("train.learning-rate=0.01:0.3:log", (0.01, 0.3), True, False),
        ("train.learning-rate=1e-4:1", (1e-4, 1.0), False, False),
        ("sfl.hops=1:4", (1, 4), False, True),
        ("a.b.c=-1.5:.5", (-1.5, 0.5), False, False),
    ],
)
def test_ranges(text, ends, log, whole):
    axis = Axis.of(text)
    assert not axis.values
    assert (axis.low, axis.high) == ends
    assert axis.log == log
    assert all(isinstance(end, int) == whole for end in (axis.low, axis.high))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sfl.alpha", "write table.key=a,b,c"),
        ("alpha=1,2", "write table.key=a,b,c"),
        ("sfl.alpha=", "write table.key=a,b,c"),
        ("sfl.alpha=1,,2", "values are numbers, words"),
        ("sfl.alpha={a = 1}", "values are numbers, words"),
        ("sfl.alpha=2:1", "a range goes up"),
        ("sfl.alpha=0:1:log", "a range goes up, from above 0"),
        ("experiment.seed=0,1", "use --seeds"),
        ("output.dir=a,b", "it changes no result"),
        ("evaluation.splits=[1],[2]", "compared on the same data"),
    ],
)
def test_what_is_no_axis_is_refused(text, reason):
    with pytest.raises(ExperimentError, match=reason):
        Axis.of(text)


def test_combinations_are_of_lists_alone():
    alpha, hops, rate = Axis.of("sfl.alpha=0,1"), Axis.of("sfl.hops=1,2"), Axis.of("train.learning-rate=0.1:1.0")
    every = [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert grid([alpha, hops]) == [{"sfl.alpha": first, "sfl.hops": second} for first, second in every]
    assert grid([alpha, rate]) is None


def test_the_choice_in_words():
    assert Axis.of("sfl.alpha=0,0.3,1").in_words(0.3) == "sfl.alpha 0.3 of 0, 0.3, 1"
    assert Axis.of("sfl.alpha=0,0.3,1").in_words(1) == "sfl.alpha 1 of 0, 0.3, 1 (at the end of what was tried)"
    assert Axis.of("sfl.alpha=0.01:1.0").in_words(0.123456) == "sfl.alpha 0.1235 from 0.01 to 1"


@pytest.mark.parametrize(
    ("text", "lowest", "highest", "kind"),
    [("sfl.hops=1:4", 1, 4, int), ("a.b=0.1:4:log", 0.1, 4.0, float), ("a.b=[1],[2, 3]", [1], [2, 3], list)],
)
def test_optuna_suggests_values_of_the_axis(text, lowest, highest, kind):
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
    found = [Axis.of(text).suggested(study.ask()) for _ in range(20)]
    assert {type(value) for value in found} == {kind}
    assert lowest <= min(found) < max(found) <= highest
