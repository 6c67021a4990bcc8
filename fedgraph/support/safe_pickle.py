"""Read plain values and NumPy arrays from a pickle without executing anything in the file.

A pickle may name any importable function and call it. Here the few names that arrays need are replaced by our own
stand-ins, which only collect bytes, a shape and a type code; every other name is refused.
"""

from __future__ import annotations

import pickle
from typing import Any, BinaryIO

import numpy as np

_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")


class _RefusedError(ValueError):
    """A pickle has something other than plain values and arrays of them."""


class _Type:
    """Stand-in for ``numpy.dtype``: booleans, integers, floats and fixed-width text only."""

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple) -> None:
        self.order = state[1]

    def numpy(self) -> np.dtype:
        kind = np.dtype(self.code)
        if kind.kind not in "biufSU":
            raise _RefusedError(f"it holds an array of type '{self.code}'; only numbers and fixed-width text are read")
        return kind.newbyteorder(">" if self.order == ">" else "<")


class _Array:
    """Stand-in for ``numpy.ndarray`` that collects its state, from which the array is read as raw bytes."""

    values: np.ndarray

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, raw = state
        self.values = _from_bytes(raw, kind, shape, "F" if fortran else "C")


def _from_bytes(raw: bytes | str, kind: _Type, shape: tuple[int, ...], order: str) -> np.ndarray:
    data = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(data, dtype=kind.numpy()).reshape(shape, order="F" if order == "F" else "C")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed: dict[str, Any] = {}
        if module == "numpy":
            allowed = {"ndarray": _Array, "dtype": _Type}
        elif module in _ARRAY_MODULES:
            allowed = {"_reconstruct": self._reconstruct, "scalar": self._scalar, "_frombuffer": self._frombuffer}
        elif module == "_codecs":
            allowed = {"encode": self._encode}
        elif module in ("__builtin__", "builtins"):
            allowed = {"bytes": self._no_bytes}
        if name not in allowed:
            raise _RefusedError(f"it asks to load '{module}.{name}', which numbers do not need; not loaded")
        return allowed[name]

    def _reconstruct(self, *_: object) -> _Array:
        return _Array()

    def _scalar(self, kind: _Type, raw: bytes | str) -> Any:
        return _from_bytes(raw, kind, (1,), "C")[0]

    def _frombuffer(self, raw: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
        array = _Array()
        array.values = _from_bytes(raw, kind, shape, order)
        return array

    def _no_bytes(self) -> bytes:
        """Return ``bytes()``, with which Python 3 writes the content of an empty array for Python 2."""
        return b""

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise _RefusedError(f"it holds text in the encoding '{encoding}'; only latin1 is read")
        return text.encode("latin1")


def read_pickle(stream: BinaryIO) -> Any:
    """Read a pickle of Python 2 or 3: numbers, text, lists, tuples, dicts and NumPy arrays of them.

    Raises ValueError for anything else; nothing in the pickle has been executed by then.
    """
    try:
        return _plain(_Unpickler(stream, encoding="latin1").load())
    except _RefusedError:
        raise
    except Exception as error:  # a damaged pickle may raise almost anything
        raise ValueError(f"it is not a pickle of plain values and arrays ({type(error).__name__}: {error})") from None


def _plain(value: Any) -> Any:
    """Replace stand-ins by their arrays."""
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
