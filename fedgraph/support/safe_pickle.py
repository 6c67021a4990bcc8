"""Read plain values and NumPy arrays from a pickle without executing anything in the file.

A pickle may name any importable function and call it. Here the few names that arrays need are replaced by our own
stand-ins, which only collect bytes, a shape and a type code; every other name is refused. The time that it takes grows
with the length of the file alone: what a few bytes could repeat without end is bounded.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, ClassVar

import numpy as np

_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")

_MOST_VALUES = 10_000_000
"""Most values of a result, those that are used several times counted each time; a KiB of an array is one too."""
_MOST_COPIED = 1 << 30
"""Most letters of texts of Python 2 that become bytes, which may name the same text again and again."""
_LONGEST_KEY = 10_000
_MOST_AXES = 32
_MOST_ARGUMENTS = 4


class _RefusedError(ValueError):
    """A pickle has something other than plain values and arrays of them."""


class _Type:
    """Stand-in for ``numpy.dtype``: booleans, integers, floats and fixed-width text only."""

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple) -> None:
        self.order = state[1]

    def numpy(self) -> np.dtype:
        if not isinstance(self.code, str) or not re.fullmatch(r"[<>|=]?([biufSU]\d{0,9}|\?)", self.code):
            code = str(self.code)[:20]
            raise _RefusedError(f"it holds an array of type '{code}'; only numbers and fixed-width text are read")
        kind = np.dtype(self.code)
        return kind.newbyteorder(">" if self.order == ">" else "<")


class _Array:
    """Stand-in for ``numpy.ndarray``, of which the unpickler reads the values as raw bytes."""

    values: np.ndarray


class _Unpickler(pickle._Unpickler):
    """Python's own implementation, which can be bounded, unlike that in C: that allocates as much as a file says."""

    dispatch: ClassVar[dict[int, Callable[..., Any]]]
    stack: list[Any]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, encoding="latin1")
        self._copied = 0

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
            raise _RefusedError(f"it asks to load '{module[:100]}.{name[:100]}', which numbers do not need; not loaded")
        return allowed[name]

    def _reconstruct(self, *_: object) -> _Array:
        return _Array()

    def _scalar(self, kind: _Type, raw: bytes | str) -> Any:
        return self._from_bytes(raw, kind, (1,), "C")[0]

    def _frombuffer(self, raw: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
        array = _Array()
        array.values = self._from_bytes(raw, kind, shape, order)
        return array

    def _no_bytes(self) -> bytes:
        """Return ``bytes()``, with which Python 3 writes the content of an empty array for Python 2."""
        return b""

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding not in ("latin1", "latin-1"):
            raise _RefusedError(f"it holds text in the encoding '{encoding}'; only latin1 is read")
        return self._as_bytes(text)

    def _as_bytes(self, text: str) -> bytes:
        self._copied += len(text)
        if self._copied > _MOST_COPIED:
            raise _RefusedError("it uses the same text too often")
        return text.encode("latin1")

    def _from_bytes(self, raw: bytes | str, kind: _Type, shape: tuple[int, ...], order: str) -> np.ndarray:
        if not isinstance(shape, tuple) or len(shape) > _MOST_AXES:
            raise _RefusedError("it holds an array without a shape")
        data = self._as_bytes(raw) if isinstance(raw, str) else raw
        return np.frombuffer(data, dtype=kind.numpy()).reshape(shape, order="F" if order == "F" else "C")

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        if not isinstance(arguments, tuple) or len(arguments) > _MOST_ARGUMENTS:
            raise _RefusedError("it calls what numbers do not need")
        self.stack[-1] = self.stack[-1](*arguments)

    def _build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, _Array):
            _, shape, kind, fortran, raw = state
            built.values = self._from_bytes(raw, kind, shape, "F" if fortran else "C")
        elif isinstance(built, _Type):
            built.order = state[1]
        else:
            raise _RefusedError("it sets what numbers do not have")

    def _dict(self) -> None:
        entries = self.pop_mark()
        self.stack.append({_key(key): value for key, value in zip(entries[::2], entries[1::2], strict=True)})

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][_key(key)] = value

    def _set_items(self) -> None:
        entries = self.pop_mark()
        self.stack[-1].update({_key(key): value for key, value in zip(entries[::2], entries[1::2], strict=True)})

    def _bytearray(self) -> None:
        # Python's own fills memory of the size that the file says.
        self.stack.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))


_READ = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE"),
    *("PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL"),
    *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "LIST", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("TUPLE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT"),
)
_Unpickler.dispatch = {
    **{code: pickle._Unpickler.dispatch[code] for code in (getattr(pickle, name)[0] for name in _READ)},
    pickle.REDUCE[0]: _Unpickler._reduce,
    pickle.BUILD[0]: _Unpickler._build,
    pickle.DICT[0]: _Unpickler._dict,
    pickle.SETITEM[0]: _Unpickler._set_item,
    pickle.SETITEMS[0]: _Unpickler._set_items,
    pickle.BYTEARRAY8[0]: _Unpickler._bytearray,
}


def _key(key: Any) -> Any:
    """Return a key of a dict. Raises _RefusedError for one whose hash takes long, or may be that of many others."""
    number = key is None or isinstance(key, float) or (isinstance(key, int) and key.bit_length() < 64)
    if not (number or (isinstance(key, str | bytes) and len(key) <= _LONGEST_KEY)):
        raise _RefusedError(f"it holds a dict whose keys are no short texts or numbers ({type(key).__name__})")
    return key


def read_pickle(stream: BinaryIO) -> Any:
    """Read a pickle of Python 2 or 3: numbers, text, lists, tuples, dicts and NumPy arrays of them.

    Raises ValueError for anything else; nothing in the pickle has been executed by then.
    """
    try:
        result = _Unpickler(stream).load()
        _count(result, {})
        return _plain(result, {})
    except _RefusedError:
        raise
    except Exception as error:  # a damaged pickle may raise almost anything
        raise ValueError(f"it is not a pickle of plain values and arrays ({type(error).__name__}: {error})") from None


def _count(value: Any, counted: dict[int, int]) -> int:
    """Return how many values a value has. Raises _RefusedError for too many, and for one that contains itself."""
    if isinstance(value, _Array):
        return 1 + value.values.nbytes // 1024
    if not isinstance(value, list | tuple | dict):
        return 1
    if id(value) not in counted:
        counted[id(value)] = _MOST_VALUES  # until it is known, as it may contain itself
        counted[id(value)] = 1 + sum(_count(item, counted) for item in _items(value))
        if counted[id(value)] > _MOST_VALUES:
            raise _RefusedError(f"it holds more than {_MOST_VALUES:,} values, or a list within itself")
    return counted[id(value)]


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, Mapping) else value


def _plain(value: Any, known: dict[int, Any]) -> Any:
    """Replace stand-ins by their arrays; what is used several times stays one object."""
    if isinstance(value, _Array):
        return value.values
    if value is None or isinstance(value, int | float | str | bytes | bytearray | np.generic):
        return value
    if not isinstance(value, list | tuple | dict):
        raise _RefusedError("it holds what is no number, text, list, tuple, dict or array")
    if id(value) not in known:
        if isinstance(value, dict):
            known[id(value)] = {key: _plain(item, known) for key, item in value.items()}
        else:
            known[id(value)] = type(value)(_plain(item, known) for item in value)
    return known[id(value)]
