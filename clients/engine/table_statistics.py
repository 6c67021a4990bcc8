"""Statistics of clients' tables that an experiment asks for: ranges, and sums over rows.

What leaves is recorded over all runs, see :class:`fedgraph.privacy.Ledger`: the loss of noisy statistics, and the rows
of exact ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedgraph.algorithms.fedngm_messages import PhaseRequest
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.table_rows import TableRows
from fedgraph.data.encoding import needs_range
from fedgraph.data.schema import Schema, schema_as_json
from fedgraph.graphical import SharedStatistics, shared_statistics
from fedgraph.graphical.recovery import UnitSums, with_noise
from fedgraph.privacy import Budget
from fedgraph.privacy.secret import KeyPair, masked
from fedgraph.support.errors import DataError, ReplyError, quoted
from fedgraph.training import ClientState

Asked = Literal["ranges", "sums"]


def loss_in_all(settings: FedNGMSettings) -> list[str]:
    """Describe the noise of all that a run would disclose; empty without."""
    loss = settings.disclosed_loss
    if loss is None:
        return []
    epsilon, delta = loss
    what = "ranges and sums have" if len(settings.disclosed) > 1 else f"{settings.disclosed[0]} have"
    return [f"({what} an epsilon of {epsilon:g}{f' and a delta of {delta:g}' if delta else ''} in all)"]


@dataclass(frozen=True)
class TableStatistics:
    """Statistics of the common features of ``clients``, for a request."""

    node: Node
    request: PhaseRequest
    clients: tuple[str, ...]
    settings: FedNGMSettings
    common: Schema
    held: TableRows

    def ranges(self) -> list[str]:
        """Return low, high and possibly median of each client's numeric features, as JSON."""
        return [self._ranges_of(name).as_json() for name in self.clients]

    def keys(self) -> list[str]:
        """Create a public key per client, hexadecimal, for the next sums only."""
        self._check_asked("sums")
        pairs = [KeyPair.create() for _ in self.clients]
        private = torch.tensor([list(pair.private_bytes()) for pair in pairs], dtype=torch.uint8)
        self._secrets.save(self.clients, 0, {"private": private}, 0)
        return [pair.public.hex() for pair in pairs]

    def sums(self) -> Tensor:
        """Return sums over the training rows of each client, ``[clients, numbers]``.

        They are masked if the experiment says so, which consumes the keys.
        """
        found = [self._summed(name) for name in self.clients]
        if not self.settings.recovery.masks:
            return torch.stack(found)
        if self.request.keys is None:
            raise ReplyError("the request for sums lacks the keys of masks")
        private = self._secrets.load(self.clients, 1, {"private": torch.zeros(32, dtype=torch.uint8)})["private"]
        if gone := [name for name, row in zip(self.clients, private, strict=True) if not row.any()]:
            raise ReplyError(
                f"the node no longer has the keys of masks of {quoted(gone)}: its state folder was removed, or the "
                "sums were asked for twice"
            )
        self._secrets.save(self.clients, 0, {"private": torch.zeros_like(private)}, 0)
        pairs = [KeyPair.from_private_bytes(bytes(row.tolist())) for row in private]
        by_client = zip(found, self.clients, pairs, strict=True)
        return torch.stack(
            [masked(sums, name, pair, self.request.keys, self.request.run) for sums, name, pair in by_client]
        )

    def _ranges_of(self, name: str) -> SharedStatistics:
        """Return a client's ranges, none if the experiment asks for none."""
        settings, least = self.settings, self.node.limits.least_rows
        values = self.held.values(name, self.common)["train"]
        few = settings.statistics.noise is None and len(values) < least
        if few or "ranges" not in settings.disclosed:
            return SharedStatistics()

        def told() -> str:
            return shared_statistics(values, self.common, settings.scaling, settings.statistics, least).as_json()

        text = self._sent(name, "ranges", settings.scaling.as_table(), told)
        return SharedStatistics.from_json(text, self.common)

    def _summed(self, name: str) -> Tensor:
        """Return sums over a client's rows, ``[numbers]``."""
        self._check_asked("sums")
        noise, least = self.settings.statistics.noise, self.node.limits.least_rows
        if noise is not None:
            self._check_units_of_one_row()
        else:
            self._check_ranges(name)
        rows = self.held.rows(name, self.common, self.request.scaling)
        units = rows.units("train")
        if len(units) < least:
            raise DataError(
                f"client '{name}' has fewer than {least} training rows, the minimum for sums of its node ([agreement] "
                "least-rows)"
            )

        def told() -> Tensor:
            sums = UnitSums.of(units, self.common)
            return (sums if noise is None else with_noise(sums, self.common, noise)).flat()

        # Sums that were masked are not sent without masks, unless noise hides their rows.
        hidden = noise is None and self.settings.recovery.masks
        found: Tensor = self._sent(name, "sums", [rows.encoding.scaling.as_json(), hidden], told)
        return found

    def _sent(self, name: str, what: Asked, how: Any, told: Callable[[], Any]) -> Any:
        """Return statistics of a client's training rows, ``how`` they were requested, and record that they leave."""
        settings = self.settings
        noise = settings.statistics.noise
        # Names that the experiment gives are counted together; simulations divide tables among thousands.
        holder = "table" if self.held.divides_one_table and not self.node.simulated else ""
        rows, release = self.held.identities(name), [what, self.held.reading, schema_as_json(self.common), how]
        if noise is not None:
            budget = Budget(noise.loss, settings.disclosed_loss or ())
            ledger = self.node.ledger(self.request.run, name, "statistics", holder)
            return ledger.once(rows, [*release, settings.statistics.as_table()], budget, told)
        self.node.ledger(self.request.run, name, what, holder).exact(rows, release, self.node.limits.least_rows)
        return told()

    def _check_asked(self, what: Asked) -> None:
        """Raise ReplyError for statistics that the experiment does not ask for."""
        if what not in self.settings.disclosed:
            raise ReplyError(f"the request is for {what} of rows, for which the experiment does not ask")

    def _check_ranges(self, name: str) -> None:
        """Raise ExperimentError for ranges of the request that single out few rows, as units beyond are clipped."""
        agreement, scaling = self.node.agreement, self.request.scaling
        if agreement is None or scaling is None:
            return
        values = self.held.values(name, self.common)["train"]
        for part in self.common.features:
            if needs_range(part) and part.name in scaling.ranges:
                low, high = scaling.ranges[part.name][0], scaling.ranges[part.name][-1]
                column = values[:, self.common.value_slices[part.name]]
                inside = {"above the low": (column > low).any(1), "below the high": (column < high).any(1)}
                agreement.check_rows(name, {f"rows {end} end of a range": int(n.sum()) for end, n in inside.items()})

    def _check_units_of_one_row(self) -> None:
        """Check that the units of a row depend on no other row, which the noise on sums assumes.

        A single row can move a range that is measured on the client's own rows, and with it the units of all rows.
        Raises DataError for numbers with such a range.
        """
        given = {} if self.request.scaling is None else self.request.scaling.ranges
        own = [part.name for part in self.common.features if needs_range(part) and part.name not in given]
        if own:
            raise DataError(
                f"sums with noise need common ranges, and {quoted(own)} would be scaled by the client's own, which one "
                'row can move for all others: set source of [fedngm.scaling], as to "shared-ranges", or give ranges'
            )

    @property
    def _secrets(self) -> ClientState:
        return self.node.state(self.request.run, "masks")
