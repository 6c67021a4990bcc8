"""A library below Python, preloaded into a process: writes that fail, and a clock that is wrong.

Python code could be patched instead, but not what is written by libraries in other languages, such as safetensors.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from disturbances.scenario import WRITES

_SOURCE = Path(__file__).with_name("system.c")


def set_clock(home: Path, seconds: float) -> None:
    """Set the clock of preloaded processes with this folder of Flower forward, or back."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "clock").write_text(str(seconds))


def compiler() -> str | None:
    """The C compiler; None where there is none."""
    return shutil.which("cc") or shutil.which("gcc")


@lru_cache(maxsize=1)
def library() -> Path:
    """Compile the library, and return its path."""
    known = os.environ.get("DISTURBANCES_LIBRARY")
    if known:
        return Path(known)
    folder = Path(tempfile.mkdtemp(prefix="disturbed-"))
    built = folder / "system.so"
    subprocess.run(
        [compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", built, _SOURCE, "-ldl"], check=True, capture_output=True
    )
    return built


def preloaded() -> dict[str, str]:
    """Environment variables of a process with the library."""
    return {"LD_PRELOAD": str(library()), "DISTURBANCES_LIBRARY": str(library())}


def is_preloaded() -> bool:
    """Whether this process has it."""
    return "DISTURBANCES_LIBRARY" in os.environ and os.environ.get("LD_PRELOAD") == os.environ["DISTURBANCES_LIBRARY"]


class Writes:
    """Makes the n-th write below a folder fail, in this process."""

    def __init__(self) -> None:
        self._loaded = ctypes.CDLL(str(library()))
        self._loaded.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
        self._loaded.faults_failed.restype = ctypes.c_long

    @contextmanager
    def failing(self, folder: Path, number: int, action: str) -> Iterator[None]:
        """Within the block, the write of that number fails; 0: none does."""
        self._loaded.faults_arm(os.fsencode(folder.resolve()), number, 1 + WRITES.index(action))
        try:
            yield
        finally:
            self._loaded.faults_disarm()

    @property
    def failed(self) -> int:
        """Number of writes that failed in the last block."""
        return int(self._loaded.faults_failed())
