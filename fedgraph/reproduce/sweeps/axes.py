"""The keys that a sweep varies, as Optuna distributions over a list of values or a range."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from itertools import islice, product
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fedgraph.experiment import toml_value
from fedgraph.reproduce.choosing import chosen_of
from fedgraph.support.errors import ExperimentError

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Axes = Mapping[str, Distribution]
"""Distributions by ``table.key``; choices that are lists are encoded as JSON for Optuna."""

_KEY = re.compile(r"[^.=\s]+(\.[^.=\s]+)+")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(:log)?")
_MOST_TRIED = 100
"""Number of combinations of the other keys with which a value is tried before it is refused."""

_NOT_SETTINGS = {
    "experiment.seed": "use --seeds",
    "experiment.name": "it does not affect results",
    "evaluation.splits": "all trials are compared on the same data",
}


_METHOD = "experiment.method"


def axis(text: str) -> tuple[str, Distribution]:
    """Parse ``table.key=a,b,c`` (values as in TOML, or plain words) or ``table.key=low:high[:log]``.

    Raises
    ------
    ExperimentError
        For anything else, and for keys that cannot be tuned.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or _KEY.fullmatch(key) is None:
        raise ExperimentError(f"--over {text}: write table.key=a,b,c or table.key=low:high or table.key=low:high:log")
    reason = "it does not affect results" if key.startswith("output.") else _NOT_SETTINGS.get(key)
    if reason is not None:
        raise ExperimentError(f"--over {text}: {key} cannot be tuned: {reason}")
    bounds = _RANGE.fullmatch(values)
    if bounds is None:
        return key, CategoricalDistribution(_choices(values, text))
    low, high, log = float(bounds[1]), float(bounds[2]), bool(bounds[3])
    if not low < high or (log and low <= 0):
        raise ExperimentError(f"--over {text}: a range needs {'0 < ' if log else ''}low < high")
    if re.search(r"[.eE]", bounds[1] + bounds[2]):
        return key, FloatDistribution(low, high, log=log)
    return key, IntDistribution(int(low), int(high), log=log)


def _choices(listed: str, text: str) -> list[Any]:
    try:
        values = tomllib.loads(f"values = [{listed}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [toml_value(part.strip()) for part in listed.split(",")]
    if any(isinstance(value, dict) or value == "" for value in values):
        raise ExperimentError(f"--over {text}: values must be numbers, words, true or false, or lists of these")
    unique = {json.dumps(value): value for value in values}
    return [as_json if isinstance(value, list) else value for as_json, value in unique.items()]


def value_of(param: Any) -> Any:
    """Decode a parameter of Optuna."""
    return json.loads(param) if isinstance(param, str) and param.startswith("[") else param


def first_of(axes: Axes) -> dict[str, Any]:
    """Return one combination, to check that the experiment has the keys."""
    return {
        key: kind.choices[0] if isinstance(kind, CategoricalDistribution) else kind.low for key, kind in axes.items()
    }


def check_values(axes: Axes, resolve: Callable[[Mapping[str, Any]], object]) -> None:
    """Check each value of the lists, and both ends of ranges, before any trial.

    Values that fit with some values of the other keys are left to the trials; keys of the table of a method are only
    read by that method. Raises ExperimentError for a value that fits with none of the first hundred combinations.

    Parameters
    ----------
    axes : distributions by key.
    resolve : function of one combination that raises ExperimentError if it does not fit.
    """
    values = {
        key: list(kind.choices) if isinstance(kind, CategoricalDistribution) else [kind.low, kind.high]
        for key, kind in axes.items()
    }
    for key, own in values.items():
        table = key.partition(".")[0]
        reader = {_METHOD: [table]} if table in values.get(_METHOD, ()) else {}
        for value in own:
            combinations = islice(product(*(values | reader | {key: [value]}).values()), _MOST_TRIED)
            problems = (_problem(resolve, dict(zip(values, each, strict=True))) for each in combinations)
            first = next(problems)
            if first is not None and None not in problems:
                raise ExperimentError(f"--over {key}: the value {json.dumps(value_of(value))} does not fit: {first}")


def _problem(resolve: Callable[[Mapping[str, Any]], object], params: Mapping[str, Any]) -> str | None:
    try:
        resolve(params)
    except ExperimentError as error:
        return str(error)
    return None


def grid(axes: Axes) -> list[dict[str, Any]] | None:
    """Return all combinations of lists of values; None if an axis is a range."""
    choices = [kind.choices for kind in axes.values() if isinstance(kind, CategoricalDistribution)]
    return [dict(zip(axes, each, strict=True)) for each in product(*choices)] if len(choices) == len(axes) else None


def in_words(key: str, kind: Distribution, param: Any) -> str:
    """Describe a chosen value and the values tried."""
    if isinstance(kind, CategoricalDistribution):
        return chosen_of(key, value_of(param), [*map(value_of, kind.choices)])
    return f"{key} {param:.4g} from {kind.low:g} to {kind.high:g}"
