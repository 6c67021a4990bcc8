"""The keys that a sweep varies, each over a list of values or a range."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from fedgraph.experiment import toml_value
from fedgraph.reproduce.choosing import chosen_of
from fedgraph.support.errors import ExperimentError

if TYPE_CHECKING:
    import optuna

_KEY = re.compile(r"[^.=\s]+(\.[^.=\s]+)+")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(:log)?")
_NOT_SETTINGS = {
    "experiment.seed": "use --seeds",
    "experiment.name": "it changes no result",
    "evaluation.splits": "all trials are compared on the same data",
}


@dataclass(frozen=True)
class Axis:
    """A key with the values to try: ``values``, or everything from ``low`` to ``high``.

    Attributes
    ----------
    key : str
        ``table.key``.
    values : tuple
        The list; empty for a range.
    low, high : int or float
        The ends of a range; only whole numbers are tried where both are.
    log : bool
        Whether a range is divided by factors rather than by differences.
    """

    key: str
    values: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False

    @classmethod
    def of(cls, text: str) -> Axis:
        """Parse ``table.key=a,b,c`` (values as in TOML, or plain words) or ``table.key=low:high[:log]``.

        Raises
        ------
        ExperimentError
            For anything else, and for keys that are no settings.
        """
        key, equals, given = (part.strip() for part in text.partition("="))
        if not equals or not given or _KEY.fullmatch(key) is None:
            raise ExperimentError(
                f"--over {text}: write table.key=a,b,c or table.key=low:high or table.key=low:high:log"
            )
        reason = "it changes no result" if key.startswith("output.") else _NOT_SETTINGS.get(key)
        if reason is not None:
            raise ExperimentError(f"--over {text}: {key} is not chosen: {reason}")
        bounds = _RANGE.fullmatch(given)
        if bounds is None:
            return cls(key, _values(given, text))
        whole = not re.search(r"[.eE]", bounds[1] + bounds[2])
        low, high = (int(end) if whole else float(end) for end in bounds.group(1, 2))
        if not low < high or (bounds[3] and low <= 0):
            raise ExperimentError(f"--over {text}: a range goes up{', from above 0 with :log' if bounds[3] else ''}")
        return cls(key, low=low, high=high, log=bool(bounds[3]))

    @property
    def first(self) -> Any:
        """A value, to see whether the experiment has the key."""
        return self.values[0] if self.values else self.low

    def __str__(self) -> str:
        """Format as it was given."""
        if self.values:
            return f"{self.key}={', '.join(map(json.dumps, self.values))}"
        return f"{self.key}={self.low}:{self.high}{':log' if self.log else ''}"

    def suggested(self, trial: optuna.Trial) -> Any:
        """Return the value that Optuna suggests."""
        if self.values:
            return self.value(trial.suggest_categorical(self.key, list(map(_for_optuna, self.values))))
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.key, self.low, self.high, log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    def value(self, param: Any) -> Any:
        """Return the value that Optuna knows as ``param``."""
        return next((value for value in self.values if _for_optuna(value) == param), param)

    def in_words(self, value: Any) -> str:
        """Describe a chosen value, and the values that were tried."""
        if self.values:
            return chosen_of(self.key, value, self.values)
        return f"{self.key} {value:.4g} from {self.low:g} to {self.high:g}"


def grid(axes: Sequence[Axis]) -> list[dict[str, Any]] | None:
    """Return every combination of lists of values as parameters of Optuna; None where an axis is a range."""
    if not all(axis.values for axis in axes):
        return None
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, map(_for_optuna, each), strict=True)) for each in product(*(axis.values for axis in axes))]


def _values(given: str, text: str) -> tuple[Any, ...]:
    try:
        found = tomllib.loads(f"values = [{given}]")["values"]
    except tomllib.TOMLDecodeError:
        found = [toml_value(part.strip()) for part in given.split(",")]
    if any(isinstance(value, dict) or value == "" for value in found):
        raise ExperimentError(f"--over {text}: values are numbers, words, true or false, or lists of these")
    return tuple({json.dumps(value): value for value in found}.values())


def _for_optuna(value: Any) -> Any:
    """Return lists as JSON: Optuna takes numbers, words and truth values alone."""
    return json.dumps(value) if isinstance(value, list) else value
