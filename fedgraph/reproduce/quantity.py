"""Quantities that metrics of a table read from runs: over clients, by client, and by round."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from fedgraph.runs import RunFolder
from fedgraph.runs.reports import COUNTS, MEASURES
from fedgraph.support.errors import ExperimentError
from fedgraph.training import direction, is_share

_VALUE = re.compile(
    r"(?P<split>train|validation|test|public)/(?P<metric>[^:@/]+)"
    r"(:(?P<statistic>mean|std|best5|worst5|(first-)?(rounds|bytes|seconds)|fairness))?(@(?P<group>.+))?"
)

TO_TARGET = {
    "rounds": ("rounds_to_target", "mean"),
    "first-rounds": ("rounds_to_target", "first"),
    "bytes": ("bytes_to_target", "mean"),
    "first-bytes": ("bytes_to_target", "first"),
    "seconds": ("seconds_to_target", "mean"),
    "first-seconds": ("seconds_to_target", "first"),
}
"""Cost to reach a target: keys in ``summary.json``, and who must reach it."""

FAIRNESS = "fairness"
"""Statistic: correlation over clients with the stand-alone row."""

PEERS = "peers"
"""Pseudo split for differences between peers, as means over all pairs."""

GRAPH = "graph"
"""Pseudo split for the agreement of the learned graph with groups (:meth:`fedgraph.graph.ClientGraph.agreement`)."""

AGREEMENT = ("precision", "recall", "weight")

RUN = "run"
"""Pseudo split for the cost of a run."""

TOOK = (
    "rounds", "minibatches", "passes", "bytes", "bytes-per-client", "models-per-round", "exchanges",
    "training-bytes-per-owner", "core-seconds",
)  # fmt: skip
"""Costs of a run: rounds; minibatches of all clients, and passes over all data (``LocalWork``); traffic.

