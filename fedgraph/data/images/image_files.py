"""Image data sets as published: the idx files of MNIST, the pickled batches of CIFAR, and lossless image mosaics."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedgraph.support.errors import DataError
from fedgraph.support.files import read_arrays
from fedgraph.support.safe_pickle import read_pickle

Bytes = NDArray[np.uint8]
FileKey = tuple[tuple[Path, int], ...]

IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CIFAR100_NAMES = ("train", "test")
MOSAIC_NAMES = ("labels.npz", *(f"train_{n:02d}.webp" for n in range(10)), *(f"test_{n:02d}.webp" for n in range(2)))
MOSAIC_ROWS, MOSAIC_COLUMNS, TILE = 50, 100, 32


@dataclass(frozen=True)
class Images:
    """All images of a set, training images first: pixels uint8 ``[images, channels, height, width]``, labels int64."""

    pixels: Bytes
    labels: NDArray[np.int64]
    num_train: int


def file_key(paths: Sequence[Path]) -> FileKey:
    """Return a cache key for the content of ``paths``: absolute paths and times of modification."""
    return tuple((path.absolute(), path.stat().st_mtime_ns) for path in paths)


@lru_cache(maxsize=4)
def read_images(files: FileKey, sha256: tuple[str, ...] = ()) -> Images:
    """Read one data set; it is cached, as many nodes of a process use the same arrays.

    ``files`` are in the order of ``IDX_NAMES``, ``CIFAR10_NAMES``, ``CIFAR100_NAMES`` or ``MOSAIC_NAMES``, or one tar
    file of CIFAR. ``sha256`` of the unpacked idx files is verified if given. Raises DataError naming the file.
    """
    paths = [path for path, _ in files]
    if paths[0].name == MOSAIC_NAMES[0]:
        return _read_mosaics(paths)
    if paths[0].name.startswith(IDX_NAMES[0]):
        return _read_idx_set(paths, sha256)
    return _read_cifar(_cifar_members(paths), where=paths[0].parent if len(paths) > 1 else paths[0])


def read_idx(path: Path, sha256: str | None = None) -> Bytes:
    """Read an idx file of unsigned bytes, gzipped (name ends in .gz) or not, as an array of its shape."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): download it again") from None
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of unsigned bytes: its first bytes are {raw[:4].hex(' ')!r}")
    header = 4 + 4 * raw[3]
    shape = tuple(int(size) for size in np.frombuffer(raw[4:header], dtype=">u4"))
    if len(raw) != header + math.prod(shape):
        raise DataError(f"{path} must hold {shape} bytes after its header, and holds {len(raw) - header}: truncated?")
    if sha256 and hashlib.sha256(raw).hexdigest() != sha256:
        raise DataError(f"{path} is not the published file: its unpacked content must have SHA-256 {sha256}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy()


def _read_idx_set(paths: Sequence[Path], sha256: tuple[str, ...]) -> Images:
    checksums = sha256 or (None,) * len(paths)
    train, train_labels, test, test_labels = (read_idx(*pair) for pair in zip(paths, checksums, strict=True))
    for path, pixels, own in ((paths[0], train, train_labels), (paths[2], test, test_labels)):
        if pixels.ndim != 3 or own.shape != pixels.shape[:1]:
            raise DataError(f"{path} holds images {pixels.shape}, which do not match labels {own.shape}")
    labels = np.concatenate([train_labels, test_labels]).astype(np.int64)
    return Images(np.concatenate([train, test])[:, None], labels, len(train))


def _unpickled(raw: bytes, where: str) -> dict[str, Any]:
    """Read a pickled dict of arrays and lists, whose keys may be bytes, without executing anything in it."""
    try:
        value = read_pickle(io.BytesIO(raw))
    except ValueError as error:
        raise DataError(f"{where} cannot be read as a CIFAR batch: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{where} cannot be read as a CIFAR batch: it holds {type(value).__name__}, not a dict")
    return {key.decode(errors="replace") if isinstance(key, bytes) else str(key): entry for key, entry in value.items()}


def _cifar_members(paths: Sequence[Path]) -> dict[str, bytes]:
    """Read the wanted files of a folder, or of one tar file, by name."""
    try:
        if len(paths) > 1:
            return {path.name: path.read_bytes() for path in paths}
        wanted = {*CIFAR10_NAMES, *CIFAR100_NAMES}
        members = {}
        with tarfile.open(paths[0]) as archive:
            for member in archive:
                name = Path(member.name).name
                content = archive.extractfile(member) if name in wanted else None
                if content is not None:
                    members[name] = content.read()
        return members
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{paths[0]} cannot be read ({error}): fetch it again") from None


def _read_cifar(members: dict[str, bytes], where: Path) -> Images:
    names = CIFAR100_NAMES if "train" in members else CIFAR10_NAMES
    missing = [name for name in names if name not in members]
    if missing:
        raise DataError(f"{where} does not hold {', '.join(missing)}: fetch it again")
    batches = [_cifar_batch(members[name], f"{name} of {where}") for name in names]
    pixels, labels = (np.concatenate(column) for column in zip(*batches, strict=True))
    return Images(pixels, labels, len(labels) - len(batches[-1][1]))


def _cifar_batch(raw: bytes, where: str) -> tuple[Bytes, NDArray[np.int64]]:
    batch = _unpickled(raw, where)
    pixels, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list) or pixels.shape != (len(labels), 3072):
        raise DataError(f"{where} has no 'data' of 3072 bytes for each of its labels (it has: {', '.join(batch)})")
    if pixels.dtype != np.uint8:
        raise DataError(f"{where} has 'data' of {pixels.dtype} in place of bytes")
    return pixels.reshape(-1, 3, TILE, TILE), np.array(labels, dtype=np.int64)


