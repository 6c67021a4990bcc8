"""Mutations of the content of a message, each a function of the content and a seeded generator.

A mutation changes the content in place, or returns None where there is nothing that it could change. What it picks
depends on the generator alone, so that a mutation's name and a seed describe an example.
"""

from __future__ import annotations

import copy
import io
import json
import math
import random
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

Mutation = Callable[[RecordDict, random.Random], bool]

DEPTH = 100_000
LONG = 2_000_000
_WHOLE = (0, -1, 1, 2, 255, 2**31, 2**53 + 1, 2**62, -(2**63))
_REAL = (math.nan, math.inf, -math.inf, -1.0, 0.5, 1e30, -1e300, 5e-324)
_TEXTS = (
    "", " ", "nobody", "client-0", "\x00", "a\nb\rc\x1b[2J", "../../etc/passwd", "/etc/passwd", "é" * 300, "x" * LONG,
    "[" * DEPTH, '{"a":' * DEPTH, "NaN", "null", "1e999", "{}", "[]", '{"names": ["a", "a"], "edges": [["a", "a"]]}',
    "9" * 5000,
)  # fmt: skip


_KINDS = (ArrayRecord, ConfigRecord, MetricRecord)
_ENTRIES = (ConfigRecord, MetricRecord)

MUTATIONS: dict[str, Mutation] = {}
"""By name; a name keeps its meaning, because examples are kept by name and seed."""


def _record(kind=_KINDS):
    """Pick a record of some kinds: its name."""

    def pick(content, chance):
        names = sorted(name for name, record in content.items() if isinstance(record, kind))
        return (chance.choice(names),) if names else None

    return pick


def _entry(kind, holds=lambda value: True):
    """Pick an entry in a record of some kinds: name of the record, name of the entry, and value."""

    def pick(content, chance):
        both = sorted(
            (record, name)
            for record, entries in content.items()
            if isinstance(entries, kind)
            for name, value in entries.items()
            if holds(value)
        )
        if not both:
            return None
        record, name = chance.choice(both)
        return record, name, content[record][name]

    return pick


_array = _entry(ArrayRecord)


def _mutation(name, pick=lambda content, chance: ()):
    """Register a mutation of what ``pick`` finds; there is none where it finds nothing, or False is returned."""

    def register(change):
        def mutation(content, chance):
            found = pick(content, chance)
            return found is not None and change(content, chance, *found) is not False

        MUTATIONS[name] = mutation
        return change

    return register


# ---- records


@_mutation("drop-record", _record())
def drop_record(content, chance, name):
    del content[name]


@_mutation("rename-record", _record())
def rename_record(content, chance, name):
    content[chance.choice(["", "CONFIG", f"{name} ", "x" * 10_000])] = content.pop(name)


@_mutation("other-kind", _record())
def other_kind(content, chance, name):
    kinds = [kind for kind in _KINDS if not isinstance(content[name], kind)]
    del content[name]
    content[name] = chance.choice(kinds)()


@_mutation("empty-record", _record())
def empty_record(content, chance, name):
    kind = type(content.pop(name))
    content[name] = kind()


@_mutation("no-records")
def no_records(content, chance):
    for name in list(content):
        del content[name]


@_mutation("more-records")
def more_records(content, chance):
    for number in range(chance.choice([1, 2_000])):
        content[f"more-{number}"] = chance.choice(_KINDS)()


@_mutation("error-text")
def error_text(content, chance):
    text = chance.choice(["", "no such file", "x" * LONG, "a\nb\x1b[2J", "\x00"])
    config = content.get("config")
    if isinstance(config, ConfigRecord):
        config["error"] = chance.choice([text, 5, [text], b"\xff"])
    else:
        content["config"] = ConfigRecord({"error": text})


# ---- arrays


@_mutation("drop-array", _array)
def drop_array(content, chance, record, name, array):
    del content[record][name]


@_mutation("rename-array", _array)
def rename_array(content, chance, record, name, array):
    del content[record][name]
    content[record][chance.choice(["", "x", name + " ", "y" * LONG])] = array


@_mutation("more-arrays", _record(ArrayRecord))
def more_arrays(content, chance, record):
    for number in range(chance.choice([1, 3_000])):
        content[record][f"more-{number}"] = Array(np.zeros(1, np.float32))


def _numbers(name):
    """Register a mutation of the numbers of an array: ``change`` returns others, or None."""

    def register(change):
        @_mutation(name, _array)
        def mutation(content, chance, record, entry, array):
            changed = change(np.array(array.numpy()), chance)
            if changed is None:
                return False
            content[record][entry] = Array(changed)
            return True

        return change

    return register


