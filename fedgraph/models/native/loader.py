"""C++ functions, compiled on the node that calls them and loaded as a shared library.

A library is compiled once for each source and processor and then kept in the user's cache: ``fedgraph/native`` under
``XDG_CACHE_HOME``, else under ``~/.cache``.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from fedgraph.support.files import locked
from fedgraph.support.status import ONCE

log = logging.getLogger("fedgraph")

COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_PROCESSOR_FLAGS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
"""Compiler flags for the processor, the best first: not every compiler knows every flag."""

_SECONDS = 300
_PYTORCH = Path(torch.__file__).parent / "lib"


class NativeError(Exception):
    """Raised when a library cannot be compiled or loaded, with the reason and what to do."""


def load(name: str, source: str) -> ctypes.CDLL:
    """Load the library compiled from C++ ``source``, which may call what PyTorch's own libraries export.

    Calls release Python's global lock. Several processes may load at once: one compiles and the others wait for it; a
    process that is killed does not block the others. Raises NativeError without a C++ compiler or a folder to write to,
    or when the compiler rejects the source or PyTorch lacks a function.
    """
    key = hashlib.sha256("\0".join((source, *_FLAGS, _processor())).encode()).hexdigest()[:16]
    library = _cache() / f"{name}-{key}.so"
    try:
        if not library.exists():
            _compiler()  # before a folder is asked for: without a compiler no other folder would do
            library.parent.mkdir(parents=True, exist_ok=True)
            with locked(library.with_suffix(".lock")):
                if not library.exists():
                    _compile(source, library)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise NativeError(
            f"{library} cannot be written or loaded: {error}; set XDG_CACHE_HOME to keep it in another folder"
        ) from error


def can_compile() -> bool:
    """Return whether this node has a C++ compiler, so that native code can be used without being asked for."""
    return _finds_compiler(os.environ.get("PATH"), os.environ.get("CXX"))


@cache
def _finds_compiler(path: str | None, wanted: str | None) -> bool:
    # Asked in every step of IPA: looking through all folders of PATH each time would take longer than some steps.
    try:
        _compiler()
    except NativeError:
        return False
    return True


class OnFirstUse:
    """A library that is compiled on first use; None if that is not possible.

    Parameters
    ----------
    name, source : as in :func:`load`.
    what : what the library computes, for the one warning that it cannot be used.
    key : of the experiment, that asks for it.
    """

    def __init__(self, name: str, source: str, what: str, key: str = "[train] compile") -> None:
        self._name, self._source, self._what, self._key = name, source, what, key
        self._asking = threading.Lock()
        self._asked = False
        self._library: ctypes.CDLL | None = None

    def __call__(self) -> ctypes.CDLL | None:
        """Return the library; None if it cannot be compiled or loaded."""
        with self._asking:
            if not self._asked:
                self._asked = True
                try:
                    self._library = load(self._name, self._source)
                except NativeError as error:
                    log.warning(
                        "%s: %s in C++ cannot be used on this node, which computes without it (%s); install a C++ "
                        "compiler such as g++, or set compile to false",
                        self._key,
                        self._what,
                        error,
                        extra=ONCE,
                    )
            return self._library

    def forget(self) -> None:
        """Try again on the next use."""
        with self._asking:
            self._asked, self._library = False, None


def _cache() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedgraph" / "native"
    except RuntimeError as error:
        raise NativeError("there is no home folder to keep it in; set XDG_CACHE_HOME to a folder of yours") from error


def _processor() -> str:
    """Identify the instructions of the processor, as nodes with different processors may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    known = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "\n".join((platform.machine(), platform.processor(), *sorted(known)))


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise NativeError(
        f"CXX names '{wanted}', which does not exist"
        if wanted
        else f"there is no C++ compiler ({', '.join(COMPILERS)})"
    )


def _compile(source: str, library: Path) -> None:
    """Write ``library`` atomically."""
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        text, made = Path(folder, "source.cpp"), Path(folder, "library.so")
        text.write_text(source)
        for processor_flags in _PROCESSOR_FLAGS:
            complaint = _complaint([compiler, *_FLAGS, *processor_flags, str(text), "-o", str(made), *_linked()])
            if complaint is None:
                made.replace(library)
                return
    raise NativeError(f"{compiler} failed: {complaint}")


def _linked() -> list[str]:
    """Return the linker flags for PyTorch's libraries, whose dependencies are loaded once torch is imported."""
    if platform.system() == "Darwin":
        return [f"-L{_PYTORCH}", "-ltorch_cpu", f"-Wl,-rpath,{_PYTORCH}"]
    return [f"-L{_PYTORCH}", "-ltorch_cpu", "-Wl,--allow-shlib-undefined"]


def _complaint(command: Sequence[str]) -> str | None:
    """Run a compiler; return its first error, or None if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no result after {_SECONDS} seconds"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return lines[0] if lines else f"exit status {done.returncode}"
