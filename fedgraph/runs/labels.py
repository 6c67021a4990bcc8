"""What runs are called that stand side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedgraph.support.settings import UNSET

_MOST_KEYS = 3
"""Keys that a name has room for."""
_WITHOUT_EFFECT = ("experiment.name", "evaluation.yardsticks", "output.")


def labels(methods: Sequence[str], experiments: Sequence[Mapping[str, Any]], codes: Sequence[str] = ()) -> list[str]:
    """Return a name for each run: its method and, where methods repeat, the keys in which experiments differ.

    Parameters
    ----------
    methods : sequence of str
        Method of each run.
    experiments : sequence of mapping
        Tables of each run's experiment.
    codes : sequence of str
        What the code of the user's that each run used is told apart by; empty where there is none.

    Returns
    -------
    list of str
        ``sfl`` and ``sfl (permute-seed=0)``, for example, or ``Mine (code 3f2a1c)`` where the user's code differs;
        ``sfl #1`` and ``sfl #3``, by their places, where experiments differ in more keys than a name has room for, or
        in none; ``sfl (permute-seed=0) #2`` where some are the same.
    """
    found = list(methods)
    for method in (method for method, count in Counter(methods).items() if count > 1):
        places = [place for place, each in enumerate(methods) if each == method]
        keys = [_keys(experiments[place]) for place in places]
        for own, place in zip(keys, places, strict=True):
            if codes and codes[place]:
                own["code"] = f"code {codes[place]}"
        every = dict.fromkeys(key for own in keys for key in own)
        differing = [key for key in every if any(own.get(key) != keys[0].get(key) for own in keys)]
        named = [_named(method, {key: own[key] for key in differing if key in own}) for own in keys]
        if len(differing) > _MOST_KEYS:
            named = [method for _ in places]
        for place, name in zip(places, named, strict=True):
            found[place] = name if named.count(name) == 1 else f"{name} #{place + 1}"
    return found


def _keys(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of all tables together, without those that change no result."""
    return {key: value for key, value in _flat(experiment) if not key.startswith(_WITHOUT_EFFECT)}


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key == UNSET:
            continue
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", each) for inner, each in _flat(value))
        else:
            yield key, value


def _named(method: str, values: Mapping[str, Any]) -> str:
    # Words such as "ridge" say enough; a number needs its key.
    told = [value if isinstance(value, str) else f"{key.rpartition('.')[2]}={value}" for key, value in values.items()]
    return f"{method} ({', '.join(told)})" if told else method