def _read_mosaics(paths: Sequence[Path]) -> Images:
    """Read pictures of 50 x 100 tiles in rows, 32 x 32 RGB each, and their labels ``y_train``, ``y_test``."""
    labels = read_mosaic_labels(paths[0])
    pixels = np.concatenate([_tiles(path) for path in paths[1:]])
    both = np.concatenate([labels["y_train"], labels["y_test"]]).astype(np.int64)
    if len(both) != len(pixels):
        raise DataError(f"{paths[0]} has {len(both)} labels, and the mosaics beside it hold {len(pixels)} images")
    return Images(pixels, both, len(labels["y_train"]))


def read_mosaic_labels(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays ``y_train``, ``y_test``, and ``lossy_train``, ``lossy_test`` which list approximate images."""
    labels = read_arrays(path)
    if not {"y_train", "y_test"} <= labels.keys():
        raise DataError(f"{path} has no arrays y_train and y_test (it has: {', '.join(labels)})")
    return labels


def _tiles(path: Path) -> Bytes:
    try:
        with Image.open(path) as picture:
            flat = np.asarray(picture.convert("RGB"))
    except OSError as error:
        raise DataError(f"{path} cannot be read as an image ({error}): fetch it again") from None
    if flat.shape != (MOSAIC_ROWS * TILE, MOSAIC_COLUMNS * TILE, 3):
        wanted = f"{MOSAIC_COLUMNS * TILE} x {MOSAIC_ROWS * TILE}"
        raise DataError(f"{path} is {flat.shape[1]} x {flat.shape[0]} pixels, and a mosaic is {wanted}")
    tiles = flat.reshape(MOSAIC_ROWS, TILE, MOSAIC_COLUMNS, TILE, 3)
    return tiles.transpose(0, 2, 4, 1, 3).reshape(-1, 3, TILE, TILE)


@lru_cache(maxsize=1)
def read_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images ``[1797, 8, 8]`` with values from 0 to 16, and labels ``[1797]``, as ``load_digits`` returns them.

    Raises DataError when scikit-learn is not installed, or lacks the file.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(file, delimiter=",").astype(np.int64)
    except OSError:
        raise DataError(f"the digits come with scikit-learn, but {file} is missing: reinstall it") from None
    return table[:, :-1].astype(np.uint8).reshape(-1, 8, 8), table[:, -1]
