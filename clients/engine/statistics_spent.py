"""What noisy statistics of a client have disclosed in one run: epsilons and deltas of its releases add up."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fedgraph.graphical import Consent
from fedgraph.privacy.noise import CountNoiseSettings
from fedgraph.support.files import file_name, load_json, locked, write_atomically


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
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix(".lock")):
            spent = load_json(path) if path.exists() else {}
            others = [loss for name, loss in spent.items() if name != release]
            consent.check_total(self.client, _total(others), noise.loss)
            if release not in spent:
                write_atomically(path, json.dumps({**spent, release: noise.loss}).encode())


def _total(losses: Collection[tuple[float, float]]) -> tuple[float, float]:
    return math.fsum(epsilon for epsilon, _ in losses), math.fsum(delta for _, delta in losses)
