"""Schemas as JSON. Input from others is untrusted: sizes and characters are limited."""

from __future__ import annotations

import json
import unicodedata
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fedgraph.data.schema.schema import Feature, Kind, Schema
from fedgraph.support.errors import DataError, ReplyError

MOST_FEATURES = 2_000
MOST_CATEGORIES = 1_000
MOST_UNITS = 20_000
LONGEST_NAME = 200
"""Most characters in the name of a feature or category."""

LONGEST_JSON = 5_000_000

_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class _FeatureJson(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    kind: Kind
    categories: Annotated[list[str], Field(max_length=MOST_CATEGORIES)]
    size: Annotated[int, Field(le=MOST_UNITS)] = 1


_FEATURES = TypeAdapter(Annotated[list[_FeatureJson], Field(max_length=MOST_FEATURES)])


def schema_as_json(schema: Schema) -> str:
    """Return a schema as one line of JSON that :func:`schema_from_json` reads.

    Raises DataError when the schema exceeds the limits of :func:`schema_from_json`.
    """
    check_limits(schema)
    return json.dumps([feature.as_json() for feature in schema.features])


def schema_from_json(text: str, what: str = "the schema") -> Schema:
    """Read a schema from a message.

    Raises ReplyError when it is not a schema, is too large, or has names
    that must not be shown.

    Parameters
    ----------
    text : str
        JSON from another party, which is not trusted.
    what : str
        Names the schema in messages.
    """
    check_length(text, what)
    try:
        read = _FEATURES.validate_json(text)
        schema = Schema(tuple(Feature(part.name, part.kind, tuple(part.categories), part.size) for part in read))
        check_limits(schema)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, problem["loc"]))[:LONGEST_NAME]
        raise ReplyError(f"{what} is malformed: {ascii(place)[1:-1]} {problem['msg']}") from None
    except DataError as error:
        # The message may quote names of any content and length.
        raise ReplyError(f"{what} cannot be used: {ascii(str(error)[:300])[1:-1]}") from None
    return schema


def check_length(text: str, what: str) -> None:
    """Check the length of JSON text before it is parsed; ``what`` names it in messages.

    Raises ReplyError when the text is longer than any schema.
    """
    if len(text) > LONGEST_JSON:
        raise ReplyError(f"{what} has {len(text):,} characters, more than {LONGEST_JSON:,}")


def check_limits(schema: Schema) -> None:
    """Raise DataError for a schema that is too large, or for names that cannot be shown in one line."""
    if not 0 < len(schema.features) <= MOST_FEATURES:
        raise DataError(f"a schema needs 1 to {MOST_FEATURES:,} features, and this one has {len(schema.features):,}")
    units = sum(feature.width for feature in schema.features)
    if units > MOST_UNITS:
        raise DataError(f"a schema has at most {MOST_UNITS:,} units, and this one has {units:,}: drop features")
    for feature in schema.features:
        _check_text(feature.name, "the name of a feature")
        if len(feature.categories) > MOST_CATEGORIES:
            raise DataError(
                f"feature '{feature.name}' has {len(feature.categories):,} categories, more than "
                f"{MOST_CATEGORIES:,}: drop it"
            )
        for category in feature.categories:
            _check_text(category, f"a category of feature '{feature.name}'")


def _check_text(text: str, what: str) -> None:
    shown = ascii(text[:40])
    if not text.strip():
        raise DataError(f"{what} is empty: name it, or declare it missing")
    if len(text) > LONGEST_NAME:
        raise DataError(f"{what}, {shown} ..., has {len(text):,} characters, more than {LONGEST_NAME}")
    # These could break a line of a report or reverse its direction.
    if any(
        unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(c) in _DIRECTIONS for c in text
    ):
        raise DataError(f"{what}, {shown}, holds line breaks or control characters: remove them")
