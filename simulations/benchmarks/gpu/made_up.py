"""Data of the shapes of real ones, made up on the spot: how long training takes does not depend on their values."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WEEK = 2016
"""Five-minute readings of a week."""

_CLASSES = 10


def week(folder: Path, sensors: int = 207) -> Path:
    """Write speeds like those of METR-LA's week where the data set looks for them; return the data folder."""
    random, times = np.random.default_rng(0), np.arange(WEEK)[:, None] * (2 * np.pi / 288)
    waves = 55 + 8 * np.sin(times + random.uniform(0, 6, sensors)) + random.normal(0, 2, (WEEK, sensors))
    names = np.arange(sensors)
    _written(folder / "metr-la" / "adj_mx.npz", adj=np.eye(sensors, dtype=np.float32), sensor_ids=names)
    _written(folder / "metr-la" / "metr_la_week1_207.npz", speed=waves.astype(np.float32), sensor_ids=names)
    return folder


def series(folder: Path, clients: int, steps: int = 288) -> dict[str, object]:
    """Write a day of random readings of so many clients; return the table ``[data]``."""
    random = np.random.default_rng(0)
    names = np.array([f"client-{place:05d}" for place in range(clients)])
    path = _written(folder / f"series-{clients}.npz", data=_normal(random, (steps, clients)), names=names)
    return {"set": "series", "path": str(path), "names": names.tolist(), "input-steps": 12, "output-steps": 12,
            "start": "2024-05-06T00:00", "step-minutes": 5}  # fmt: skip


def images(folder: Path, side: int, channels: int, clients: int, each: int) -> dict[str, object]:
    """Write random images of ten classes, ``each`` for every client; return the table ``[data]``."""
    random, count = np.random.default_rng(0), clients * each
    shape = (count, side, side) if channels == 1 else (count, side, side, channels)
    path = _written(
        folder / f"images-{side}-{channels}-{count}.npz",
        images=random.integers(256, size=shape, dtype=np.uint8),
        labels=np.arange(count) % _CLASSES,
    )
    return {"set": "images", "path": str(path), "classes": [str(each) for each in range(_CLASSES)], "size": side,
            "channels": channels, "clients": clients, "shares": [1.0, 0.0, 0.0]}  # fmt: skip


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def _written(path: Path, **arrays: NDArray[np.generic]) -> Path:
    """Write a file of arrays, unless it is there; never half of it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        beginning = path.with_name(f".{path.stem}-{os.getpid()}.npz")
        np.savez(beginning, allow_pickle=False, **arrays)
        beginning.replace(path)
    return path
