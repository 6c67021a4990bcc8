"""Models of several clients as one matrix, stored as a matrix or as named arrays of any dtype.

An algorithm computes with ``[clients, parameters]``. The engine has such a matrix; a Flower strategy has the arrays of
its clients' apps, in any precision, and possibly too large to copy: :class:`ModelRows` reads and writes them as columns
of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Never

import torch
from torch import Tensor

from fedgraph.models import Layout
from fedgraph.support.errors import ReplyError, RunError

_IN_PLACE = (
    "compute with matrix(models), and return written(models, positions, rows), mixed(...) or filled(...), of "
    "fedgraph.algorithms, which take one tensor as well"
)

_STATISTICS = ("running_mean", "running_var")
"""PyTorch's names of running statistics, by which those of an app's models are recognised."""

_AT_ONCE = 1 << 23
"""Most numbers processed at once (32 MiB); more are processed in blocks of columns."""


class ModelRows:
    """Models of several clients as named tensors, read and written as columns of ``[clients, parameters]``.

    Raises ReplyError for complex tensors, and for models with other tensors than the first.

    Parameters
    ----------
    models : sequence of dict of str to Tensor
        A model of each client, with the names and shapes of the first. Written to in place.
    own : collection of str
        Tensors that stay with every client, such as a personal layer.

    Attributes
    ----------
    layout : Layout
        The shared floating-point tensors, in the order of the first model, but running statistics last: the columns.
        Others, such as batch counters, are not computed with.
    dtype : torch.dtype
        Of the matrix: float64 where a tensor is, else float32.
    """

    def __init__(self, models: Sequence[dict[str, Tensor]], own: Collection[str] = ()) -> None:
        self.models, self.own = list(models), frozenset(own)
        first = self.models[0] if self.models else {}
        for name, value in first.items():
            if value.is_complex():
                raise ReplyError(f"array '{name}' is {value.dtype}: complex numbers are not supported")
        floating = {name: each for name, each in first.items() if each.is_floating_point() and name not in self.own}
        self.layout = Layout.of(floating, [name for name in floating if name.rpartition(".")[2] in _STATISTICS])
        double = any(value.dtype == torch.float64 for value in floating.values())
        self.dtype = torch.float64 if double else torch.float32

    @classmethod
    def repeated(cls, model: Mapping[str, Tensor], clients: int, own: Collection[str] = ()) -> ModelRows:
        """Return a copy of one model for each of several clients."""
        return cls([{name: value.clone() for name, value in model.items()} for _ in range(clients)], own)

    def __len__(self) -> int:
        return len(self.models)

    @property
    def shape(self) -> tuple[int, int]:
        """``(clients, parameters)``, of the matrix."""
        return len(self.models), self.layout.num_parameters

    def columns(self, start: int, stop: int, positions: Tensor | None = None) -> Tensor:
        """Return columns of the matrix, ``[clients, stop - start]``, or of the clients at ``positions`` alone."""
        chosen = self.models if positions is None else [self.models[place] for place in positions.tolist()]
        whole = torch.empty(len(chosen), stop - start, dtype=self.dtype)
        for row, model in zip(whole, chosen, strict=True):
            for name, taken, within in self._pieces(start, stop):
                row[within] = model[name].reshape(-1)[taken]
        return whole

    def write(self, positions: Tensor, start: int, values: Tensor) -> None:
        """Write ``values`` ``[positions, columns]`` to columns from ``start`` on, of the clients at ``positions``."""
        for place, row in zip(positions.tolist(), values, strict=True):
            for name, taken, within in self._pieces(start, start + values.shape[1]):
                self.models[place][name].view(-1)[taken] = row[within].to(self.models[place][name].dtype)

    def take_over(self, positions: Tensor, others: ModelRows) -> None:
        """Copy the tensors that are not computed with from the models of others, a row for each of ``positions``."""
        for place, model in zip(positions.tolist(), others.models, strict=True):
            for name, value in model.items():
                if name not in self.layout.names:
                    self.models[place][name] = value.clone()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Never:
        """Raise TypeError with advice: this is not a tensor."""
        raise TypeError(f"models of a Flower app are not a tensor, for torch's {_name(function)}: {_IN_PLACE}")

    def __getattr__(self, name: str) -> Never:
        if not hasattr(Tensor, name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        raise AttributeError(f"models of a Flower app are not a tensor, and have no '{name}': {_IN_PLACE}")

    def _not_a_tensor(self, *operands: object) -> Never:
        raise TypeError(f"models of a Flower app are not a tensor, to compute with or to index: {_IN_PLACE}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _not_a_tensor
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = _not_a_tensor
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __setitem__ = __iter__ = _not_a_tensor

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[str, slice, slice]]:
        """Yield the tensors that columns lie in: name, places in the tensor, and places among the columns."""
        first = 0
        for name, size in zip(self.layout.names, self.layout.sizes, strict=True):
            low, high = max(start, first), min(stop, first + size)
            if low < high:
                yield name, slice(low - first, high - first), slice(low - start, high - start)
            first += size


Models = Tensor | ModelRows


def matrix(models: Models, positions: Tensor | None = None) -> Tensor:
    """Return models, or those at ``positions``, as one matrix ``[clients, parameters]``."""
    if isinstance(models, ModelRows):
        return models.columns(0, models.shape[1], positions)
    return models if positions is None or len(positions) == len(models) else models[positions]


def written(models: Models, positions: Tensor, rows: Tensor) -> Models:
    """Return models with ``rows`` ``[positions, parameters]`` at ``positions``.

    :class:`ModelRows` are changed in place.
    """
    if isinstance(models, ModelRows):
        models.write(positions, 0, rows)
        return models
    return rows if len(positions) == len(models) else models.index_copy(0, positions, rows)


def filled(models: Models, row: Tensor) -> Models:
    """Return models that are all ``row`` ``[parameters]``."""
    if isinstance(models, ModelRows):
        return written(models, torch.arange(len(models)), row.expand(len(models), -1))
    return row.expand(len(models), -1)


def mixed(models: Models, positions: Tensor, rows: Models, mix: Callable[[Tensor], Tensor]) -> Models:
    """Return models with ``mix(rows)`` at ``positions``, where ``mix`` acts on each column separately.

    Parameters
    ----------
    models : Tensor or ModelRows
        ``[clients, parameters]``; :class:`ModelRows` are changed in place, in blocks of columns.
    positions : Tensor
        Clients that get a new model, int64 ``[present]``.
    rows : Tensor or ModelRows
        ``[present, parameters]``.
    mix : callable
        Function of columns ``[present, columns]``, which returns as many.
    """
    if isinstance(models, Tensor):
        return written(models, positions, mix(matrix(rows)))
    for start, stop in _blocks(len(rows), rows.shape[1]):
        part = rows.columns(start, stop) if isinstance(rows, ModelRows) else rows[:, start:stop]
        models.write(positions, start, mix(part))
    return models


def combined(models: Models, combine: Callable[[Tensor], Tensor]) -> Tensor:
    """Return one model ``[parameters]`` of many, where ``combine`` acts on each column separately.

    ``combine`` is a function of columns ``[clients, columns]``, and returns ``[columns]``.
    """
    if isinstance(models, Tensor):
        return combine(models)
    whole = torch.empty(models.shape[1], dtype=models.dtype)
    for start, stop in _blocks(*models.shape):
        whole[start:stop] = combine(models.columns(start, stop))
    return whole


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _blocks(clients: int, parameters: int) -> list[tuple[int, int]]:
    width = max(_AT_ONCE // max(clients, 1), 1)
    return [(start, min(start + width, parameters)) for start in range(0, parameters, width)]


def check_models(where: str, returned: object, models: Models) -> None:
    """Check that an algorithm returned models of all clients; see :func:`check_rows`."""
    shape, meaning = tuple(models.shape), "a row for each client, in the order of their names, and a column for each"
    meaning += ' parameter; where clients are absent, written(state["models"], answers.positions, rows) has all rows'
    check_rows(where, returned, shape, meaning, models)


def check_rows(where: str, returned: object, shape: tuple[int, ...], meaning: str, models: Models) -> None:
    """Check the type and the shape of the models that an algorithm computed.

    Raises RunError unless it is a tensor of this type and shape.

    Parameters
    ----------
    where : str
        Beginning of the message: ``"Mine.aggregate, in round 1, returned"``.
    returned : object
        The returned value.
    shape : tuple of int
        The expected shape.
    meaning : str
        Meaning of the shape, in words.
    models : Tensor or ModelRows
        Models of the expected type.
    """
    # A strategy that computes in float64 would fail at the nodes, one round later.
    if not isinstance(returned, Tensor) or returned.dtype != models.dtype:
        if isinstance(returned, Tensor):
            found, advice = f"a tensor of {returned.dtype}", f"end with .to({models.dtype})"
        elif returned is None:
            found, advice = "None", "is there a return?"
        else:
            kind = type(returned)
            found = f"a {kind.__module__}.{kind.__name__}".replace(" builtins.", " ")
            advice = "make it one with torch.as_tensor(...).float()"
        raise RunError(f"{where} {found} in place of a float tensor {list(shape)}, {meaning}: {advice}")
    if returned.shape != shape:
        raise RunError(f"{where} {list(returned.shape)} in place of {list(shape)}: {meaning}")
