"""Statistics of clients' tables that their node consents to send: ranges, and sums over rows.

Noise is drawn once per request and rows and then repeated, as averaging over fresh noise would remove it. Releases with
different noise add up, to what the node consents to in a run at most.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.algorithms.fedngm_messages import PhaseRequest
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.table_rows import TableRows
from fedgraph.data.encoding import needs_range
from fedgraph.data.schema import Schema, schema_as_json
from fedgraph.federation import listed
from fedgraph.graphical import Consent, SharedStatistics, check_consent, shared_statistics
from fedgraph.graphical.recovery import UnitSums, with_noise
from fedgraph.privacy.noise import CountNoiseSettings
from fedgraph.privacy.secret import KeyPair, masked
from fedgraph.support.errors import DataError, IdentityError, ReplyError, quoted
from fedgraph.support.files import (
    file_name,
    json_digest,
    load_json,
    load_state,
    locked,
    private_folder,
    run_state,
    save_state,
    write_atomically,
)
from fedgraph.training import ClientState

_CONSENT = "FEDGRAPH_CONSENT"


def read_consent(node: Node) -> Consent:
    """Return the statistics that a node consents to send (node config ``consent``, else ``FEDGRAPH_CONSENT``).

    ``consent`` is a comma-separated list of ``ranges`` and ``sums``, by default empty; an empty one in the node config
    overrides the environment. ``consent-epsilon``, ``consent-delta`` and ``consent-rows`` are the limits of
    :class:`fedgraph.graphical.statistics.Consent`. Raises IdentityError for invalid entries and limits.
    """
    consented = [entry.strip() for entry in listed(str(node.config.get("consent", os.environ.get(_CONSENT, ""))))]
    unknown = [entry for entry in consented if entry not in ("", "ranges", "sums")]
    if unknown:
        raise IdentityError(
            f"unknown entries of node config 'consent': {', '.join(unknown)}; known are ranges and sums"
        )
    limits = {"consent-epsilon": "max_epsilon", "consent-delta": "max_delta", "consent-rows": "least_rows"}
    try:
        numbers = {name: float(node.config[key]) for key, name in limits.items() if key in node.config}
        # NaN would not limit epsilon.
        fit = all(0 < number < math.inf for number in numbers.values())
    except (TypeError, ValueError):
        fit = False
    if not fit:
        raise IdentityError(f"node config {', '.join(limits)} must be finite numbers above 0")
    if "least_rows" in numbers:
        numbers["least_rows"] = math.ceil(numbers["least_rows"])
    return Consent(ranges="ranges" in consented, sums="sums" in consented, **numbers)  # type: ignore[arg-type]


def loss_in_all(settings: FedNGMSettings, consent: Consent) -> list[str]:
    """Describe the noise of all that a run would disclose, and whether the node refuses it; empty without noise."""
    loss = settings.disclosed_loss
    if loss is None:
        return []
    epsilon, delta = loss
    what = "ranges and sums have" if len(settings.disclosed) > 1 else f"{settings.disclosed[0]} have"
    told = f"{what} an epsilon of {epsilon:g}{f' and a delta of {delta:g}' if delta else ''} in all"
    if not consent.allows(epsilon, delta):
        told += (
            f", and this node refuses more than an epsilon of {consent.max_epsilon:g} and a delta of "
            f"{consent.max_delta:g} in a run (node config consent-epsilon, consent-delta)"
        )
    return [f"({told})"]


@dataclass(frozen=True)
class SpentStatistics:
    """The record of a client's releases in a run, in ``folder`` of the run's state on the node."""

    folder: Path
    client: str

    def spend(self, release: str, noise: CountNoiseSettings, consent: Consent) -> None:
        """Record the release named ``release``, before it leaves; one that is repeated counts once.

        Raises DataError when all releases of the run together are more than the node consents to, and RunError for a
        broken record.
        """
        path = self.folder / f"{file_name(self.client)}.json"
        private_folder(self.folder)
        with locked(path.with_suffix(".lock")):
            spent = load_json(path) if path.exists() else {}
            others = [loss for name, loss in spent.items() if name != release]
            consent.check_total(self.client, _total(others), noise.loss)
            if release not in spent:
                write_atomically(path, json.dumps({**spent, release: noise.loss}).encode(), private=True)


def _total(losses: Collection[tuple[float, float]]) -> tuple[float, float]:
    return math.fsum(epsilon for epsilon, _ in losses), math.fsum(delta for _, delta in losses)


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
        read_consent(self.node).check(self.settings.statistics.noise, "sums", len(self.settings.disclosed))
        pairs = [KeyPair.create() for _ in self.clients]
        private = torch.tensor([list(pair.private_bytes()) for pair in pairs], dtype=torch.uint8)
        self._secrets.save(self.clients, 0, {"private": private}, 0)
        return [pair.public.hex() for pair in pairs]

    def sums(self) -> Tensor:
        """Return sums over the training rows of each client, with this node's consent, ``[clients, numbers]``.

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
        """Return a client's ranges."""
        settings, consent = self.settings, read_consent(self.node)
        # Consent may have been withdrawn.
        check_consent(settings.scaling, settings.statistics, consent, len(settings.disclosed))
        values = self.held.values(name, self.common)["train"]
        kept = self._released(name, values, settings.scaling.as_table())
        self._spend(name, kept, consent)
        if kept.is_file():
            return SharedStatistics.from_json(kept.read_text(encoding="utf-8"), self.common)
        statistics = shared_statistics(values, self.common, settings.scaling, settings.statistics, consent)
        if settings.statistics.noise is not None:
            write_atomically(kept, statistics.as_json().encode(), private=True)
        return statistics

    def _summed(self, name: str) -> Tensor:
        """Return sums over a client's rows, ``[numbers]``."""
        noise, consent = self.settings.statistics.noise, read_consent(self.node)
        consent.check(noise, "sums", len(self.settings.disclosed))
        if noise is not None:
            self._check_units_of_one_row()
        units = self.held.rows(name, self.common, self.request.scaling).units("train")
        if len(units) < consent.least_rows:
            raise DataError(
                f"client '{name}' has fewer than {consent.least_rows} rows, the minimum for sums of its node (node "
                "config consent-rows)"
            )
        sums = UnitSums.of(units, self.common)
        if noise is None:
            return sums.flat()
        kept = self._released(name, units.numpy(), "sums").with_suffix(".safetensors")
        self._spend(name, kept, consent)
        if not kept.is_file():
            save_state(kept, {"sums": with_noise(sums, self.common, noise).flat()})
        return load_state(kept)["sums"]

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

    def _spend(self, name: str, kept: Path, consent: Consent) -> None:
        """Record that the statistics of the file ``kept`` leave, if they have noise."""
        if self.settings.statistics.noise is not None:
            folder = run_state(self.node.state_dir, self.request.run) / "statistics"
            SpentStatistics(folder, name).spend(kept.stem, self.settings.statistics.noise, consent)

    def _released(self, name: str, values: NDArray[Any], purpose: Any) -> Path:
        """Return the file of statistics of a client's values that were sent with noise."""
        rows = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
        requested = [name, rows, schema_as_json(self.common), purpose, self.settings.statistics.as_table()]
        return self.node.released_dir / "statistics" / f"{json_digest(requested)}.json"

    @property
    def _secrets(self) -> ClientState:
        return self.node.state(self.request.run, "masks")
