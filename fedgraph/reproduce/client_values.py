"""What the single clients of a run have reached: at the end, round by round, and on average over some rounds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgraph.reproduce.quantity import Quantity
from fedgraph.run import RunFolder

ClientValues = dict[str, float | None]
"""By client; None where one has no value."""


def at_the_end(summary: Mapping[str, Any], quantity: Quantity) -> ClientValues:
    """As a run's summary has it; empty where it was not measured."""
    values: ClientValues = summary.get("per_client", {}).get(quantity.split, {}).get(quantity.metric, {})
    return values


def by_round(path: Path, quantity: Quantity) -> dict[int, ClientValues]:
    """After each round of the run in folder ``path`` in which it was measured."""
    lines = RunFolder(path).evaluations(quantity.split)
    return {
        line["round"]: line["per_client"][quantity.metric] for line in lines if quantity.metric in line["per_client"]
    }


@lru_cache(maxsize=1024)
def averaged(path: Path, quantity: Quantity, rounds: tuple[int, int]) -> ClientValues:
    """Each client's mean over those rounds, from the first to the last of them, in which it has a value.

    Of a finished run, whose numbers change no more.
    """
    first, last = rounds
    found: dict[str, list[float]] = {}
    for number, values in by_round(path, quantity).items():
        for name, value in values.items():
            if first <= number <= last and value is not None:
                found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}
