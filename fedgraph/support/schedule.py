"""Numbers that change with the round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Step = tuple[Annotated[int, Field(ge=1)], _Number]


def _ascending(steps: tuple[_Step, ...]) -> tuple[_Step, ...]:
    rounds = [server_round for server_round, _ in steps]
    if rounds[:1] != [1] or rounds != sorted(set(rounds)):
        raise ValueError("a schedule is [[round, value], ...] with ascending rounds, of which the first is 1")
    return steps


Schedule = _Number | Annotated[tuple[_Step, ...], AfterValidator(_ascending)]
"""A number not below 0, or ``[[1, a], [r, b], ...]``: a from round 1 on, b from round r on."""


def value_at(schedule: float | Sequence[Sequence[float]], server_round: int) -> float:
    """The value in a round, counted from 1."""
    if isinstance(schedule, int | float):
        return float(schedule)
    return float([value for first, value in schedule if first <= server_round][-1])
