"""Files: atomic writes, locks between processes, file names from user names, tensors, and plain state.

Plain state is a nested dict of tensors and JSON values in one safetensors file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedgraph.support.checksums import as_stored, verified, with_checksum
from fedgraph.support.errors import DataError, DiskError, RunError

_UNFINISHED = ".part"
_UNFINISHED_SAFETENSORS = re.compile(r"\.tmp\w{6}")
_ABANDONED_SECONDS = 3600.0


def make_folder(under: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Create a folder with its content atomically, and return it.

    Until it is complete, it is a hidden folder next to the target; leftovers of killed processes are removed after an
    hour.

    Parameters
    ----------
    under : Path
        Parent folder, created if missing.
    name : str
        Its name, followed by ``-2``, ``-3`` etc. if it exists.
    fill : callable
        Writes the files into the temporary folder.
    """
    under.mkdir(parents=True, exist_ok=True)
    for abandoned in under.glob(f".*{_UNFINISHED}"):
        with suppress(OSError):
            if time.time() - abandoned.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(abandoned)
    made = Path(tempfile.mkdtemp(dir=under, prefix=f".{name}.", suffix=_UNFINISHED))
    try:
        made.chmod(0o755)
        fill(made)
        for number in itertools.count(1):
            path = under / (name if number == 1 else f"{name}-{number}")
            try:
                # A folder with anything in it is not replaced.
                made.rename(path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                return path
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    raise AssertionError("not reached")


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files of killed writers in a folder and below; no other process may be writing there."""
    for path in folder.rglob(".*"):
        if is_unfinished(path.name):
            path.unlink(missing_ok=True)


def is_unfinished(name: str) -> bool:
    """Whether this is the name of a temporary file of :func:`replacing` or of safetensors."""
    return name.startswith(".") and (name.endswith(_UNFINISHED) or _UNFINISHED_SAFETENSORS.fullmatch(name) is not None)


def private_folder(folder: Path) -> Path:
    """Create a folder, and those above that are missing, open to its user alone whatever the umask; return it."""
    if not folder.is_dir():
        private_folder(folder.parent).joinpath(folder.name).mkdir(0o700, exist_ok=True)
    return folder


@contextmanager
def replacing(path: Path, private: bool = False) -> Iterator[Path]:
    """Yield a file to fill within the block, which then replaces ``path`` atomically.

    A reader sees either the old or the new file, even if the process is killed. The new one is a hidden file in the
    same folder, removed by an exception, or by :func:`remove_unfinished` after a kill. With ``private`` the file, and
    folders that are created for it, are open to their user alone, whatever the umask. Raises DiskError, see
    :func:`written`.
    """
    with written(path):
        private_folder(path.parent) if private else path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_UNFINISHED)
        os.close(descriptor)
        try:
            yield Path(temporary)
            # Opened only now, as the writer may replace the file, as safetensors does.
            with open(temporary, "rb") as filled:
                os.fsync(filled.fileno())
            os.chmod(temporary, 0o600 if private else 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_ERROR_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Name ``path`` in the errors of a block that writes to it, which have no file if its disk is full.

    Raises DiskError, which is an OSError too, if the disk is full, over its quota, read-only or failing.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        # An error of safetensors has the number in its text.
        in_text = _ERROR_NUMBER.search(str(error))
        number = error.errno if isinstance(error, OSError) else int(in_text[1]) if in_text else None
        if number not in _DISK_ERRORS:
            raise
        raise DiskError(f"cannot write {path}: {os.strerror(number)}; make room on this disk, or repair it") from error


def write_atomically(path: Path, data: bytes, private: bool = False) -> None:
    """Replace ``path`` by ``data`` atomically; see :func:`replacing`."""
    with replacing(path, private) as temporary:
        temporary.write_bytes(data)


_POLL_SECONDS = 0.2


@contextmanager
def locked(path: Path, wait: float | None = None) -> Iterator[None]:
    """Hold the lock of the file ``path`` for the block; it is released if the process is killed.

    Raises TimeoutError when another process holds the lock for that time.

    Parameters
    ----------
    path : Path
        The lock file, created in an existing folder and left there.
    wait : float, optional
        Seconds to wait for the lock; by default unlimited.
    """
    with path.open("w") as stream:
        if wait is None:
            fcntl.flock(stream, fcntl.LOCK_EX)
        else:
            _acquire(stream.fileno(), path, time.monotonic() + wait)
        yield


def _acquire(descriptor: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process holds {path}") from None
            time.sleep(_POLL_SECONDS)


def file_name(name: str) -> str:
    """Encode ``name`` as a unique name of a file or folder, without path separators."""
    return quote(name, safe="").replace(".", "%2E")


_TIME = re.compile(r"-\d{8}-\d{6}(-|$)")


def run_state(folder: Path, run: str) -> Path:
    """Return the folder of a run in a state folder: apart from the node's own files, whatever the name of the run.

    Older versions had the folders of runs beside the node's own files. The state of such a run stays there; it is
    known by the time in its name, which no file of a node has.
    """
    place, before = folder / "runs" / file_name(run), folder / file_name(run)
    return before if _TIME.search(run) and before.is_dir() and not place.is_dir() else place


def json_digest(known: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return the SHA-256 of a JSON value as 64 hexadecimal digits, independent of the order of keys.

    Parameters
    ----------
    known : Any
        The value.
    default : callable, optional
        Converts values that are not JSON, as in ``json.dumps``; without it they raise TypeError.
    """
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=default).encode()).hexdigest()


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file by name, without objects. Raises DataError for any other file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as an .npz file ({error})") from None


