"""Base class of every table of an experiment file, and numbers that change with the round.

Keys are in kebab case. Unknown keys are refused; the message lists the known ones. Any table may have the key
``unset``, a list of those of its keys that have no value: TOML has no null.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypeVar

from fedgraph.support.errors import ExperimentError, if_any, similar

S = TypeVar("S", bound="Settings", default="Settings")

UNSET = "unset"
"""Key of any table that lists those of its keys that have no value."""


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Settings(BaseModel):
    """A frozen table of settings. TOML keys are the field names with dashes for underscores."""

    model_config = ConfigDict(
        alias_generator=_kebab, populate_by_name=True, extra="forbid", frozen=True, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _read_unset(cls, table: Any) -> Any:
        return with_nulls(table) if isinstance(table, Mapping) else table

    @classmethod
    def keys(cls) -> list[str]:
        """Return the keys that a TOML table of this kind may contain."""
        return [_kebab(name) for name in cls.model_fields]

    def as_table(self, nulls: bool = False) -> dict[str, Any]:
        """Return the settings as a plain table with all defaults filled in; keys that are None only with ``nulls``."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=not nulls)

    def as_written(self) -> dict[str, Any]:
        """Return the settings as a TOML table independent of defaults; keys that are None are in ``unset``."""
        table: dict[str, Any] = _as_written(self, self.as_table())
        return table


def _as_written(value: Any, plain: Any) -> Any:
    """Return ``plain``, of :meth:`Settings.as_table`, with ``unset`` in it and in the tables within."""
    if isinstance(value, Settings):
        items = {_kebab(name): getattr(value, name) for name in type(value).model_fields}
        return without_nulls(
            {key: None if item is None else _as_written(item, plain[key]) for key, item in items.items()}
        )
    if isinstance(value, Mapping):
        return {key: _as_written(item, plain[key]) for key, item in value.items() if key in plain}
    if isinstance(value, (list, tuple)):
        return [_as_written(item, each) for item, each in zip(value, plain, strict=True)]
    return plain


