"""Base class of every table of an experiment file, and numbers that change with the round.

Keys are in kebab case, and unknown ones are refused with the known ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypeVar

from fedgraph.support.errors import ExperimentError

S = TypeVar("S", bound="Settings", default="Settings")


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Settings(BaseModel):
    """A frozen table of settings. TOML keys are the field names with dashes for underscores."""

    model_config = ConfigDict(
        alias_generator=_kebab, populate_by_name=True, extra="forbid", frozen=True, validate_default=True
    )

    @classmethod
    def keys(cls) -> list[str]:
        """The keys a TOML table of this kind may hold."""
        return [_kebab(name) for name in cls.model_fields]

    def as_table(self) -> dict[str, Any]:
        """The settings as a plain TOML table with every default filled in; keys that are None are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Configured(Generic[S]):
    """What a table of an experiment configures, by the class in brackets: ``class SFL(CohortStrategy[SFLSettings])``.

    settings_type : that class; where a class names none, its base's.
    """

    settings_type: ClassVar[type[Settings]] = Settings
    settings: S

    def __init_subclass__(cls, **named: Any) -> None:
        """Read ``settings_type`` off the brackets."""
        super().__init_subclass__(**named)
        if "settings_type" in vars(cls):
            return
        for argument in (argument for base in vars(cls).get("__orig_bases__", ()) for argument in get_args(base)):
            kind = getattr(argument, "__bound__", None) or argument
            if isinstance(kind, type) and issubclass(kind, Settings):
                cls.settings_type = kind


def part_of(kind: type[S], table: Mapping[str, Any], where: str) -> S:
    """Those keys of ``table`` that ``kind`` knows, as its settings. Raises ExperimentError as ``parse``."""
    known = set(kind.keys())
    return parse(kind, {key: value for key, value in table.items() if key in known}, where)


def parse(kind: type[S], table: Mapping[str, Any], where: str) -> S:
    """Validate ``table`` as ``kind``; ``where`` names the table in messages, e.g. ``[train]``.

    Raises
    ------
    ExperimentError
        Every problem on a line of its own: the key, what is wrong with it and, for an unknown key, the known ones.
    """
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                lines.append(f"{where} has no key '{key}'; known keys: {', '.join(sorted(kind.keys()))}")
            elif problem["type"] == "missing":
                lines.append(f"{where} needs the key '{key}'")
            else:
                text = problem["msg"].removeprefix("Value error, ")
                got = f" (got {problem['input']!r})" if key else ""
                lines.append(f"{where} {key}: {text}{got}" if key else f"{where}: {text}")
        raise ExperimentError("\n".join(lines)) from None


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
