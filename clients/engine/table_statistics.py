"""What clients tell of the values of their tables, as far as their node consents: ranges, and sums over rows.

With noise, the same is told whenever the same is asked of the same rows: an average over fresh noise takes it away.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.engine.node import Node
from clients.engine.table_rows import TableRows
from fedgraph.data.schema import Schema, schema_as_json
from fedgraph.graphical import SharedStatistics, check_consent, shared_statistics
from fedgraph.graphical.recovery import UnitSums, with_noise
from fedgraph.methods.fedngm import FedNGMSettings, PhaseRequest
from fedgraph.privacy.secret import KeyPair, masked
from fedgraph.support.errors import DataError, ReplyError
from fedgraph.support.files import json_digest, load_state, save_state, write_atomically
from fedgraph.training import ClientState


@dataclass(frozen=True)
class TableStatistics:
    """Of the common features of ``clients``, in answer to a request."""

    node: Node
    request: PhaseRequest
    clients: tuple[str, ...]
    settings: FedNGMSettings
    common: Schema
    held: TableRows

    def ranges(self) -> list[str]:
        """Of each client: low, high and perhaps median of its numbers."""
        return [self._told(name).as_json() for name in self.clients]

    def keys(self) -> list[str]:
        """Of each client: a public key, made for the next sums alone."""
        self.node.consent.check(self.settings.statistics.noise, "sums")
        pairs = [KeyPair.create() for _ in self.clients]
        private = torch.tensor([list(pair.private_bytes()) for pair in pairs], dtype=torch.uint8)
        self._secrets.save(self.clients, 0, {"private": private}, 0)
        return [pair.public.hex() for pair in pairs]

    def sums(self) -> Tensor:
        """Over the training rows of each client, as far as this node consents, ``[clients, numbers]``.

        With masks, where the experiment wants them, for which the keys are used up.
        """
        found = [self._summed(name) for name in self.clients]
        if not self.settings.recovery.masks:
            return torch.stack(found)
        if self.request.keys is None:
            raise ReplyError("the request for sums lacks the keys of masks")
        private = self._secrets.load(self.clients, 1, {"private": torch.zeros(32, dtype=torch.uint8)})["private"]
        self._secrets.save(self.clients, 0, {"private": torch.zeros_like(private)}, 0)
        pairs = [KeyPair.from_private_bytes(bytes(row.tolist())) for row in private]
        told = zip(found, self.clients, pairs, strict=True)
        return torch.stack([masked(sums, name, pair, self.request.keys, self.request.run) for sums, name, pair in told])

    def _told(self, name: str) -> SharedStatistics:
        """A client's ranges."""
        settings, consent = self.settings, self.node.consent
        # What was told once may be no longer.
        check_consent(settings.scaling, settings.statistics, consent)
        values = self.held.rows(name, self.common).values["train"]
        kept = self._released(name, values, settings.scaling.as_table())
        if kept.is_file():
            return SharedStatistics.from_json(kept.read_text(encoding="utf-8"), self.common)
        told = shared_statistics(values, self.common, settings.scaling, settings.statistics, consent)
        if settings.statistics.noise is not None:
            write_atomically(kept, told.as_json().encode())
        return told

    def _summed(self, name: str) -> Tensor:
        """Sums over a client's rows, ``[numbers]``."""
        noise, consent = self.settings.statistics.noise, self.node.consent
        consent.check(noise, "sums")
        units = self.held.rows(name, self.common).units("train")
        if len(units) < consent.least_rows:
            raise DataError(
                f"client '{name}' has fewer than {consent.least_rows} rows, and its node tells sums of no fewer "
                "(node config consent-rows)"
            )
        sums = UnitSums.of(units, self.common)
        if noise is None:
            return sums.flat()
        kept = self._released(name, units.numpy(), "sums").with_suffix(".safetensors")
        if not kept.is_file():
            save_state(kept, {"sums": with_noise(sums, self.common, noise).flat()})
        return load_state(kept)["sums"]

    def _released(self, name: str, values: NDArray[Any], purpose: Any) -> Path:
        """Where what was told of a client's values with noise is kept."""
        rows = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
        asked = [name, rows, schema_as_json(self.common), purpose, self.settings.statistics.as_table()]
        return self.node.released_dir / "statistics" / f"{json_digest(asked)}.json"

    @property
    def _secrets(self) -> ClientState:
        return self.node.state(self.request.run, "masks")