def with_nulls(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with None for the keys that its key ``unset`` lists, unless they are given.

    Raises ValueError when ``unset`` is not a list of keys.
    """
    names = table.get(UNSET, ())
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{UNSET} is a list of keys that have no value, not {names!r}")
    return {**dict.fromkeys(names), **{key: value for key, value in table.items() if key != UNSET}}


def without_nulls(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without the keys that are None, which ``unset`` lists instead."""
    names = [key for key, value in table.items() if value is None]
    return {**{key: value for key, value in table.items() if value is not None}, **({UNSET: names} if names else {})}


def selected(table: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the keys of a table that are among ``keys``, and None for unset ones."""
    return {key: value for key, value in with_nulls(table).items() if key in keys}


class Configured(Generic[S]):
    """A class configured by a table of an experiment, with the settings class in brackets.

    For example ``class SFL(Algorithm[SFLSettings])``.

    Attributes
    ----------
    settings_type : type
        The class in brackets; for a class without brackets that of its base.
    settings : Settings
        The validated table.
    """

    settings_type: ClassVar[type[Settings]] = Settings
    settings: S

    def __init_subclass__(cls, **named: Any) -> None:
        """Set ``settings_type`` from the brackets. Raises TypeError when they have no class of :class:`Settings`."""
        super().__init_subclass__(**named)
        if "settings_type" in vars(cls):
            return
        for base in vars(cls).get("__orig_bases__", ()):
            given = get_args(base)
            kinds = [getattr(argument, "__bound__", None) or argument for argument in given]
            found = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)]
            if found:
                cls.settings_type = found[-1]
            elif given and issubclass(get_origin(base), Configured) and not any(_is_variable(each) for each in given):
                names = ", ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
                raise TypeError(
                    f"class {cls.__name__}({get_origin(base).__name__}[{names}]): settings are a class derived from "
                    f"fedgraph.support.settings.Settings, which {names} is not"
                )


def _is_variable(argument: Any) -> bool:
    # TypeVar of typing and of typing_extensions may be different classes.
    return hasattr(argument, "__bound__")


def select_settings(kind: type[S], table: Mapping[str, Any], where: str) -> S:
    """Validate those keys of ``table`` that ``kind`` has; raises ExperimentError as :func:`parse` does."""
    return parse(kind, selected(table, kind.keys()), where)


def parse(kind: type[S], table: Mapping[str, Any], where: str) -> S:
    """Validate a table.

    Raises ExperimentError with one line per problem: the key, the problem and, for an unknown key, the known ones.

    Parameters
    ----------
    kind : type
        The settings class.
    table : mapping
        By TOML key.
    where : str
        Names the table in messages, e.g. ``[train]``.
    """
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                *tables, last = map(str, problem["loc"])
                known = sorted(_kind_at(kind, tables).keys())
                lines.append(
                    f"{where} has no key '{key}'{if_any(f'; known keys{_of(tables)}: ', ', '.join(known))}"
                    f"{similar([last], known)}"
                )
            elif problem["type"] == "missing":
                lines.append(f"{where} needs the key '{key}'")
            else:
                text = problem["msg"].removeprefix("Value error, ")
                got = f" (got {problem['input']!r})" if key else ""
                lines.append(f"{where} {key}: {text}{got}" if key else f"{where}: {text}")
        raise ExperimentError("\n".join(lines)) from None


def _kind_at(kind: type[Settings], tables: Sequence[str]) -> type[Settings]:
    """Return the class of a table within a table of ``kind``; keys of mappings and indices of lists are skipped."""
    for name in tables:
        inner = [field.annotation for key, field in kind.model_fields.items() if _kebab(key) == _kebab(name)]
        kind = next((found for annotation in inner for found in _settings_in(annotation)), kind)
    return kind


def _settings_in(annotation: Any) -> list[type[Settings]]:
    """Return the settings classes in a type, such as in an optional one or the values of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [found for each in get_args(annotation) for found in _settings_in(each)]


def _of(tables: Sequence[str]) -> str:
    return if_any(" of ", ".".join(tables))


def from_keywords(kind: type[S], keywords: Mapping[str, Any], where: str, others: Collection[str] = ()) -> S:
    """Validate settings given as keywords of a Python call, named as the fields.

    Raises TypeError for an unknown keyword, and ValueError for an invalid value.

    Parameters
    ----------
    kind : type
        The settings class.
    keywords : mapping
        By field.
    where : str
        Names the call in messages, e.g. ``F3``.
    others : collection of str
        Further keywords of the call, for messages.
    """
    known = [*others, *kind.model_fields]
    unknown = [name for name in keywords if name not in kind.model_fields]
    if unknown:
        raise TypeError(
            f"{where} has no parameter {', '.join(map(repr, unknown))}{if_any('; it has ', ', '.join(known))}"
            f"{similar(unknown, known)}"
        )
    try:
        return kind.model_validate(dict(keywords))
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"]).replace("-", "_")
            text = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "extra_forbidden":
                *tables, last = (str(part).replace("-", "_") for part in problem["loc"])
                fields = sorted(_kind_at(kind, tables).model_fields)
                lines.append(
                    f"{where}: there is no {key}; known keys{_of(tables)}: {', '.join(fields)}{similar([last], fields)}"
                )
                continue
            lines.append(f"{where}: {key}: {text} (got {problem['input']!r})" if key else f"{where}: {text}")
        raise ValueError("\n".join(lines)) from None


_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Step = tuple[Annotated[int, Field(ge=1)], _Number]


def _ascending(steps: tuple[_Step, ...]) -> tuple[_Step, ...]:
    rounds = [server_round for server_round, _ in steps]
    if rounds[:1] != [1] or rounds != sorted(set(rounds)):
        raise ValueError("a schedule is [[round, value], ...] with ascending rounds, starting at 1")
    return steps


Schedule = _Number | Annotated[tuple[_Step, ...], AfterValidator(_ascending)]
"""A non-negative number, or ``[[1, a], [r, b], ...]`` for a from round 1, b from round r."""


def value_at(schedule: float | Sequence[Sequence[float]], server_round: int) -> float:
    """Return the value of a schedule in a round, counted from 1."""
    if isinstance(schedule, int | float):
        return float(schedule)
    return float([value for first, value in schedule if first <= server_round][-1])
