"""Stacked state of several clients in one safetensors file, written atomically and read by rows.

There is no cache: reading from the system's page cache is as fast as a copy in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgraph.support.errors import RunError
from fedgraph.support.files import replacing

_CLIENTS = "clients"


def write_rows(path: Path, clients: Sequence[str], stacked: Mapping[str, Tensor]) -> None:
    """Write tensors ``[clients, ...]`` atomically."""
    with replacing(path) as temporary:
        # Directly from the tensors to the file: gathering the bytes first is several times slower.
        save_file(_storable(stacked), temporary, metadata={_CLIENTS: json.dumps(list(clients))})


def read_clients(path: Path) -> tuple[str, ...]:
    """Return the names of the clients of a file, in order, from its header.

    Raises FileNotFoundError for a file that is missing, RunError for one that is broken or has another format.
    """
    with _opened(path) as stream:
        return _clients_of(stream)


def read_rows(
    path: Path, clients: Sequence[str], positions: Sequence[int], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return rows at ``positions`` of the file of ``clients``, copied to ``[positions, ...]``.

    ``like`` contains the names of the tensors to read, with their shapes and types without client axis. Only the
    requested rows are read. Raises FileNotFoundError when the file is missing. Raises RunError when it is broken, has
    another format, or contains other clients, other tensors or other shapes.
    """
    with _opened(path) as stream:
        if _clients_of(stream) != tuple(clients):
            raise RunError(f"the saved state {path} is not that of the clients it is named for; was it moved there?")
        found, wanted = set(stream.keys()), set(like)
        if not wanted <= found:
            raise _mismatch(path, f"holds {sorted(found)}, needed are {sorted(wanted)}")
        rows = {}
        for name, row in like.items():
            kept = stream.get_slice(name)
            shape, needed = tuple(kept.get_shape()), (len(clients), *row.shape)
            if shape != needed:
                raise _mismatch(path, f"holds {name} as {shape}, needed is {needed}")
            if list(positions) == list(range(len(clients))):
                # A clone is aligned independent of the packing.
                rows[name] = stream.get_tensor(name).to(row.dtype, copy=True)
            else:
                parts = [kept[part] for part in _runs(positions)]
                rows[name] = torch.cat(parts).to(row.dtype) if parts else row.new_empty((0, *row.shape))
        return rows


def _mismatch(path: Path, what: str) -> RunError:
    return RunError(f"the saved state {path} {what}; was the run continued with other settings?")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(str(path), framework="pt") as stream:
            yield stream
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"cannot read the saved state {path}: {error}") from None


def _clients_of(stream: Any) -> tuple[str, ...]:
    clients = json.loads((stream.metadata() or {}).get(_CLIENTS, "null"))
    if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
        raise ValueError("it does not say whose state it holds")
    return tuple(clients)


def _runs(positions: Sequence[int]) -> Iterator[slice]:
    """Yield positions as maximal slices."""
    start = 0
    for stop in range(1, len(positions) + 1):
        if stop == len(positions) or positions[stop] != positions[stop - 1] + 1:
            yield slice(positions[start], positions[stop - 1] + 1)
            start = stop


def _storable(stacked: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in main memory, contiguous; the file format refuses those that share memory."""
    tensors: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, value in stacked.items():
        tensor = value.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        tensors[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    return tensors
