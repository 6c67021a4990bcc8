import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Configured, Schedule, Settings, from_keywords, parse, value_at


class Example(Settings):
    """A table for the test."""

    learning_rate: float = 0.1
    num_steps: int = 3
    note: str | None = None


def test_keys_are_kebab_case_and_none_is_left_out():
    assert parse(Example, {"learning-rate": 0.5}, "[x]").as_table() == {"learning-rate": 0.5, "num-steps": 3}


def test_unknown_key_names_the_known_ones():
    with pytest.raises(ExperimentError, match=r"\[x\] .*'lr'; .*learning-rate"):
        parse(Example, {"lr": 1}, "[x]")


class Outer(Settings):
    """A table of tables."""

    inner_table: Example = Example()
    by_name: dict[str, Example] | None = None


@pytest.mark.parametrize(
    ("table", "key"),
    [({"inner-table": {"num-step": 1}}, "inner-table"), ({"by-name": {"a": {"num-step": 1}}}, "by-name.a")],
)
def test_an_unknown_key_of_a_table_within_names_those_of_that_table(table, key):
    told = f"'{key}.num-step'; known keys of {key}: learning-rate, note, num-steps; did you mean 'num-steps'"
    with pytest.raises(ExperimentError, match=told):
        parse(Outer, table, "[x]")
    name = key.replace("-", "_")
    told = f"f: there is no {name}.num_step; known keys of {name}: learning_rate, note, num_steps; did you"
    with pytest.raises(ValueError, match=told):
        from_keywords(Outer, {each.replace("-", "_"): value for each, value in table.items()}, "f")


def test_further_keywords_of_a_call_are_listed():
    with pytest.raises(TypeError, match="f has no parameter 'sed'; it has seed, learning_rate, .*'seed' for 'sed'"):
        from_keywords(Example, {"sed": 1}, "f", ["seed"])


def test_every_problem_is_named():
    with pytest.raises(ExperimentError) as raised:
        parse(Example, {"num-steps": "many", "lr": 1}, "[x]")
    assert "num-steps" in str(raised.value)
    assert "'many'" in str(raised.value)
    assert "'lr'" in str(raised.value)


READ = TypeAdapter(Schedule).validate_python


def test_a_number_is_the_same_in_every_round():
    assert [value_at(READ(0.5), server_round) for server_round in (1, 7)] == [0.5, 0.5]


def test_a_schedule_changes_with_the_round():
    steps = READ([[1, 1.0], [10, 0.1], [20, 0]])
    assert [value_at(steps, server_round) for server_round in (1, 9, 10, 19, 20, 99)] == [1, 1, 0.1, 0.1, 0, 0]


@pytest.mark.parametrize(
    "text", [-1, [[2, 1.0]], [[1, 1.0], [1, 2.0]], [[1, 1.0], [5, 1.0], [3, 1.0]], [], [[1, -2.0]], float("inf")]
)
def test_others_are_refused(text):
    with pytest.raises(ValidationError):
        READ(text)


def test_keywords_of_a_call_are_named_as_fields():
    assert from_keywords(Example, {"num_steps": 5}, "make") == Example(num_steps=5)
    with pytest.raises(TypeError, match="'num_step'; .*learning_rate"):
        from_keywords(Example, {"num_step": 5}, "make")
    with pytest.raises(ValueError, match="num_steps: .*'x'"):
        from_keywords(Example, {"num_steps": "x"}, "make")


class OfPydantic(BaseModel):
    rate: float = 0.1


@pytest.mark.parametrize(("kind", "name"), [(OfPydantic, "OfPydantic"), (dict, "dict"), (dict[str, int], "dict")])
def test_brackets_with_no_settings_are_refused_where_the_class_is_defined(kind, name):
    words = rf"class Mine\(Configured\[{name}\]\): settings are a class derived from fedgraph.support.settings.Settings"
    with pytest.raises(TypeError, match=words):

        class Mine(Configured[kind]):
            pass
