"""The keys that a sweep varies, each over a list of values or a range, as distributions of Optuna."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from itertools import product
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fedgraph.experiment import toml_value
from fedgraph.reproduce.choosing import chosen_of
from fedgraph.support.errors import ExperimentError

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Axes = Mapping[str, Distribution]
"""By ``table.key``, what is tried; choices that are lists are JSON, as Optuna takes none."""

_KEY = re.compile(r"[^.=\s]+(\.[^.=\s]+)+")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(:log)?")
_NOT_SETTINGS = {
    "experiment.seed": "use --seeds",
    "experiment.name": "it changes no result",
    "evaluation.splits": "all trials are compared on the same data",
}


def axis(text: str) -> tuple[str, Distribution]:
    """Parse ``table.key=a,b,c`` (values as in TOML, or plain words) or ``table.key=low:high[:log]``.

    Raises
    ------
    ExperimentError
        For anything else, and for keys that are no settings.
    """
    key, equals, given = (part.strip() for part in text.partition("="))
    if not equals or not given or _KEY.fullmatch(key) is None:
        raise ExperimentError(f"--over {text}: write table.key=a,b,c or table.key=low:high or table.key=low:high:log")
    reason = "it changes no result" if key.startswith("output.") else _NOT_SETTINGS.get(key)
    if reason is not None:
        raise ExperimentError(f"--over {text}: {key} is not chosen: {reason}")
    bounds = _RANGE.fullmatch(given)
    if bounds is None:
        return key, CategoricalDistribution(_choices(given, text))
    low, high, log = float(bounds[1]), float(bounds[2]), bool(bounds[3])
    if not low < high or (log and low <= 0):
        raise ExperimentError(f"--over {text}: a range goes up{', from above 0 with :log' if log else ''}")
    if re.search(r"[.eE]", bounds[1] + bounds[2]):
        return key, FloatDistribution(low, high, log=log)
    return key, IntDistribution(int(low), int(high), log=log)


def _choices(given: str, text: str) -> list[Any]:
    try:
        found = tomllib.loads(f"values = [{given}]")["values"]
    except tomllib.TOMLDecodeError:
        found = [toml_value(part.strip()) for part in given.split(",")]
    if any(isinstance(value, dict) or value == "" for value in found):
        raise ExperimentError(f"--over {text}: values are numbers, words, true or false, or lists of these")
    kept = {json.dumps(value): value for value in found}
    return [as_json if isinstance(value, list) else value for as_json, value in kept.items()]


def value_of(param: Any) -> Any:
    """Return the setting that Optuna knows as ``param``."""
    return json.loads(param) if isinstance(param, str) and param.startswith("[") else param


def first_of(axes: Axes) -> dict[str, Any]:
    """Return one combination, to see whether the experiment has the keys."""
    return {
        key: kind.choices[0] if isinstance(kind, CategoricalDistribution) else kind.low for key, kind in axes.items()
    }


def grid(axes: Axes) -> list[dict[str, Any]] | None:
    """Return every combination of lists of values; None where an axis is a range."""
    choices = [kind.choices for kind in axes.values() if isinstance(kind, CategoricalDistribution)]
    return [dict(zip(axes, each, strict=True)) for each in product(*choices)] if len(choices) == len(axes) else None


def in_words(key: str, kind: Distribution, param: Any) -> str:
    """Describe a chosen value, and the values that were tried."""
    if isinstance(kind, CategoricalDistribution):
        return chosen_of(key, value_of(param), [*map(value_of, kind.choices)])
    return f"{key} {param:.4g} from {kind.low:g} to {kind.high:g}"