``bytes`` is the traffic of all nodes, which depends on which clients share a node (``Traffic``). ``bytes-per-client``
and ``models-per-round`` assume one client per node. ``exchanges`` counts requests to all nodes.
``training-bytes-per-owner`` covers embeddings and gradients, without those of test samples. ``core-seconds`` is the
processor time of a run in one process, for methods of rounds.
"""


ClientValues = dict[str, float | None]
"""Values by client, None for missing ones."""


class Quantity(NamedTuple):
    """A value in a run's summary, as named by a metric of a table.

    Attributes
    ----------
    split, metric, statistic : str
        The split, the name of the metric, and the statistic over clients.
    group : str or None
        Group of clients of the statistic; None for all.
    client : str or None
        The single client whose value to read; None for all.
    """

    split: str
    metric: str
    statistic: str
    group: str | None
    client: str | None = None

    @classmethod
    def of(cls, text: str) -> Quantity:
        """Parse ``<split>/<metric>[:statistic][@group]``, ``peers/<measure>``, ``graph/<measure>`` or ``run/<cost>``.

        Raises ValueError for anything else.
        """
        first, _, measure = text.partition("/")
        if measure in {PEERS: MEASURES, GRAPH: AGREEMENT, RUN: TOOK}.get(first, ()):
            return cls(first, measure, "mean", None)
        parts = _VALUE.fullmatch(text)
        if parts is None:
            raise ValueError(
                "must be '<split>/<metric>', optionally with ':mean', ':std', ':best5' or ':worst5' (over clients) and "
                "'@group', with ':rounds', ':bytes' or ':seconds' (until the mean reaches the target) or "
                "':first-rounds' and so on (until the first client does), or with ':fairness' "
                f"(against [table] stand-alone); or 'peers/' and one of {', '.join(MEASURES)}; or 'graph/' and one of "
                f"{', '.join(AGREEMENT)}; or 'run/' and one of {', '.join(TOOK)}; got '{text}'"
            )
        if parts["group"] and parts["statistic"] in TO_TARGET:
            raise ValueError(f"'{text}': the cost to reach a target is known for all clients, not for a group")
        if parts["group"] and parts["statistic"] == FAIRNESS:
            raise ValueError(f"'{text}': fairness is known for all clients, not for a group")
        try:
            direction(parts["metric"])
        except ExperimentError as error:
            raise ValueError(f"'{text}': {error}") from None
        return cls(parts["split"], parts["metric"], parts["statistic"] or "mean", parts["group"])

    def at(self, client: str | None, suffix: str) -> Quantity:
        """Return the same quantity for one client, and for the model whose metrics end with ``suffix``.

        Costs of a run do not change. Raises ValueError if the quantity is not defined.
        """
        if self.split in (RUN, GRAPH):
            return self
        if suffix and self.split == PEERS:
            raise ValueError(f"'{self}' has no suffix '{suffix}': it compares the models of peers, not metrics")
        quantity = self._replace(metric=self.metric + suffix)
        if client is None:
            return quantity
        if self.split == PEERS or self.statistic != "mean" or self.group:
            raise ValueError(f"'{self}' is defined over several clients, not for client '{client}' alone")
        return quantity._replace(client=client)

    def __str__(self) -> str:
        """Format as in a table, followed by the client, if any."""
        statistic = "" if self.statistic == "mean" else f":{self.statistic}"
        group = f"@{self.group}" if self.group else ""
        return f"{self.split}/{self.metric}{statistic}{group}{f' of {self.client}' if self.client else ''}"

    @property
    def has_course(self) -> bool:
        """Whether a run has a value after every evaluation."""
        return self.split not in (PEERS, GRAPH, RUN) and self.statistic not in (*TO_TARGET, FAIRNESS)

    @property
    def is_count(self) -> bool:
        """Whether values are whole numbers, such as rounds, minibatches or examples."""
        if self.split == RUN:
            return self.metric in ("rounds", "minibatches", "exchanges")
        return self.statistic in ("rounds", "first-rounds") or (self.split == PEERS and self.metric in COUNTS)

    @property
    def is_share(self) -> bool:
        """Whether values are usually given in per cent, such as accuracies, and differences in percentage points."""
        return self.has_course and is_share(self.metric)

    @property
    def better(self) -> Literal["higher", "lower"] | None:
        """Which values are better; None if neither."""
        if self.split == GRAPH:
            return "higher"
        if self.split in (PEERS, RUN) or self.statistic == "std":
            return None
        if self.statistic in TO_TARGET:
            return "lower"
        return "higher" if self.statistic == FAIRNESS else direction(self.metric)

    def value(self, summary: Mapping[str, Any] | None) -> float | None:
        """Read the value from a run's summary; None if it was not measured."""
        split, name, statistic, group, client = self
        if summary is None:
            return None
        if statistic in TO_TARGET:
            where, who = TO_TARGET[statistic]
            value = summary.get(where, {}).get(f"{split}/{name}", {}).get(who)
        elif split == RUN:
            value = _cost(summary, name)
        elif client is not None:
            value = self.by_client(summary).get(client)
        elif split in (PEERS, GRAPH):
            value = summary.get(split, {}).get(name)
        elif group is not None:
            value = summary.get("per_group", {}).get(split, {}).get(group, {}).get(name, {}).get(statistic)
        else:
            value = summary["metrics"].get(split, {}).get(name, {}).get(statistic)
        return None if value is None or not math.isfinite(value) else float(value)

    def by_client(self, summary: Mapping[str, Any]) -> ClientValues:
        """Read the value of each client from a run's summary; empty if it was not measured."""
        values: ClientValues = summary.get("per_client", {}).get(self.split, {}).get(self.metric, {})
        return values

    def by_round(self, path: Path) -> dict[int, ClientValues]:
        """Read the value of each client after each evaluation of the run in folder ``path``."""
        lines = RunFolder(path).evaluations(self.split)
        return {line["round"]: line["per_client"][self.metric] for line in lines if self.metric in line["per_client"]}


def validation_quantity(text: str) -> Quantity:
    """Parse a criterion for choosing settings. Raises ValueError if it is not on validation data."""
    quantity = Quantity.of(text)
    if quantity.split != "validation":
        raise ValueError(
            f"'{text}': settings must be chosen on validation data, to leave test data for their evaluation; use "
            f"validation/{quantity.metric}"
        )
    if quantity.better is None:
        raise ValueError(f"'{text}' has no better or worse values to choose by")
    return quantity


def _cost(summary: Mapping[str, Any], what: str) -> float | None:
    """Return one of ``TOOK``; None if the run does not report it."""
    if what == "bytes":
        return float(summary["bytes_down"] + summary["bytes_up"])
    if what == "bytes-per-client":
        down, up = (summary.get(f"bytes_{way}_per_client") for way in ("down", "up"))
        return None if down is None or up is None else down + up
    if what in ("minibatches", "passes"):
        value: float | None = summary.get("training", {}).get(what)
        return value
    return summary.get(what.replace("-", "_"))


@lru_cache(maxsize=1024)
def over_rounds(path: Path, quantity: Quantity, rounds: tuple[int, int]) -> ClientValues:
    """Average each client's values over the evaluations between two rounds, inclusive.

    Results are cached: the run must be finished.
    """
    first, last = rounds
    by_client: dict[str, list[float]] = {}
    for number, values in quantity.by_round(path).items():
        for name, value in values.items():
            if first <= number <= last and value is not None:
                by_client.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in by_client.items()}
