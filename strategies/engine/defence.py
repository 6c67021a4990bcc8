"""Checks of the replies of a round before aggregation: the table ``[defence]``."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgraph.defence import DefenceTable, bounded, counts_notes, krum_scores, lengths, robust_average
from fedgraph.federation import Federation
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError, quoted
from fedgraph.support.files import State

log = logging.getLogger("fedgraph")

_MEMORY = 10
"""Window of the running median, in rounds."""


class Defence:
    """Warns about unusual updates, clips them, and excludes outliers.

    Raises ExperimentError when there are too few clients for Krum.

    Parameters
    ----------
    table : ``[defence]``.
    trainable : number of trained leading columns of a model; running statistics, after them, have a separate bound.
    """

    def __init__(self, table: DefenceTable, federation: Federation, trainable: int) -> None:
        self.table = table
        self._federation, self._trainable = federation, trainable
        self._medians: dict[str, list[float]] = {}
        self._counts: dict[str, Counter[str]] = {"unusual": Counter(), "clipped": Counter(), "left-out": Counter()}
        count = len(federation.names)
        if table.krum and count < 2 * self._attackers(count) + 3:
            raise ExperimentError(
                f"[defence] krum = {table.krum} of {count} clients are {self._attackers(count)} attackers, for which "
                f'Krum needs at least {2 * self._attackers(count) + 3} clients: lower it, or use average = "median"'
            )

    def replies(self, server_round: int, replies: Replies, starts: Tensor) -> Replies:
        """Return the replies to aggregate.

        Parameters
        ----------
        replies : replies of the clients that take part.
        starts : their initial models, ``[present, parameters]``.
        """
        sent = replies.tensors.get("parameters")
        if self.watches and replies.means:
            self._watch_means(server_round, replies, starts)
        if not self.watches or sent is None or sent.shape != starts.shape:
            return replies
        tensors, kept = self.judged(server_round, replies.names, replies.tensors, starts)
        if kept is None:
            return replies if tensors is replies.tensors else replace(replies, tensors=tensors)
        return Replies.of(
            self._federation,
            replies.positions[kept],
            {name: tensor[kept] for name, tensor in tensors.items()},
            {name: values[kept] for name, values in replies.metrics.items()},
            replies.absent,
        )

    @property
    def watches(self) -> bool:
        """Whether updates are checked."""
        return bool(self.table.warn or self.table.clip or self.table.krum)

    def judged(
        self, server_round: int, names: Sequence[str], tensors: Mapping[str, Tensor], starts: Tensor
    ) -> tuple[Mapping[str, Tensor], Tensor | None]:
        """Check tensors ``[clients, ...]`` of clients, or of nodes.

        ``parameters`` are checked by their distance from ``starts``, other tensors by their norm.

        Returns
        -------
        tensors : mapping of str to Tensor
            With clipped outliers; the same object without any.
        kept : Tensor or None
            Positions of the remaining clients, int64; None for all.
        """
        others = {name: rows for name, rows in tensors.items() if rows.is_floating_point() and name != "parameters"}
        if not (self.table.clip or self.table.krum):
            for part, rows, start in self._halves(tensors["parameters"], starts):
                self._warned(server_round, part, names, lengths(rows, start))
            for part, rows in others.items():
                self._warned(server_round, part, names, lengths(rows))
            return tensors, None
        update = tensors["parameters"] - starts
        parts = {"parameters": update[:, : self._trainable], "statistics": update[:, self._trainable :], **others}
        found = {part: self._judged_part(server_round, part, names, rows) for part, rows in parts.items()}
        kept = self._near(server_round, names, found["parameters"])
        if all(found[part] is rows for part, rows in parts.items()):
            return tensors, kept
        shorter = torch.cat([found["parameters"], found["statistics"]], dim=1)
        # All other models are bitwise unchanged.
        parameters = torch.where((shorter != update).any(1, keepdim=True), starts + shorter, tensors["parameters"])
        return {**tensors, **{name: found[name] for name in others}, "parameters": parameters}, kept

    def averages(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return robust averages ``[targets, parameters]`` of rows, with weights ``[targets, clients]``."""
        assert self.table.average != "mean"
        return robust_average(rows, weights, self.table.average, self.table.trim)

    def facts(self) -> dict[str, Any]:
        """Return entries of ``summary.json``: numbers of rounds in which a client was unusual, clipped or excluded."""
        found = {what: dict(sorted(counts.items())) for what, counts in self._counts.items() if counts}
        return {"defence": found} if found else {}

    def notes(self, rounds: int) -> list[str]:
        """Return notes on bounded numbers of examples, and on clients that were left out in all ``rounds``."""
        federation = self._federation
        found = counts_notes(federation.names, federation.num_examples["train"], federation.weights)
        never = [name for name, count in self._counts["left-out"].items() if count == rounds]
        if not never:
            return found
        return [
            *found,
            f"[defence] krum left out {quoted(sorted(never))} in every round: no model has what they learned, and "
            "where each client has its own model, theirs is the initial one. They count in the mean results",
        ]

    def state(self) -> State:
        """Return the state for a resumed run."""
        return {"medians": self._medians, "counts": {what: dict(counts) for what, counts in self._counts.items()}}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        self._medians = {part: list(values) for part, values in state.get("medians", {}).items()}
        self._counts |= {what: Counter(counts) for what, counts in state.get("counts", {}).items()}

    def _watch_means(self, server_round: int, replies: Replies, starts: Tensor) -> None:
        """Warn about unusual means of nodes, whose clients all started with the same model."""
        names = self._federation.names
        titles = [
            f"{names[first]} and {len(others)} others of its node" if others else names[first]
            for first, *others in replies.means
        ]
        means = torch.stack(list(replies.means.values()))
        self.judged(server_round, titles, {"parameters": means}, starts[:1].expand_as(means))

    def _halves(self, models: Tensor, starts: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield trained parameters and running statistics of models, with their initial values."""
        yield "parameters", models[:, : self._trainable], starts[:, : self._trainable]
        yield "statistics", models[:, self._trainable :], starts[:, self._trainable :]

    def _judged_part(self, server_round: int, part: str, names: Sequence[str], rows: Tensor) -> Tensor:
        """Compare the norms of rows with the usual one; warn, and clip them if set."""
        length = lengths(rows)
        usual = self._warned(server_round, part, names, length)
        if usual is None or not self.table.clip:
            return rows
        bound = self.table.clip * usual
        self._counts["clipped"].update(names[place] for place in (length > bound).nonzero().flatten().tolist())
        return bounded(rows, bound)

    def _warned(self, server_round: int, part: str, names: Sequence[str], length: Tensor) -> float | None:
        """Warn about unusual norms, and return the usual one, or None while unknown."""
        usual = self._usual(part, length)
        if usual is None or not self.table.warn:
            return usual
        unusual = self._counts["unusual"]
        far = [names[place] for place in (length > self.table.warn * usual).nonzero().flatten().tolist()]
        new = [name for name in far if name not in unusual]
        unusual.update(far)
        if new:
            log.warning(
                "round %d: the %s of %s changed up to %.3g times as much as the median of all clients: check these "
            "clients, or limit updates by [defence]",
                server_round, part, quoted(new), float(length.max()) / usual,
            )  # fmt: skip
        return usual

    def _usual(self, part: str, length: Tensor) -> float | None:
        """Return the running median of norms; zero updates, of clients without examples, are ignored."""
        past = self._medians.setdefault(part, [])
        moved = length[length > 0]
        # Undefined for one or two clients.
        if len(moved) > 2:
            past.append(float(moved.median()))
            del past[:-_MEMORY]
        return float(torch.tensor(past, dtype=torch.float64).median()) if past else None

    def _near(self, server_round: int, names: Sequence[str], updates: Tensor) -> Tensor | None:
        """Return positions of the clients selected by Krum; None for all."""
        attackers = min(self._attackers(len(names)), (len(names) - 3) // 2)
        if attackers < 1:
            return None
        order = krum_scores(updates, attackers).argsort(stable=True)
        out = [names[place] for place in order[len(order) - attackers :].tolist()]
        self._counts["left-out"].update(out)
        log.info("round %d: Krum excludes %s from the aggregation", server_round, quoted(out))
        return order[: len(order) - attackers].sort().values

    def _attackers(self, count: int) -> int:
        return math.ceil(self.table.krum * count - 1e-9)
