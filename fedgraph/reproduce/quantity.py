"""What a metric of a table reads from a run: a split, a name, a statistic over clients, a group of them or one."""

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
"""Statistics of what it took to reach a target: where ``summary.json`` has them, and who must reach it."""

FAIRNESS = "fairness"
"""The statistic that correlates clients with what they reach in the stand-alone row."""

PEERS = "peers"
"""Stands in place of a split before what two peers differ by, the mean over all pairs."""

RUN = "run"
"""Stands in place of a split before what a whole run took."""

TOOK = ("rounds", "minibatches", "passes", "bytes", "bytes-per-client", "models-per-round")
"""Rounds; minibatches of all clients, and how often those are all that everybody has (``LocalWork``); bytes that went
down to the nodes of the run and came up from them, which depends on who shares a node (``Traffic``); bytes down and up
of a client that has a node to itself, and models that a round of training moves then, which are the method's."""


class Quantity(NamedTuple):
    """What a metric of a table reads from a run's summary.

    group  : the clients that count; all of them when None.
    client : the one whose value counts, where it is not all of them.
    """

    split: str
    metric: str
    statistic: str
    group: str | None
    client: str | None = None

    @classmethod
    def of(cls, text: str) -> Quantity:
        """Read ``<split>/<metric>[:statistic][@group]``, ``peers/<measure>`` or ``run/<what it took>``.

        Raises ValueError for anything else.
        """
        first, _, measure = text.partition("/")
        if (first == PEERS and measure in MEASURES) or (first == RUN and measure in TOOK):
            return cls(first, measure, "mean", None)
        found = _VALUE.fullmatch(text)
        if found is None:
            raise ValueError(
                "is '<split>/<metric>', if need be with ':mean', ':std', ':best5' or ':worst5' (over clients) and "
                "with '@group', with ':rounds', ':bytes' or ':seconds' (until the mean reaches the target) or "
                "':first-rounds' and so on (until the first client does), or with ':fairness' "
                f"(against [table] stand-alone); or 'peers/' and one of {', '.join(MEASURES)}; or 'run/' and one of "
                f"{', '.join(TOOK)}; got '{text}'"
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
        """The same of one client, and of the model whose metrics end with ``suffix``; what a run took is of all.

        Raises ValueError where there is no such thing.
        """
        if self.split == RUN:
            return self
        if suffix and self.split == PEERS:
            raise ValueError(
                f"'{self}' has no suffix '{suffix}': it compares the peers' models, whatever they measured"
            )
        found = self._replace(metric=self.metric + suffix)
        if client is None:
            return found
        if self.split == PEERS or self.statistic != "mean" or self.group:
            raise ValueError(f"'{self}' is of several clients, so that there is none of client '{client}' alone")
        return found._replace(client=client)

    def __str__(self) -> str:
        """As it is written in a table; with its client, where it is of one."""
        statistic = "" if self.statistic == "mean" else f":{self.statistic}"
        group = f"@{self.group}" if self.group else ""
        return f"{self.split}/{self.metric}{statistic}{group}{f' of {self.client}' if self.client else ''}"

    @property
    def has_course(self) -> bool:
        """Whether a run has a value of it after every round that it measured, and not one in the end alone."""
        return self.split not in (PEERS, RUN) and self.statistic not in (*TO_TARGET, FAIRNESS)

    @property
    def is_count(self) -> bool:
        """Whether a run has a whole number of it: rounds, minibatches, or examples."""
        if self.split == RUN:
            return self.metric in ("rounds", "minibatches")
        return self.statistic in ("rounds", "first-rounds") or (self.split == PEERS and self.metric in COUNTS)

    @property
    def better(self) -> Literal["higher", "lower"] | None:
        """Which values are the better ones; None for a quantity that has no better and worse."""
        if self.split in (PEERS, RUN) or self.statistic == "std":
            return None
        if self.statistic in TO_TARGET:
            return "lower"
        return "higher" if self.statistic == FAIRNESS else direction(self.metric)
