"""Conversion of tensors to and from Flower's array records; arrays of untrusted records are checked before decoding."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedgraph.messages.content import NUMPY, check_array
from fedgraph.support.errors import ReplyError


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Convert tensors on any device to an ArrayRecord in Flower's encoding, with a single copy."""
    return ArrayRecord({name: _encode(tensor) for name, tensor in tensors.items()})


def from_record(record: ArrayRecord) -> dict[str, Tensor]:
    """Convert an ArrayRecord to tensors, with a single copy.

    Returns writable tensors in memory of PyTorch, with the same alignment on every grid. Raises ReplyError for anything
    but numbers in the format of ``numpy.save``.
    """
    return {name: _decoded(name, array).clone() for name, array in record.items()}


def checked_arrays(
    record: ArrayRecord, expected: Mapping[str, tuple[int, ...]], types: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Decode the arrays of an untrusted record after checking names, shapes, types and sizes.

    Returns read-only views of the record's bytes. Raises ReplyError for missing or additional arrays, other shapes or
    types, and superfluous bytes.

    Parameters
    ----------
    record : ArrayRecord
        Record of a reply.
    expected : mapping of str to tuple of int
        Shapes by name; the record must contain exactly these arrays.
    types : mapping of str to str, optional
        NumPy types by name, ``float32`` for names that are missing.
    """
    if set(record) != set(expected):
        raise ReplyError(f"the reply holds the arrays {sorted(record)}, expected {sorted(expected)}")
    own = types or {}
    return {name: _checked(name, record[name], shape, own.get(name, "float32")) for name, shape in expected.items()}


def _checked(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Decode one array of a reply after checking shape and type."""
    if tuple(array.shape) != shape:
        raise ReplyError(f"array '{name}' has the shape {tuple(array.shape)}, expected {shape}")
    if array.dtype != dtype:
        raise ReplyError(f"array '{name}' has the type {array.dtype}, expected {dtype}")
    return _decoded(name, array)


@lru_cache(maxsize=1024)
def _header(dtype: str, shape: tuple[int, ...], fortran_order: bool = False) -> bytes:
    """Return the header of the ``numpy.save`` format."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    description = {"descr": descr, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, description)
    return stream.getvalue()


def _encode(tensor: Tensor) -> Array:
    values = tensor.detach().cpu().contiguous().numpy()
    dtype, shape = str(values.dtype), tuple(values.shape)
    data = b"".join((_header(dtype, shape), values.reshape(-1).view(np.uint8).data))
    return Array(dtype, shape, NUMPY, data)


def _decoded(name: str, array: Array) -> Tensor:
    """Return the numbers, read-only, without a copy if they are in C order.

    Raises ReplyError for anything but numbers in the format of ``numpy.save``.
    """
    check_array(name, array)
    shape = tuple(array.shape)
    headers = {order: _header(array.dtype, shape, order == "F") for order in "CF"}
    # scikit-learn's and transposed arrays are in Fortran order.
    order = next((order for order, header in headers.items() if array.data.startswith(header)), None)
    size = np.dtype(array.dtype).itemsize * math.prod(shape)
    if order is None or len(array.data) < len(headers[order]) + size:
        raise ReplyError(f"array '{name}' cannot be decoded (its encoding is not that of {array.dtype} {shape})")
    flat = np.frombuffer(array.data, array.dtype, count=math.prod(shape), offset=len(headers[order]))
    values = flat.reshape(shape) if order == "C" else flat.reshape(shape, order="F").copy(order="C")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(values)
    except TypeError as error:
        raise ReplyError(f"array '{name}' cannot be decoded ({error})") from None
