"""Limits on the content of any message, checked before it is read."""

from __future__ import annotations

import math

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import check_name, in_short

NUMPY = "numpy.ndarray"
"""Flower's name for arrays in the format of ``numpy.save``."""

_NUMPY_HEADER = 4096
"""Upper bound on the bytes of the header of a serialised array."""

_EMPTY_LISTS, _EMPTY_TEXTS = "empty-lists", "empty-texts"

_MOST_AXES = 16
_LONGEST_AXIS = 1 << 40
_MOST_RECORDS = 50
_MOST_ARRAYS = 100_000
_MOST_ENTRIES = 1_000
_LONGEST_TEXT = 1 << 24


def check_content(content: RecordDict) -> RecordDict:
    """Check the structure of an untrusted message, and undo :func:`mark_empty`.

    Checks names, numbers of entries, lengths of texts, and the number of bytes of every array by its shape and type,
    without decoding or allocation. Raises ReplyError for the first invalid part.
    """
    if len(content) > _MOST_RECORDS:
        raise ReplyError(f"it has {len(content):,} records, and {_MOST_RECORDS} are the most")
    for record_name, record in content.items():
        check_name(record_name, "a record")
        if isinstance(record, ConfigRecord):
            _restore_empty(record)
        most = _MOST_ARRAYS if isinstance(record, ArrayRecord) else _MOST_ENTRIES
        if len(record) > most:
            raise ReplyError(f"its record '{record_name}' has {len(record):,} entries, and {most:,} are the most")
        for name, value in record.items():
            check_name(name, f"an entry of the record '{record_name}'")
            if isinstance(value, Array):
                check_array(name, value)
            elif not isinstance(record, MetricRecord) and max(map(len, _texts(value)), default=0) > _LONGEST_TEXT:
                raise ReplyError(f"the text '{name}' is longer than {_LONGEST_TEXT:,} letters")
    return content


def mark_empty(content: RecordDict) -> RecordDict:
    """Replace empty lists and texts of config records, whose bytes Flower's ``message_size_mod`` cannot count.

    Returns the same content. A record lists the names of empty entries, which :func:`check_content` puts back.
    """
    for record in content.values():
        if not isinstance(record, ConfigRecord):
            continue
        for name in [name for name, value in record.items() if value == [] or value == ""]:
            key = _EMPTY_LISTS if isinstance(record.pop(name), list) else _EMPTY_TEXTS
            record[key] = [*_names(record, key), name]
    return content


def _restore_empty(record: ConfigRecord) -> None:
    for key, kind in ((_EMPTY_LISTS, list), (_EMPTY_TEXTS, str)):
        if key in record:
            for name in _names(record, key):
                record.setdefault(name, kind())
            del record[key]


def _names(record: ConfigRecord, key: str) -> list[str]:
    found = record.get(key)
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def check_array(name: str, array: Array) -> None:
    """Check encoding, type, shape and number of bytes of an array before it is decoded.

    Raises ReplyError for another encoding or type, for an invalid shape, and for too few or too many bytes.
    """
    try:
        kind = np.dtype(array.dtype)
    except (TypeError, ValueError, SyntaxError):
        raise ReplyError(f"array '{name}' has the unknown type {in_short(str(array.dtype), 40)}") from None
    if array.stype != NUMPY or kind.kind not in "biuf":
        raise ReplyError(
            f"array '{name}' holds {in_short(str(array.dtype), 40)} in the encoding {in_short(array.stype, 40)}, not "
            f"plain numbers in {NUMPY}"
        )
    if not kind.isnative:
        raise ReplyError(f"array '{name}' has its bytes in another order than this machine")
    shape = tuple(array.shape)
    if len(shape) > _MOST_AXES or any(not 0 <= length <= _LONGEST_AXIS for length in shape):
        raise ReplyError(f"array '{name}' has the impossible shape {in_short(str(shape), 100)}")
    needed, present = kind.itemsize * math.prod(shape), len(array.data)
    if present > needed + _NUMPY_HEADER:
        raise ReplyError(f"array '{name}' takes {present} bytes, more than its shape {shape} needs")
    if present < needed:
        raise ReplyError(f"array '{name}' takes {present} bytes, fewer than its shape {shape} needs")


def _texts(value: object) -> list[str | bytes]:
    return [each for each in (value if isinstance(value, list) else (value,)) if isinstance(each, (str, bytes))]
