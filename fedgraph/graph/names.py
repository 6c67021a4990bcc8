"""Names of clients as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from fedgraph.support.errors import GraphError

_MISSING = ("None", "nan", "NaN", "NaT", "<NA>")


def client_name(value: Any, where: str) -> str:
    """Return a name as text, whole numbers such as 1.0 as ``1``.

    Raises GraphError, which starts with ``where``, for None, NaN and the like.
    """
    if isinstance(value, Tensor):
        value = value.item()
    if isinstance(value, str):
        return str(value)
    text = str(value)
    if text in _MISSING:
        raise GraphError(f"{where}: the name of a client is missing ({text}); put a name there, or leave it out")
    whole = isinstance(value, float | np.floating) and value.is_integer()
    return str(int(value)) if whole else text


def client_names(names: Iterable[Any], where: str = "names") -> tuple[str, ...]:
    """Return names as text; see :func:`client_name`."""
    return tuple(client_name(name, where) for name in names)