State = dict[str, Any]
"""Nested dict of tensors and JSON values."""

_SEPARATOR = "\x1f"
_TENSOR = {"__tensor__": True}


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state to a safetensors file, atomically."""
    tensors: dict[str, Tensor] = {}
    values = _take_tensors(state, (), tensors)
    write_tensors(path, tensors, {"state": json.dumps(values)})


def load_state(path: Path) -> State:
    """Read a state. Raises RunError for a file that is missing, damaged or not written by :func:`save_state`."""
    try:
        tensors, metadata = read_tensors(path)
        restored = _put_tensors(json.loads(metadata["state"]), (), tensors)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"cannot read the saved state {path}: {error}") from None
    assert isinstance(restored, dict)
    return restored


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a private safetensors file with a checksum, atomically."""
    stored = as_stored(tensors)
    with replacing(path, private=True) as temporary:
        # Directly from the tensors to the file: gathering the bytes first is several times slower.
        save_file(stored, temporary, with_checksum(stored, metadata or {}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file, with its checksum if it has one.

    Raises FileNotFoundError for a file that is missing, and ValueError or OSError for one that is damaged or of another
    kind.
    """
    try:
        with safe_open(str(path), framework="pt") as stream:
            stored = stream.metadata() or {}
            # A clone is aligned as in a run without a stop.
            tensors = {name: stream.get_tensor(name).clone() for name in stream.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    return tensors, verified(tensors, stored)


def load_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run. Raises RunError for a file that is missing or broken."""
    try:
        return json_object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path} ({error}): put a copy of it back, or start a new run") from None


def json_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object in UTF-8. Raises ValueError for anything else."""
    found = json.loads(content.decode())
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _take_tensors(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[_SEPARATOR.join(path)] = value
        return _TENSOR
    if isinstance(value, Mapping):
        return {key: _take_tensors(item, (*path, key), tensors) for key, item in value.items()}
    return value


def _put_tensors(value: Any, path: tuple[str, ...], tensors: Mapping[str, Tensor]) -> Any:
    if value == _TENSOR:
        return tensors[_SEPARATOR.join(path)]
    if isinstance(value, dict):
        return {key: _put_tensors(item, (*path, key), tensors) for key, item in value.items()}
    return value
