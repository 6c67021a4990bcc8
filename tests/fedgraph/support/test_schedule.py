import pytest
from pydantic import TypeAdapter, ValidationError

from fedgraph.support.schedule import Schedule, value_at

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
