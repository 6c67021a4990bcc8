"""What came of a run: all numbers in its results, looked at; and a place and a time for runs."""

from __future__ import annotations

import json
import logging
import math
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fedgraph.federation import opening_query

ABSURD = 1e6


@dataclass
class Judgement:
    """What came of an example.

    ``ended`` is why the run ended, ``broken`` what is not finite in its results, ``absurd`` the largest number there
    if it is beyond ``ABSURD``; ``applied`` is whether the mutation found anything to change.
    """

    applied: bool = True
    ended: str = ""
    unforeseen: bool = False
    broken: str = ""
    absurd: float = 0.0

    @property
    def failed(self) -> str:
        """Why this is a failure; empty where it is none."""
        return self.ended or self.broken


def judge(folder: Path) -> Judgement:
    """Look at all numbers in the results of a run."""
    found = Judgement()
    for file in sorted(folder.rglob("*.safetensors")):
        # What a checkpoint has beside results may be infinite where nothing was measured.
        if file.name == "checkpoint.safetensors":
            continue
        for name, tensor in load_file(file).items():
            if not tensor.is_floating_point() or not tensor.numel():
                continue
            if not bool(torch.isfinite(tensor).all()):
                found.broken = f"{file.name}: {name}"
            else:
                found.absurd = max(found.absurd, float(tensor.abs().max()))
    texts = [folder / "summary.json", folder / "metrics.jsonl", folder / "feature-graph.json"]
    for file in filter(Path.exists, texts):
        text = file.read_text()
        for line in text.splitlines() if file.suffix == ".jsonl" else [text]:
            for path, number in _numbers(json.loads(line), file.name):
                if not math.isfinite(number):
                    found.broken = path
                elif not any(word in path for word in ("bytes", "seconds", "seed", "timestamp", "examples", "rows")):
                    found.absurd = max(found.absurd, abs(number))
        if len(text) > 3_000_000:
            found.broken = f"{file.name} has {len(text)} characters"
    if found.absurd <= ABSURD:
        found.absurd = 0.0
    return found


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


@contextmanager
def time_limit(seconds: int):
    """Raise TimeoutError in a block that takes longer."""

    def late(number, frame):
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def workplace():
    """A folder for all runs, in memory where there is one, and no waiting or talking meanwhile."""
    memory = Path("/dev/shm")
    levels = {name: logging.getLogger(name).level for name in ("fedgraph", "flwr")}
    poll = opening_query._POLL_SECONDS
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    opening_query._POLL_SECONDS = 0.001
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None) as folder:
            yield Path(folder)
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        opening_query._POLL_SECONDS = poll