def _put(*values):
    def change(numbers, chance):
        value = chance.choice(values)
        if not numbers.size or (numbers.dtype.kind != "f" and not math.isfinite(value)):
            return None
        flat = numbers.reshape(-1)
        some = chance.choice([1, numbers.size])
        with np.errstate(all="ignore"):
            flat[chance.randrange(numbers.size - some + 1) :][:some] = np.array(value).astype(numbers.dtype)
        return numbers

    return change


_numbers("not-finite")(_put(math.nan, math.inf, -math.inf))
_numbers("huge")(_put(1e30, -1e30, 3e38, 1e15))
_numbers("small")(_put(0.0, -1.0, 1e-45))


@_numbers("whole")
def _whole(numbers, chance):
    if not numbers.size or numbers.dtype.kind not in "iu":
        return None
    limits = np.iinfo(numbers.dtype)
    flat = numbers.reshape(-1)
    value = chance.choice([limits.min, limits.max, limits.max // 2, 0, 1])
    some = chance.choice([1, numbers.size])
    flat[chance.randrange(numbers.size - some + 1) :][:some] = value
    return numbers


@_numbers("bits")
def _bits(numbers, chance):
    data = bytearray(numbers.tobytes())
    for _ in range(min(len(data), 8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return np.frombuffer(bytes(data), numbers.dtype).reshape(numbers.shape) if data else None


@_numbers("shuffled")
def _shuffled(numbers, chance):
    rows = list(range(len(numbers))) if numbers.ndim else []
    chance.shuffle(rows)
    return numbers[rows] if rows else None


@_numbers("array-type")
def _other_type(numbers, chance):
    kind = chance.choice(["float64", "float16", "int64", "int32", "uint8", "bool", ">f4", "complex64", "U3"])
    with np.errstate(all="ignore"):
        return numbers.astype(kind)


@_numbers("array-shape")
def _other_shape(numbers, chance):
    shapes = [
        lambda a: a[None],
        lambda a: a.reshape(-1),
        lambda a: a[..., None],
        lambda a: a.T.copy(),
        lambda a: a[:0] if a.ndim else None,
        lambda a: a[1:] if a.ndim else None,
        lambda a: np.concatenate([a, a]) if a.ndim else None,
        lambda a: a[..., :-1] if a.ndim else None,
        lambda a: np.zeros((), a.dtype),
        lambda a: np.zeros((1,) * 32, a.dtype),
        lambda a: np.zeros((0, 2**40), a.dtype),
    ]
    return chance.choice(shapes)(numbers)


def _raw(name):
    """Register a mutation of how an array says what it is: ``change`` gets type, shape, encoding and bytes."""

    def register(change):
        @_mutation(name, _array)
        def mutation(content, chance, record, entry, array):
            content[record][entry] = Array(*change(array.dtype, tuple(array.shape), array.stype, array.data, chance))

        return change

    return register


@_raw("truncated")
def _truncated(dtype, shape, stype, data, chance):
    return dtype, shape, stype, data[: chance.choice([0, 1, 60, len(data) - 1])]


@_raw("longer")
def _longer(dtype, shape, stype, data, chance):
    return dtype, shape, stype, data + b"\x01" * chance.choice([1, 7, LONG])


@_raw("type-said")
def _type_said(dtype, shape, stype, data, chance):
    return chance.choice(["float64", "int8", "O", "", "x", "V9"]), shape, stype, data


def _npy(dtype, shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@_raw("shape-said")
def _giant(dtype, shape, stype, data, chance):
    giant = chance.choice([(2**40,), (2**31, 2**31), (*shape[:-1], 2**62), (2**20,) * 3, (-1,), (-2, -3), (0,) * 10])
    # Sometimes the bytes say so too.
    return dtype, giant, stype, (_npy("<f4", giant) if chance.random() < 0.5 else data)


@_raw("encoding-said")
def _pickled(dtype, shape, stype, data, chance):
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return chance.choice([("object", (1,), stype, stream.getvalue()), (dtype, shape, "pickle", data)])


# ---- entries of configs and metrics


def _set(content, record, name, value):
    try:
        content[record][name] = value
    except TypeError:
        return False
    return True


def _single(value):
    return value[0] if isinstance(value, list) and value else value


@_mutation("drop-entry", _entry(_ENTRIES))
def drop_entry(content, chance, record, name, value):
    del content[record][name]


@_mutation("rename-entry", _entry(_ENTRIES))
def rename_entry(content, chance, record, name, value):
    del content[record][name]
    return _set(content, record, chance.choice(["", "bogus", f"{name}\n", "test/bogus", "y" * LONG]), value)


@_mutation("more-entries", _record(_ENTRIES))
def more_entries(content, chance, record):
    length = max((len(v) for v in content[record].values() if isinstance(v, list)), default=1)
    for number in range(chance.choice([1, 5_000])):
        content[record][f"test/bogus-{number}"] = chance.choice([[1.0] * length, [1] * length, 1.0])


@_mutation("other-type", _entry(_ENTRIES))
def other_type(content, chance, record, name, value):
    values = [0, 1.5, [], [0], [0.5], [math.nan]]
    if isinstance(content[record], ConfigRecord):
        values += ["x", b"\xff\x00", True, ["x"], [b"x"], [True], ["x", "x"], "client-0"]
    return _set(content, record, name, chance.choice(values))


@_mutation("number", _entry(_ENTRIES))
def number(content, chance, record, name, value):
    single = _single(value)
    if isinstance(single, bool) or not isinstance(single, (int, float)):
        return False
    values = _WHOLE if isinstance(single, int) else _REAL

    if not isinstance(value, list):
        return _set(content, record, name, chance.choice(values))
    changed = list(value)
    for place in {chance.randrange(len(value)), *(range(len(value)) if chance.random() < 0.5 else ())}:
        changed[place] = chance.choice(values)
    return _set(content, record, name, changed)


@_mutation("text", _entry(ConfigRecord))
def text(content, chance, record, name, value):
    if not isinstance(_single(value), str):
        return False
    changed = chance.choice(_TEXTS)
    if isinstance(value, list):
        place = chance.randrange(len(value))
        changed = [*value[:place], changed, *value[place + 1 :]]
    return _set(content, record, name, changed)


@_mutation("listed", _entry(_ENTRIES, lambda value: isinstance(value, list) and value))
def listed(content, chance, record, name, value):
    value = list(value)
    ways = [
        value[:-1], value[1:], value[::-1], [*value, value[0]], [value[0]] * len(value), value * 2,
        [value[0]] * 200_000, chance.sample(value, len(value)),
    ]  # fmt: skip
    return _set(content, record, name, chance.choice(ways))


@_mutation("others-names")
def others_names(content, chance):
    """Names of clients or owners become those of others, or names that nobody has."""
    config = content.get("config")
    named = [n for n in ("clients", "owners") if isinstance(config, ConfigRecord) and isinstance(config.get(n), list)]
    if not named:
        return False
    key = chance.choice(named)
    count = len(config[key])
    ways = [f"client-{n}" for n in range(8)] + ["patch-0-0", "patch-1-1", "sensor-00", "sensor-01", "site-1", "ghost"]
    config[key] = chance.sample(ways, min(count, len(ways)))
    return True


@_mutation("json-leaf")
def json_leaf(content, chance):
    """A text that is JSON stays JSON, and one of its values becomes another."""
    both = []
    for record, entries in sorted(content.items()):
        for name, value in sorted(entries.items()) if isinstance(entries, ConfigRecord) else ():
            for place, each in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(each, str) and each[:1] in ("{", "["):
                    both.append((record, name, place))
    if not both:
        return False
    record, name, place = chance.choice(both)
    value = content[record][name]
    table = json.loads(value[place] if isinstance(value, list) else value)
    deep: object = 1
    for _ in range(300):
        deep = {"a": deep}
    bad = [None, True, -1, 0, 10**30, 1e308, math.nan, math.inf, "", "x", "x" * 100_000, [], {}, [[]], {"a": {}}, deep]
    holders = [(table, key) for key in (table if isinstance(table, dict) else range(len(table)))]
    for holder, key in holders:
        inner = holder[key]
        if isinstance(inner, (dict, list)):
            holders += [(inner, each) for each in (inner if isinstance(inner, dict) else range(len(inner)))]
    if not holders:
        return False
    holder, key = chance.choice(holders)
    how = chance.random()
    if how < 0.15:
        del holder[key]
    elif how < 0.3 and isinstance(holder, dict):
        holder[chance.choice(["", "bogus", "x" * 100_000])] = holder.pop(key)
    elif how < 0.4 and isinstance(holder, list):
        holder += [copy.deepcopy(holder[key])] * chance.choice([1, 1000])
    else:
        holder[key] = chance.choice(bad)
    changed = json.dumps(table)
    whole = [*value[:place], changed, *value[place + 1 :]] if isinstance(value, list) else changed
    return _set(content, record, name, whole)


def copied(content: RecordDict) -> RecordDict:
    """Copy records, not the bytes of arrays, which no mutation changes in place."""
    return RecordDict({name: record.copy() for name, record in content.items()})


def mutated(content: RecordDict, name: str, seed: int) -> RecordDict | None:
    """Return a mutated copy; None where the mutation finds nothing to change."""
    changed = copied(content)
    return changed if MUTATIONS[name](changed, random.Random(f"{name} {seed}")) else None
