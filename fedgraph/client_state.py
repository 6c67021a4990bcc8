"""What a client must remember between rounds, kept by its node: one file per client and round, named by run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from fedgraph.state_file import load_state, save_state

_FILE = re.compile(r"round-(\d+)\.safetensors")


class ClientState:
    """State folder of one run on one node.

    A request for round r sees what was kept after an earlier round, never the outcome of a round r that was cut
    short: so a run that resumes after its last finished round finds what it left.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder = folder / _file_name(run)

    def load(self, clients: Sequence[str], before: int, empty: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors ``[clients, ...]`` as kept after each client's latest round below ``before``.

        A client without any gets ``empty`` (tensors without client axis), which also tells the names to read.
        """
        rows = [self._latest(client, before) or empty for client in clients]
        return {name: torch.stack([row[name] for row in rows]) for name in empty}

    def save(self, clients: Sequence[str], after: int, stacked: Mapping[str, Tensor], keep_from: int) -> None:
        """Keep ``stacked`` (``[clients, ...]``) as the state after round ``after``; drop what no resume can need."""
        for position, client in enumerate(clients):
            folder = self._client_folder(client)
            row = {name: tensor[position].clone() for name, tensor in stacked.items()}
            save_state(folder / f"round-{after}.safetensors", row)
            rounds = sorted(self._rounds(folder))
            needed = max((kept for kept in rounds if kept < keep_from), default=0)
            for kept in rounds:
                if kept < needed:
                    (folder / f"round-{kept}.safetensors").unlink(missing_ok=True)

    def _latest(self, client: str, before: int) -> dict[str, Any] | None:
        folder = self._client_folder(client)
        kept = max((kept for kept in self._rounds(folder) if kept < before), default=None)
        return None if kept is None else load_state(folder / f"round-{kept}.safetensors")

    def _client_folder(self, client: str) -> Path:
        return self._folder / _file_name(client)

    @staticmethod
    def _rounds(folder: Path) -> list[int]:
        if not folder.is_dir():
            return []
        matches = (_FILE.fullmatch(entry.name) for entry in folder.iterdir())
        return [int(match[1]) for match in matches if match]


def _file_name(name: str) -> str:
    """A name as one path component; dots are quoted too, so that none leads out of its folder."""
    return quote(name, safe="").replace(".", "%2E")
