"""What constructors are given: names as text; arrays and data frames as numbers, in the order of the clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph.support.errors import GraphError, quoted, similar

_SOURCE, _TARGET, _WEIGHT = ("from", "source", "client"), ("to", "target", "neighbour"), ("weight",)
_MISSING = ("None", "nan", "NaN", "NaT", "<NA>")
_LATITUDE, _LONGITUDE = ("latitude", "lat"), ("longitude", "lon", "lng")
_ROWS, _COLUMNS = "the rows of the data frame", "the columns of the data frame"


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
    """Return names as text; see :func:`client_name`. Raises GraphError for a set, whose order is not fixed."""
    if isinstance(names, set | frozenset):
        raise GraphError(f"{where} must be in order, and a {type(names).__name__} has none: give a list")
    return tuple(client_name(name, where) for name in names)


def real_tensor(values: Any, what: str, shape: str) -> Tensor:
    """Return numbers as a tensor, which may share memory with them.

    Raises GraphError, which says ``what`` they are, for complex numbers and for anything but numbers.
    """
    try:
        found = values if isinstance(values, Tensor) else torch.as_tensor(_usable(np.asarray(values)))
    except (TypeError, ValueError) as error:
        raise GraphError(f"{what} must be numbers {shape}: {error}") from None
    if found.is_complex():
        raise GraphError(
            f"{what} must be real numbers {shape}, and these are complex: take their real parts or absolute values"
        )
    return found


def _usable(array: np.ndarray) -> np.ndarray:
    """Return numbers as PyTorch takes them: writable, without negative strides, and not as objects or text."""
    return np.require(array, None if array.dtype.kind in "biufc" else np.float64, ["C", "W"])


def square_in_order(values: Any, names: Sequence[Any] | None) -> tuple[Any, Sequence[Any] | None]:
    """Return a matrix ``[N, N]`` and the names of its clients; rows and columns of a data frame go by label.

    They are put into the order of ``names``, by default of the rows. Labels that are just the numbers from 0 are none:
    such rows are as the columns, or the other way round. Raises GraphError if rows, columns and names are not the same
    clients.
    """
    if not _is_frame(values) or values.shape[0] != values.shape[1]:
        return values, names
    numbered = _are_numbers(_index(values)), _are_numbers(values.columns)
    if all(numbered):
        return np.asarray(values), names
    rows, columns = client_names(_index(values), _ROWS), client_names(values.columns, _COLUMNS)
    if set(rows) != set(columns):
        rows, columns = columns if numbered[0] else rows, rows if numbered[1] else columns
    array = np.asarray(values)[:, _places(columns, rows, "columns", "rows")]
    if names is None:
        return array, rows
    order = _places(rows, client_names(names), "labels", "names")
    return array[np.ix_(order, order)], names


def is_labelled_matrix(values: Any) -> bool:
    """Return whether a value is a data frame with a row and a column for each client, with labels, and no edge list."""
    if not _is_frame(values) or values.shape[0] != values.shape[1]:
        return False
    heads = _heads(values)
    lists_edges = _column(heads, _SOURCE) is not None and _column(heads, _TARGET) is not None
    return not lists_edges and not (_are_numbers(_index(values)) and _are_numbers(values.columns))


def rows_in_order(values: Any, names: Sequence[str]) -> Any:
    """Return an array with a row for each client; the rows of a data frame go by label, if they have any.

    Raises GraphError if the labels are not ``names``.
    """
    if not _is_frame(values) or _are_numbers(_index(values)):
        return values
    return np.asarray(values)[_places(client_names(_index(values), _ROWS), names, "labels", "names")]


def latitude_longitude(values: Any) -> Any:
    """Return the columns latitude and longitude, whatever their order, of a data frame with such columns."""
    heads = _heads(values) if _is_frame(values) else {}
    found = [_column(heads, _LATITUDE), _column(heads, _LONGITUDE)]
    return values if None in found else values[found]


def listed_edges(edges: Any) -> Iterable[Any]:
    """Return edges as a list of ``(source, target)`` or ``(source, target, weight)``.

    Raises GraphError for anything but a list, weights by pair, an array, or a data frame with such columns.
    """
    if _is_frame(edges):
        return _frame_edges(edges)
    if isinstance(edges, Mapping):
        return [(*pair, weight) for pair, weight in edges.items()]
    found = edges.tolist() if isinstance(edges, Tensor) else edges
    if not isinstance(found, Iterable):
        raise GraphError(f"edges must be a list of (source, target) or (source, target, weight); got {edges!r}")
    return found


def _frame_edges(frame: Any) -> Iterable[Any]:
    heads = _heads(frame)
    source, target, weight = (_column(heads, known) for known in (_SOURCE, _TARGET, _WEIGHT))
    if source is None or target is None or (weight is None and len(heads) > 2):
        raise GraphError(
            "a data frame of edges has the columns from and to (or source and target), alone or with weight; this one "
            f"has {quoted(list(heads))}: rename them (distances go to from_distance_list)"
        )
    ends = [frame[source], frame[target]]
    return zip(*(ends if weight is None else [*ends, frame[weight]]), strict=True)


def _is_frame(values: Any) -> bool:
    return hasattr(values, "columns")


def _index(frame: Any) -> Sequence[Any]:
    """Return the labels of the rows; in some libraries data frames have none."""
    return getattr(frame, "index", range(len(frame)))


def _are_numbers(labels: Sequence[Any]) -> bool:
    """Whether labels are just the numbers from 0."""
    return all(isinstance(label, int | np.integer) and label == at for at, label in enumerate(labels))


def _heads(frame: Any) -> dict[str, Any]:
    return {str(name).strip().lower(): name for name in frame.columns}


def _column(heads: Mapping[str, Any], known: Sequence[str]) -> Any:
    return next((heads[word] for word in known if word in heads), None)


def _places(labels: Sequence[str], wanted: Sequence[str], what: str, others: str) -> list[int]:
    """Return where each of the wanted labels is.

    Raises GraphError, with the first ones that differ, if they are not the same labels.
    """
    place = {label: at for at, label in enumerate(labels)}
    if len(place) < len(labels):
        repeated = [label for at, label in enumerate(labels) if place[label] != at]
        raise GraphError(f"the {what} of the data frame must be unique; given more than once: {quoted(repeated)}")
    known = set(wanted)
    surplus, lacking = [label for label in labels if label not in known], [name for name in wanted if name not in place]
    if surplus or lacking:
        differing = [
            f"only the {who} have {quoted(found)}" for who, found in ((what, surplus), (others, lacking)) if found
        ]
        raise GraphError(
            f"the {what} of the data frame and the {others} must be the same clients: {', '.join(differing)}"
            f"{similar(surplus, lacking)}; correct them, or give the numbers alone, in order (frame.to_numpy())"
        )
    return [place[name] for name in wanted]
