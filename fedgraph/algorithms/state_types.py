"""The types of values allowed in a state, which files restore exactly."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
from torch import Tensor

from fedgraph.support.errors import RunError

_ADVICE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (tuple, "a list, [...]"),
    ((set, frozenset), "a list, sorted(...)"),
    (np.ndarray, "a tensor, torch.as_tensor(...)"),
    (np.generic, "a number, .item()"),
    (dict, "a plain dict, dict(...)"),
    (Tensor, "one tensor, torch.stack(...), or a dict of tensors, in place of the list"),
)


def check_state(where: str, state: Any) -> None:
    """Check that a state consists of tensors, numbers, strings, None, and lists and dicts of them.

    Raises RunError for anything else, such as tuples, sets, NumPy arrays, tensors in lists, and keys that are not
    strings, with its place in the state, its type, and the alternative.

    Parameters
    ----------
    where : str
        Who returned it, for the message: ``"Mine.init returned"``.
    state : dict
        As it is saved.
    """
    _check(f"{where} state", state, in_list=False)


def _check(place: str, value: Any, in_list: bool) -> None:
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise RunError(
                    f"{place} with the key {key!r} of type {type(key).__name__}, which cannot be restored in a resumed "
                    "run: use strings as keys, str(...)"
                )
            _check(f'{place}["{key}"]', item, in_list)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check(f"{place}[{number}]", item, in_list=True)
    elif not _is_supported(value, in_list):
        advice = next((text for kinds, text in _ADVICE if isinstance(value, kinds)), "")
        raise RunError(
            f"{place} of type {type(value).__name__}, which cannot be restored in a resumed run: use "
            f"{advice or 'only tensors, numbers, strings, lists and dicts'}"
        )


def _is_supported(value: Any, in_list: bool) -> bool:
    return value is None or isinstance(value, str | int | float) or (isinstance(value, Tensor) and not in_list)
