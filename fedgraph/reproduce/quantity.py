"""The quantity of a run that a metric of a table names: split, name, statistic over clients, maybe group or client."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

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
        """Whether values of a run are whole numbers: rounds, minibatches, or examples."""
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
