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
_TYPES = ("float64", "int8", "O", "", "x", "V9", "float32,", "<U9999999999")
_TEXTS = (
    "",
    " ",
    "nobody",
    "client-0",
    "\x00",
    "a\nb\rc\x1b[2J",
    "../../etc/passwd",
    "/etc/passwd",
    "é" * 300,
    "x" * LONG,
    "[" * DEPTH,
    '{"a":' * DEPTH,
    "NaN",
    "null",
    "1e999",
    "{}",
    "[]",
    '{"names": ["a", "a"], "edges": [["a", "a"]]}',
    "9" * 5000,
)


def _pick(choices, chance):
    return chance.choice(list(choices)) if choices else None


def _record(content, chance, kind=None):
    """A record and its name, of one kind if it is given; None if there is none."""
    names = sorted(name for name, record in content.items() if kind is None or isinstance(record, kind))
    return _pick(names, chance)


def _entry(content, chance, kind):
    """Names of a record of a kind, and of an entry in it; None if there is none."""
    both = sorted((r, e) for r, record in content.items() if isinstance(record, kind) for e in record)
    return _pick(both, chance)


# ---- records


def drop_record(content, chance):
    name = _record(content, chance)
    return name is not None and content.pop(name) is not None


def rename_record(content, chance):
    name = _record(content, chance)
    if name is None:
        return False
    content[chance.choice(["", "CONFIG", f"{name} ", "x" * 10_000])] = content.pop(name)
    return True


def other_kind(content, chance):
    name = _record(content, chance)
    if name is None:
        return False
    kinds = [kind for kind in (ArrayRecord, ConfigRecord, MetricRecord) if not isinstance(content[name], kind)]
    del content[name]
    content[name] = chance.choice(kinds)()
    return True


def empty_record(content, chance):
    name = _record(content, chance)
    if name is None:
        return False
    kind = type(content[name])
    del content[name]
    content[name] = kind()
    return True


def no_records(content, chance):
    for name in list(content):
        del content[name]
    return True


def more_records(content, chance):
    for number in range(chance.choice([1, 2_000])):
        content[f"more-{number}"] = chance.choice([ArrayRecord, ConfigRecord, MetricRecord])()
    return True


def error_text(content, chance):
    text = chance.choice(["", "no such file", "x" * LONG, "a\nb\x1b[2J", "\x00"])
    config = content.get("config")
    if isinstance(config, ConfigRecord):
        config["error"] = chance.choice([text, 5, [text], b"\xff"])
    else:
        content["config"] = ConfigRecord({"error": text})
    return True


# ---- arrays


def _array(content, chance):
    found = _entry(content, chance, ArrayRecord)
    return (None, None, None) if found is None else (*found, content[found[0]][found[1]])


def drop_array(content, chance):
    record, name, _ = _array(content, chance)
    return record is not None and content[record].pop(name) is not None


def rename_array(content, chance):
    record, name, array = _array(content, chance)
    if record is None:
        return False
    del content[record][name]
    content[record][chance.choice(["", "x", name + " ", "y" * LONG])] = array
    return True


def more_arrays(content, chance):
    record = _record(content, chance, ArrayRecord)
    if record is None:
        return False
    for number in range(chance.choice([1, 3_000])):
        content[record][f"more-{number}"] = Array(np.zeros(1, np.float32))
    return True


def _changed(change):
    """A mutation that replaces the numbers of an array by those that ``change`` returns."""

    def mutation(content, chance):
        record, name, array = _array(content, chance)
        if record is None:
            return False
        values = np.array(array.numpy())
        changed = change(values, chance)
        if changed is None:
            return False
        content[record][name] = Array(changed)
        return True

    return mutation


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

    return _changed(change)


