"""Stacked state of several clients in one safetensors file, written atomically and read by rows.

There is no cache: reading from the system's page cache is as fast as a copy in memory. Checksums are of blocks of rows,
so that a row is checked without reading all others.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgraph.support.checksums import DAMAGED, METADATA, as_bytes, as_stored, checksum, described
from fedgraph.support.errors import RunError
from fedgraph.support.files import json_digest, json_object, replacing

_CLIENTS = "clients"
_CHECKSUMS = "checksums"
_BLOCK_BYTES = 1 << 18


def write_rows(path: Path, clients: Sequence[str], stacked: Mapping[str, Tensor]) -> None:
    """Write tensors ``[clients, ...]`` atomically."""
    stored, names = as_stored(stacked), json.dumps(list(clients))
    sums = {name: _sums(tensor, _rows_of_block(tensor), _seed(names, name, tensor)) for name, tensor in stored.items()}
    with replacing(path, private=True) as temporary:
        # Directly from the tensors to the file: gathering the bytes first is several times slower.
        save_file(stored, temporary, metadata={METADATA: json.dumps({_CLIENTS: list(clients), _CHECKSUMS: sums})})


def read_clients(path: Path) -> tuple[str, ...]:
    """Return the names of the clients of a file, in order, from its header.

    Raises FileNotFoundError for a file that is missing, RunError for one that is broken or has another format.
    """
    with _opened(path) as stream:
        return _clients_of(stream)


def rows_digest(path: Path) -> str:
    """Return a digest of clients and checksums of a file, from its header; raises errors as :func:`read_clients`."""
    with _opened(path) as stream:
        return json_digest(_head(stream))


def read_rows(
    path: Path, clients: Sequence[str], positions: Sequence[int], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return rows at ``positions`` of the file of ``clients``, copied to ``[positions, ...]``.

    ``like`` contains the names of the tensors to read, with their shapes and types without client axis. Only blocks
    with requested rows are read. Raises FileNotFoundError when the file is missing. Raises RunError when it is damaged,
    has another format, or contains other clients, other tensors or other shapes.
    """
    with _opened(path) as stream:
        if _clients_of(stream) != tuple(clients):
            raise RunError(f"the saved state {path} is not that of the clients it is named for; was it moved there?")
        found, wanted = set(stream.keys()), set(like)
        if not wanted <= found:
            raise _mismatch(path, f"holds {sorted(found)}, needed are {sorted(wanted)}")
        # Files of older versions have no checksums, and are not checked.
        checksums = _head(stream).get(_CHECKSUMS)
        rows = {}
        for name, row in like.items():
            kept = stream.get_slice(name)
            shape, needed = tuple(kept.get_shape()), (len(clients), *row.shape)
            if shape != needed:
                raise _mismatch(path, f"holds {name} as {shape}, needed is {needed}")
            sums = None if checksums is None else checksums[name]
            rows[name] = _checked_rows(stream, name, positions, sums).to(row.dtype)
        return rows


def _checked_rows(stream: Any, name: str, positions: Sequence[int], sums: Sequence[int] | None) -> Tensor:
    """Return a copy of the rows of a tensor. Raises ValueError if a block of rows does not fit its checksum."""
    kept = stream.get_slice(name)
    first = kept[0:1]
    count, height = kept.get_shape()[0], _rows_of_block(first)
    blocks = sorted({position // height for position in positions})
    # A copy is aligned independent of the packing.
    parts = [kept[part.start * height : min(count, part.stop * height)] for part in _runs(blocks)]
    read = torch.cat(parts) if parts else first[:0]
    if sums is not None:
        seed = _seed(json.dumps(_head(stream)[_CLIENTS]), name, first)
        if _sums(read, height, seed, blocks) != [sums[block] for block in blocks]:
            raise ValueError(DAMAGED)
    if list(positions) == list(range(count)):
        return read
    begin = {block: place * height for place, block in enumerate(blocks)}
    return read[torch.tensor([begin[row // height] + row % height for row in positions], dtype=torch.int64)]


def _sums(rows: Tensor, height: int, seed: int, blocks: Sequence[int] | None = None) -> list[int]:
    """Return the checksum of each block of ``height`` rows; ``blocks`` are their numbers in the file."""
    size = height * rows[:1].nbytes
    content = as_bytes(rows)
    numbers = range(-(-len(rows) // height)) if blocks is None else blocks
    return [checksum(content[place * size : (place + 1) * size], seed ^ number) for place, number in enumerate(numbers)]


def _rows_of_block(rows: Tensor) -> int:
    return max(1, _BLOCK_BYTES // max(1, rows[:1].nbytes))


def _seed(clients: str, name: str, rows: Tensor) -> int:
    """Return a checksum of what else the rows depend on: the names of their clients, name, type and shape."""
    return zlib.crc32(described(name, rows[:1]), zlib.crc32(clients.encode()))


def _mismatch(path: Path, what: str) -> RunError:
    return RunError(f"the saved state {path} {what}; was the run continued with other settings?")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(str(path), framework="pt") as stream:
            yield stream
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"cannot read the saved state {path}: {error}") from None


def _clients_of(stream: Any) -> tuple[str, ...]:
    clients = _head(stream).get(_CLIENTS)
    if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
        raise ValueError("it does not say whose state it holds")
    return tuple(clients)


def _head(stream: Any) -> dict[str, Any]:
    metadata = stream.metadata() or {}
    if METADATA in metadata:
        return json_object(metadata[METADATA].encode())
    return {_CLIENTS: json.loads(metadata.get(_CLIENTS, "null"))}


def _runs(numbers: Sequence[int]) -> Iterator[slice]:
    """Yield sorted numbers as maximal slices."""
    start = 0
    for stop in range(1, len(numbers) + 1):
        if stop == len(numbers) or numbers[stop] != numbers[stop - 1] + 1:
            yield slice(numbers[start], numbers[stop - 1] + 1)
            start = stop
