"""Results of a run: over its clients, and of each of them at the end, round by round, and averaged over rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from fedgraph.reproduce.quantity import GRAPH, PEERS, RUN, TO_TARGET, Quantity
from fedgraph.runs import RunFolder

ClientValues = dict[str, float | None]
"""Values by client; None for a client without one."""


def value_of(summary: Mapping[str, Any] | None, quantity: Quantity) -> float | None:
    """Read a number from a run's summary; None if the run has not measured it."""
    split, name, statistic, group, client = quantity
    if summary is None:
        return None
    if statistic in TO_TARGET:
        where, who = TO_TARGET[statistic]
        taken = summary.get(where, {}).get(f"{split}/{name}", {}).get(who)
        return None if taken is None else float(taken)
    if split == RUN:
        return _took(summary, name)
    if client is not None:
        value = at_the_end(summary, quantity).get(client)
    elif split in (PEERS, GRAPH):
        value = summary.get(split, {}).get(name)
    elif group is not None:
        value = summary.get("per_group", {}).get(split, {}).get(group, {}).get(name, {}).get(statistic)
    else:
        value = summary["metrics"].get(split, {}).get(name, {}).get(statistic)
    return None if value is None or not math.isfinite(value) else float(value)


def _took(summary: Mapping[str, Any], what: str) -> float | None:
    """Return one of ``quantity.TOOK``; None where the run, or one of an earlier version, does not report it."""
    if what == "bytes":
        return float(summary["bytes_down"] + summary["bytes_up"])
    if what == "bytes-per-client":
        down, up = (summary.get(f"bytes_{way}_per_client") for way in ("down", "up"))
        return None if down is None or up is None else float(down + up)
    found: Any = summary.get("training", {}).get(what)
    if what in ("rounds", "models-per-round", "exchanges", "training-bytes-per-owner", "core-seconds"):
        found = summary.get(what.replace("-", "_"))
    return None if found is None else float(found)


def at_the_end(summary: Mapping[str, Any], quantity: Quantity) -> ClientValues:
    """Read each client's value from a run's summary; empty if it was not measured."""
    values: ClientValues = summary.get("per_client", {}).get(quantity.split, {}).get(quantity.metric, {})
    return values


def by_round(path: Path, quantity: Quantity) -> dict[int, ClientValues]:
    """Read each client's value after each evaluation of the run in folder ``path``."""
    lines = RunFolder(path).evaluations(quantity.split)
    return {
        line["round"]: line["per_client"][quantity.metric] for line in lines if quantity.metric in line["per_client"]
    }


@lru_cache(maxsize=1024)
def averaged(path: Path, quantity: Quantity, rounds: tuple[int, int]) -> ClientValues:
    """Average each client's values over the evaluations from the first to the last of ``rounds``.

    Results are cached: the run must be finished.
    """
    first, last = rounds
    found: dict[str, list[float]] = {}
    for number, values in by_round(path, quantity).items():
        for name, value in values.items():
            if first <= number <= last and value is not None:
                found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}
