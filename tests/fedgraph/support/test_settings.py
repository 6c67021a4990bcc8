import pytest

from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings, parse


class Example(Settings):
    """A table for the test."""

    learning_rate: float = 0.1
    num_steps: int = 3
    note: str | None = None


def test_keys_are_kebab_case_and_none_is_left_out():
    assert parse(Example, {"learning-rate": 0.5}, "[x]").as_table() == {"learning-rate": 0.5, "num-steps": 3}


def test_unknown_key_names_the_known_ones():
    with pytest.raises(ExperimentError, match=r"\[x\] has no key 'lr'; known keys: learning-rate, note, num-steps"):
        parse(Example, {"lr": 1}, "[x]")


def test_every_problem_is_named():
    with pytest.raises(ExperimentError) as raised:
        parse(Example, {"num-steps": "many", "lr": 1}, "[x]")
    assert "num-steps" in str(raised.value)
    assert "'many'" in str(raised.value)
    assert "'lr'" in str(raised.value)