def _whole(numbers, chance):
    if not numbers.size or numbers.dtype.kind not in "iu":
        return None
    limits = np.iinfo(numbers.dtype)
    flat = numbers.reshape(-1)
    value = chance.choice([limits.min, limits.max, limits.max // 2, 0, 1])
    some = chance.choice([1, numbers.size])
    flat[chance.randrange(numbers.size - some + 1) :][:some] = value
    return numbers


def _bits(numbers, chance):
    data = bytearray(numbers.tobytes())
    for _ in range(min(len(data), 8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return np.frombuffer(bytes(data), numbers.dtype).reshape(numbers.shape) if data else None


def _shuffled(numbers, chance):
    rows = list(range(len(numbers))) if numbers.ndim else []
    chance.shuffle(rows)
    return numbers[rows] if rows else None


def _other_type(numbers, chance):
    kind = chance.choice(["float64", "float16", "int64", "int32", "uint8", "bool", ">f4", "complex64", "U3"])
    with np.errstate(all="ignore"):
        return numbers.astype(kind)


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
        lambda a: np.zeros((1,) * 40, a.dtype),
        lambda a: np.zeros((0, 2**40), a.dtype),
    ]
    return chance.choice(shapes)(numbers)


def _raw(change):
    """A mutation of how an array says what it is: ``change`` gets type, shape, encoding and bytes."""

    def mutation(content, chance):
        record, name, array = _array(content, chance)
        if record is None:
            return False
        content[record][name] = Array(*change(array.dtype, tuple(array.shape), array.stype, array.data, chance))
        return True

    return mutation


def _npy(dtype, shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _giant(dtype, shape, stype, data, chance):
    giant = chance.choice([(2**40,), (2**31, 2**31), (*shape[:-1], 2**62), (2**20,) * 3, (-1,), (-2, -3), (0,) * 10])
    # Sometimes the bytes say so too.
    return dtype, giant, stype, (_npy("<f4", giant) if chance.random() < 0.5 else data)


def _pickled(dtype, shape, stype, data, chance):
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return chance.choice([("object", (1,), stype, stream.getvalue()), (dtype, shape, "pickle", data)])


# ---- entries of configs and metrics


def _value(content, chance, kind=(ConfigRecord, MetricRecord)):
    found = _entry(content, chance, kind)
    return (None, None, None) if found is None else (*found, content[found[0]][found[1]])


def _set(content, record, name, value):
    try:
        content[record][name] = value
    except TypeError:
        return False
    return True


def drop_entry(content, chance):
    record, name, _ = _value(content, chance)
    if record is None:
        return False
    del content[record][name]
    return True


def rename_entry(content, chance):
    record, name, value = _value(content, chance)
    if record is None:
        return False
    del content[record][name]
    return _set(content, record, chance.choice(["", "bogus", f"{name}\n", "test/bogus", "y" * LONG]), value)


def more_entries(content, chance):
    record = _record(content, chance, (ConfigRecord, MetricRecord))
    if record is None:
        return False
    length = max((len(v) for v in content[record].values() if isinstance(v, list)), default=1)
    for number in range(chance.choice([1, 5_000])):
        content[record][f"test/bogus-{number}"] = chance.choice([[1.0] * length, [1] * length, 1.0])
    return True


def other_type(content, chance):
    record, name, _ = _value(content, chance)
    if record is None:
        return False
    values = [0, 1.5, [], [0], [0.5], [math.nan]]
    if isinstance(content[record], ConfigRecord):
        values += ["x", b"\xff\x00", True, ["x"], [b"x"], [True], ["x", "x"], "client-0"]
    return _set(content, record, name, chance.choice(values))


def number(content, chance):
    record, name, value = _value(content, chance)
    single = value[0] if isinstance(value, list) and value else value
    if record is None or isinstance(single, bool) or not isinstance(single, (int, float)):
        return False
    values = _WHOLE if isinstance(single, int) else _REAL
    if not isinstance(value, list):
        return _set(content, record, name, chance.choice(values))
    changed = list(value)
    for place in {chance.randrange(len(value)), *(range(len(value)) if chance.random() < 0.5 else ())}:
        changed[place] = chance.choice(values)
    return _set(content, record, name, changed)


def text(content, chance):
    record, name, value = _value(content, chance, ConfigRecord)
    single = value[0] if isinstance(value, list) and value else value
    if record is None or not isinstance(single, str):
        return False
    if not isinstance(value, list):
        return _set(content, record, name, chance.choice(_TEXTS))
    changed = list(value)
    changed[chance.randrange(len(value))] = chance.choice(_TEXTS)
    return _set(content, record, name, changed)


def listed(content, chance):
    both = sorted(
        (r, e)
        for r, record in content.items()
        if isinstance(record, (ConfigRecord, MetricRecord))
        for e, value in record.items()
        if isinstance(value, list) and value
    )
    if not both:
        return False
    record, name = chance.choice(both)
    value = list(content[record][name])
    ways = [
        value[:-1],
        value[1:],
        value[::-1],
        [*value, value[0]],
        [value[0]] * len(value),
        value * 2,
        [value[0]] * 200_000,
        chance.sample(value, len(value)),
    ]
    return _set(content, record, name, chance.choice(ways))


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


MUTATIONS: dict[str, Mutation] = {
    "drop-record": drop_record,
    "rename-record": rename_record,
    "other-kind": other_kind,
    "empty-record": empty_record,
    "no-records": no_records,
    "more-records": more_records,
    "error-text": error_text,
    "drop-array": drop_array,
    "rename-array": rename_array,
    "more-arrays": more_arrays,
    "not-finite": _put(math.nan, math.inf, -math.inf),
    "huge": _put(1e30, -1e30, 3e38, 1e15),
    "small": _put(0.0, -1.0, 1e-45),
    "whole": _changed(_whole),
    "bits": _changed(_bits),
    "shuffled": _changed(_shuffled),
    "array-type": _changed(_other_type),
    "array-shape": _changed(_other_shape),
    "truncated": _raw(lambda d, s, e, data, chance: (d, s, e, data[: chance.choice([0, 1, 60, len(data) - 1])])),
    "longer": _raw(lambda d, s, e, data, chance: (d, s, e, data + b"\x01" * chance.choice([1, 7, LONG]))),
    "type-said": _raw(
        lambda d, s, e, data, chance: (chance.choice(["float64", "int8", "O", "", "x", "V9"]), s, e, data)
    ),
    "shape-said": _raw(_giant),
    "encoding-said": _raw(_pickled),
    "drop-entry": drop_entry,
    "rename-entry": rename_entry,
    "more-entries": more_entries,
    "other-type": other_type,
    "number": number,
    "text": text,
    "listed": listed,
    "others-names": others_names,
    "json-leaf": json_leaf,
}
"""By name; a name keeps its meaning, because examples are kept by name and seed."""

FINITE = frozenset({"huge", "small", "whole", "bits", "shuffled"})
"""Mutations after which a reply may be well-formed, finite and absurd."""


def copied(content: RecordDict) -> RecordDict:
    """Copy records, not the bytes of arrays, which no mutation changes in place."""
    return RecordDict({name: record.copy() for name, record in content.items()})


def mutated(content: RecordDict, name: str, seed: int) -> RecordDict | None:
    """Return a mutated copy; None where the mutation finds nothing to change."""
    changed = copied(content)
    return changed if MUTATIONS[name](changed, random.Random(f"{name} {seed}")) else None
