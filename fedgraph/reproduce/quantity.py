"""The quantity of a run that a metric of a table names, and its values: over clients, of each, and round by round."""

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
from fedgraph.training import direction

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
"""Statistics of the cost to reach a target: their key in ``summary.json``, and who must reach it."""

FAIRNESS = "fairness"
"""Statistic that correlates clients with their values in the stand-alone row."""

PEERS = "peers"
"""Pseudo split for differences between peers, as means over all pairs."""

GRAPH = "graph"
"""Pseudo split for the learned graph against groups of clients (:meth:`fedgraph.graph.ClientGraph.agreement`)."""

AGREEMENT = ("precision", "recall", "weight")

RUN = "run"
"""Pseudo split for the cost of a whole run."""

TOOK = (
    "rounds", "minibatches", "passes", "bytes", "bytes-per-client", "models-per-round", "exchanges",
    "training-bytes-per-owner", "core-seconds",
)  # fmt: skip
"""Costs of a run: rounds; minibatches of all clients, and passes over all data (``LocalWork``); traffic.

``bytes`` were sent to the nodes of the run and received from them, which depends on which clients share a node
(``Traffic``). ``bytes-per-client`` and ``models-per-round`` count a client on a node of its own, and are those of the
method. ``exchanges`` are requests to all nodes; ``training-bytes-per-owner`` are of embeddings and gradients, without
those of test samples. ``core-seconds`` are the processor time of a run in one process, methods of rounds alone.
"""


ClientValues = dict[str, float | None]
"""Values by client; None for a client without one."""


class Quantity(NamedTuple):
    """The value that a metric of a table reads from a run's summary.

    Attributes
    ----------
    split, metric, statistic : str
        The split, the name of the metric, and the statistic over clients.
    group : str or None
        Group of clients that the statistic is over; None for all.
    client : str or None
        The only client whose value counts; None for all.
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
        found = _VALUE.fullmatch(text)
        if found is None:
            raise ValueError(
                "is '<split>/<metric>', if need be with ':mean', ':std', ':best5' or ':worst5' (over clients) and "
                "with '@group', with ':rounds', ':bytes' or ':seconds' (until the mean reaches the target) or "
                "':first-rounds' and so on (until the first client does), or with ':fairness' "
                f"(against [table] stand-alone); or 'peers/' and one of {', '.join(MEASURES)}; or 'graph/' and one of "
                f"{', '.join(AGREEMENT)}; or 'run/' and one of {', '.join(TOOK)}; got '{text}'"
            )
        if found["group"] and found["statistic"] in TO_TARGET:
            raise ValueError(f"'{text}': what it takes to a target is counted for all clients, not for a group")
        if found["group"] and found["statistic"] == FAIRNESS:
            raise ValueError(f"'{text}': fairness is that of all clients, not of a group")
        try:
            direction(found["metric"])
        except ExperimentError as error:
            raise ValueError(f"'{text}': {error}") from None
        return cls(found["split"], found["metric"], found["statistic"] or "mean", found["group"])

    def at(self, client: str | None, suffix: str) -> Quantity:
        """Return the same quantity for one client, and for the model whose metrics end with ``suffix``.

        The cost of a run is the same for all. Raises ValueError where there is no such quantity.
        """
        if self.split in (RUN, GRAPH):
            return self
        if suffix and self.split == PEERS:
            raise ValueError(
                f"'{self}' has no suffix '{suffix}': it compares the peers' models, whatever they measured"
            )
        found = self._replace(metric=self.metric + suffix)
        if client is None:
            return found
        if self.split == PEERS or self.statistic != "mean" or self.group:
            raise ValueError(f"'{self}' is of several clients together: client '{client}' has none")
        return found._replace(client=client)

    def __str__(self) -> str:
        """Format as in a table, with the client if it is that of one."""
        statistic = "" if self.statistic == "mean" else f":{self.statistic}"
        group = f"@{self.group}" if self.group else ""
        return f"{self.split}/{self.metric}{statistic}{group}{f' of {self.client}' if self.client else ''}"

    @property
    def has_course(self) -> bool:
        """Whether a run has a value after every evaluation, and not only at its end."""
        return self.split not in (PEERS, GRAPH, RUN) and self.statistic not in (*TO_TARGET, FAIRNESS)

    @property
    def is_count(self) -> bool:
        """Whether values of a run are whole numbers, such as rounds, minibatches or examples."""
        if self.split == RUN:
            return self.metric in ("rounds", "minibatches", "exchanges")
        return self.statistic in ("rounds", "first-rounds") or (self.split == PEERS and self.metric in COUNTS)

    @property
    def better(self) -> Literal["higher", "lower"] | None:
        """Which values are better; None for a quantity without an order of merit."""
        if self.split == GRAPH:
            return "higher"
        if self.split in (PEERS, RUN) or self.statistic == "std":
            return None
        if self.statistic in TO_TARGET:
            return "lower"
        return "higher" if self.statistic == FAIRNESS else direction(self.metric)

    def value(self, summary: Mapping[str, Any] | None) -> float | None:
        """Read the number from a run's summary; None if the run has not measured it."""
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
        """Read each client's value from a run's summary; empty if it was not measured."""
        values: ClientValues = summary.get("per_client", {}).get(self.split, {}).get(self.metric, {})
        return values

    def by_round(self, path: Path) -> dict[int, ClientValues]:
        """Read each client's value after each evaluation of the run in folder ``path``."""
        lines = RunFolder(path).evaluations(self.split)
        return {line["round"]: line["per_client"][self.metric] for line in lines if self.metric in line["per_client"]}


def validation_quantity(text: str) -> Quantity:
    """Parse a quantity that settings can be chosen by. Raises ValueError where it is not of validation data."""
    quantity = Quantity.of(text)
    if quantity.split != "validation":
        raise ValueError(
            f"'{text}': settings are chosen on validation data alone, or test data would no longer tell how good they "
            f"are; write validation/{quantity.metric}"
        )
    if quantity.better is None:
        raise ValueError(f"'{text}' has no better and no worse value")
    return quantity


def _cost(summary: Mapping[str, Any], what: str) -> float | None:
    """Return one of ``TOOK``; None where the run, or one of an earlier version, does not report it."""
    if what == "bytes":
        return float(summary["bytes_down"] + summary["bytes_up"])
    if what == "bytes-per-client":
        down, up = (summary.get(f"bytes_{way}_per_client") for way in ("down", "up"))
        return None if down is None or up is None else down + up
    if what in ("minibatches", "passes"):
        found: float | None = summary.get("training", {}).get(what)
        return found
    return summary.get(what.replace("-", "_"))


@lru_cache(maxsize=1024)
def over_rounds(path: Path, quantity: Quantity, rounds: tuple[int, int]) -> ClientValues:
    """Average each client's values over the evaluations from the first to the last of ``rounds``.

    Results are cached: the run must be finished.
    """
    first, last = rounds
    found: dict[str, list[float]] = {}
    for number, values in quantity.by_round(path).items():
        for name, value in values.items():
            if first <= number <= last and value is not None:
                found.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in found.items()}
