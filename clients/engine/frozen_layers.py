"""Frozen layers that a node has received, kept in its state folder for all its processes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from flwr.app import RecordDict
from torch import Tensor

from fedgraph.clients.engine.node import Node
from fedgraph.messages.frozen_layers import RECORD, fingerprint_of, given
from fedgraph.support.files import read_tensors, run_state, write_tensors


def frozen_layers(node: Node, run: str, content: RecordDict, fingerprint: str) -> Tensor | None:
    """Return the frozen layers ``[numbers]`` that a request names; None if this node does not have them.

    Raises ReplyError when the request contains others.
    """
    path = run_state(node.state_dir, run) / RECORD / f"{fingerprint}.safetensors"
    sent = given(content, fingerprint)
    if sent is None:
        return _kept(path) if path.is_file() else None
    write_tensors(path, {RECORD: sent})
    for other in path.parent.glob("*.safetensors"):
        # A run has one model; other files are from another run of that name.
        if other != path:
            other.unlink(missing_ok=True)
    _kept.cache_clear()
    return sent


@lru_cache(maxsize=2)
def _kept(path: Path) -> Tensor | None:
    """Read them; None from a damaged file."""
    try:
        row = read_tensors(path)[0][RECORD]
    except (OSError, ValueError, KeyError):
        return None
    return row if fingerprint_of(row) == path.stem else None
