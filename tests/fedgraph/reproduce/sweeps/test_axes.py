import pytest

pytest.importorskip("optuna", reason="optuna is not installed")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fedgraph.reproduce.sweeps.axes import axis, check_values, first_of, grid, in_words, value_of
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
    key, kind = axis(text)
    assert isinstance(kind, CategoricalDistribution)
    found = [value_of(param) for param in kind.choices]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in values]
    assert value_of(first_of({key: kind})[key]) == values[0]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("train.learning-rate=0.01:0.3:log", FloatDistribution(0.01, 0.3, log=True)),
        ("train.learning-rate=1e-4:1", FloatDistribution(1e-4, 1.0)),
        ("sfl.hops=1:4", IntDistribution(1, 4)),
        ("a.b.c=-1.5:.5", FloatDistribution(-1.5, 0.5)),
    ],
)
def test_ranges(text, kind):
    assert axis(text) == (text.partition("=")[0], kind)
    assert first_of(dict([axis(text)])) == {text.partition("=")[0]: kind.low}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sfl.alpha", "write table.key=a,b,c"),
        ("alpha=1,2", "write table.key=a,b,c"),
        ("sfl.alpha=", "write table.key=a,b,c"),
        ("sfl.alpha=1,,2", "values must be numbers, words"),
        ("sfl.alpha={a = 1}", "values must be numbers, words"),
        ("sfl.alpha=2:1", "a range needs low < high"),
        ("sfl.alpha=0:1:log", "a range needs 0 < low < high"),
        ("experiment.seed=0,1", "use --seeds"),
        ("output.dir=a,b", "it does not affect results"),
        ("evaluation.splits=[1],[2]", "compared on the same data"),
    ],
)
def test_what_is_no_axis_is_refused(text, reason):
    with pytest.raises(ExperimentError, match=reason):
        axis(text)


def test_combinations_are_of_lists_alone():
    lists, a_range = dict(map(axis, ("sfl.alpha=0,1", "sfl.hops=1,2"))), dict([axis("train.learning-rate=0.1:1.0")])
    every = [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert grid(lists) == [{"sfl.alpha": first, "sfl.hops": second} for first, second in every]
    assert grid(lists | a_range) is None


@pytest.mark.parametrize(
    ("text", "param", "words"),
    [
        ("sfl.alpha=0,0.3,1", 0.3, "sfl.alpha 0.3 of 0, 0.3, 1"),
        ("sfl.alpha=0,0.3,1", 1, "sfl.alpha 1 of 0, 0.3, 1 (at the end of what was tried)"),
        ("model.hidden=[16],[8]", "[8]", "model.hidden [8] of [16], [8]"),
        ("sfl.alpha=0.01:1.0", 0.123456, "sfl.alpha 0.1235 from 0.01 to 1"),
    ],
)
def test_the_choice_in_words(text, param, words):
    assert in_words(*axis(text), param) == words


def test_a_value_that_fits_with_no_other_is_refused():
    def resolve(params):
        if params["a.x"] > 5:
            raise ExperimentError(f"a.x is at most 5 (got {params['a.x']})")
        if params["a.x"] > params["a.y"]:
            raise ExperimentError("a.x is at most a.y")

    def check(*texts):
        check_values(dict(map(axis, texts)), resolve)

    check("a.x=1,2", "a.y=3,4")
    check("a.x=1,4", "a.y=3,4")  # 4 fits with the second value of the other
    check("a.x=1:5", "a.y=5,7")
    for texts in (("a.x=1,2,9", "a.y=3,20"), ("a.x=1:9", "a.y=3,20"), ("a.y=3:20", "a.x=1,9")):
        with pytest.raises(
            ExperimentError, match=r"^--over a\.x: the value 9 does not fit: a.x is at most 5 \(got 9\)"
        ):
            check(*texts)
    with pytest.raises(ExperimentError, match="--over a.x: the value 4 does not fit: a.x is at most a.y"):
        check("a.x=1,4", "a.y=2,3")
