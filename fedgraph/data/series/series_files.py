"""Reads time series of many clients from .npz, .csv, .h5 and .parquet files, once per process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedgraph.data.own import LOOKED_FOR
from fedgraph.data.series.column_files import DEFAULT_READING, Reading, read_column_file
from fedgraph.data.series.stamps import Clock, parse_times
from fedgraph.data.series.times import MissingSteps, later, missing_steps, step_of
from fedgraph.support.csv_text import composed
from fedgraph.support.errors import DataError

KNOWN_ARRAYS = ("speed", "flow", "data", "values", "series", "df")
KNOWN_NAMES = ("names", "sensor_ids", "client_names", "ids")
KNOWN_GROUPS = ("groups", "corridor")
KNOWN_TIMES = ("times", "timestamps")
_CACHE_SIZE = 4


@dataclass(frozen=True)
class SeriesTable:
    """Readings of every client of a data set at common time steps.

    names    : one per client, all different.
    values   : float32 ``[clients, time, features]``, NaN where a reading is missing.
    times    : datetime64[s] ``[time]``, or None if unknown.
    features : one name per feature.
    groups   : a word per client, or None if unknown.
    missing  : steps without a row in the file; None if there are none.
    by       : the column that names clients, in a file with a row for each time and client; else empty.
    rows     : int64 ``[time, 2]``, the first row of such a file of each step, from 1, and its client's position.
    notes    : notes on the file.
    clock    : what the times are in, see :class:`fedgraph.models.TaskSpec`.
    """

    names: tuple[str, ...]
    values: NDArray[np.float32]
    times: NDArray[np.datetime64] | None = None
    features: tuple[str, ...] = ("value",)
    groups: tuple[str, ...] | None = None
    missing: MissingSteps | None = None
    by: str = ""
    rows: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    clock: Clock = ""

    def __post_init__(self) -> None:
        repeated = [name for name, count in Counter(self.names).items() if count > 1]
        if repeated:
            raise DataError(f"duplicate client names: {', '.join(repeated[:5])}")
        clients, steps, features = self.values.shape
        if len(self.names) != clients:
            raise DataError(f"there are {len(self.names)} client names for {clients} series")
        if len(self.features) != features:
            raise DataError(f"there are {len(self.features)} feature names for {features} features")
        if self.times is not None and len(self.times) != steps:
            raise DataError(f"there are {len(self.times)} timestamps for {steps} time steps")
        if self.groups is not None and (len(self.groups) != clients or not all(self.groups)):
            raise DataError(f"{len(self.groups)} groups for {clients} clients: each needs a non-empty one")

    @property
    def step_minutes(self) -> float:
        """The usual time between two steps in minutes; 0 if unknown."""
        if self.times is None or len(self.times) < 2:
            return 0.0
        return step_of(self.times) / 60.0

    def with_every_step(self) -> SeriesTable:
        """Insert the missing steps between the first and the last time, without readings; unchanged without times.

        So windows across a gap have the right length and covariates. Raises DataError as
        :func:`fedgraph.data.series.times.missing_steps`.
        """
        found = None if self.times is None or len(self.times) < 2 else missing_steps(self.times, self._row)
        if found is None:
            return self
        place, times, missing = found
        values = np.full((len(self.names), len(times), len(self.features)), np.nan, dtype=np.float32)
        values[:, place] = self.values
        return replace(self, values=values, times=times, missing=missing, rows=None)

    def _row(self, step: int) -> str:
        if self.rows is None:
            return f"row {step + 1}"
        row, client = self.rows[step].tolist()
        return f"row {row} (client '{self.names[client]}')"

    def extended(self, steps: int, step_minutes: float) -> SeriesTable:
        """Append ``steps`` steps without readings."""
        clients, _, features = self.values.shape
        nothing = np.full((clients, steps, features), np.nan, dtype=np.float32)
        times = self.times
        if times is not None:
            times = np.concatenate([times, later(times, steps, round(60 * step_minutes))])
        return replace(self, values=np.concatenate([self.values, nothing], axis=1), times=times)


_tables: dict[tuple[object, ...], SeriesTable] = {}
_lock = threading.Lock()


def read_series(
    path: Path,
    array: str | None = None,
    names: Sequence[str] | None = None,
    every_step: bool = False,
    how: Reading = DEFAULT_READING,
) -> SeriesTable:
    """Read the table in ``path``, once per process while the file does not change.

    Arrays are ``[time, clients]`` or ``[time, clients, features]``. ``array`` is the key inside an .npz or .h5 file,
    ``names`` replaces the client names of the file, and ``how`` is how one of columns is read. With ``every_step``,
    readings and times are checked, and steps that the file has no row for are missing readings
    (:meth:`SeriesTable.with_every_step`). Raises DataError naming the file and the reason.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {LOOKED_FOR}") from None
    names = None if names is None else tuple(names)
    key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size, array, names, every_step, how)
    with _lock:
        if key not in _tables:
            try:
                table = _read(path, array, how)
                table = table if names is None else replace(table, names=names)
                if every_step:
                    _check_finite(table)
                    table = table.with_every_step()
            except DataError as error:
                raise error if str(path) in str(error) else error.at(str(path)) from None
            except (OSError, ValueError, KeyError, EOFError, pa.ArrowException) as error:
                raise DataError(
                    f"{path}: cannot be read as {path.suffix or 'a series'} ({error})", quoted=str(error)
                ) from None
            while len(_tables) >= _CACHE_SIZE:
                del _tables[next(iter(_tables))]
            _tables[key] = table
        return _tables[key]


def _check_finite(table: SeriesTable) -> None:
    if np.isinf(table.values).any():
        client, row, _ = (int(place) for place in np.argwhere(np.isinf(table.values))[0])
        raise DataError(
            f"the reading of client '{table.names[client]}' in row {row + 1} is infinite, or too large: leave the cell "
            "empty (NaN in an array) if nothing was read"
        )


def _read(path: Path, array: str | None, how: Reading) -> SeriesTable:
    kind = path.name.lower()
    if kind.endswith(".npz"):
        return _read_npz(path, array)
    if kind.removesuffix(".gz").endswith((".csv", ".tsv", ".txt")) or kind.endswith(".parquet"):
        found = read_column_file(path, how)
        values = np.ascontiguousarray(found.values.transpose(1, 0, 2))
        names = found.names or [path.name.partition(".")[0]]
        return SeriesTable(
            tuple(names), values, found.times, found.features,
            by=found.by, rows=found.rows, notes=found.notes, clock=found.clock,
        )  # fmt: skip
    if kind.endswith((".h5", ".hdf5")):
        with h5py.File(path, "r") as file:
            return _read_h5(file, array)
    raise DataError(
        "unknown kind of file; series are read from .npz, .csv, .tsv, .txt (also .gz), .h5, .hdf5 and .parquet"
    )


def _table(
    array: NDArray[Any],
    names: Sequence[str] | None,
    times: NDArray[np.datetime64] | None = None,
    feature: str = "value",
) -> SeriesTable:
    """Build a table from ``[time, clients]`` or ``[time, clients, features]``; unnamed clients are numbered."""
    array = array[:, :, None] if array.ndim == 2 else array
    values = np.ascontiguousarray(array.transpose(1, 0, 2), dtype=np.float32)
    clients, _, features = values.shape
    if names is None:
        names = [f"client-{number:03d}" for number in range(clients)]
    labels = (feature,) if features == 1 else tuple(f"{feature}-{number}" for number in range(features))
    return SeriesTable(tuple(names), values, times, labels)


def _choose(found: Sequence[str], array: str | None) -> str:
    """Return the key to read: the requested one, the only one, or the first with a known name."""
    if array is not None:
        if array not in found:
            raise DataError(f"has no series '{array}'; it holds: {', '.join(found) or 'none'}")
        return array
    if len(found) == 1:
        return found[0]
    for known in KNOWN_ARRAYS:
        if known in found:
            return known
    raise DataError(f"name the series to read with `array`; the file holds: {', '.join(found) or 'none'}")


def _is_series(array: Any) -> bool:
    return array.ndim in (2, 3) and array.dtype.kind in "fiu"


def _text(entry: Any) -> str:
    return composed(entry.decode() if isinstance(entry, bytes) else str(entry))


def _read_npz(path: Path, array: str | None) -> SeriesTable:
    with np.load(path, allow_pickle=False) as file:
        if not hasattr(file, "files"):
            raise DataError("is a single array, not an .npz archive")
        arrays: dict[str, NDArray[Any]] = {}
        for key in file.files:
            try:
                arrays[key] = file[key]
            except ValueError as error:
                if key in (*KNOWN_NAMES, *KNOWN_GROUPS, *KNOWN_TIMES):
                    raise DataError(
                        f"array '{key}' cannot be read ({error}): save it as text, np.array({key}, dtype=str)"
                    ) from None
                # Other arrays of objects, which only pickle could read, are not series.
    chosen = _choose([key for key, value in arrays.items() if _is_series(value)], array)
    values = arrays[chosen]
    names = next(([_text(entry) for entry in arrays[key]] for key in KNOWN_NAMES if key in arrays), None)
    groups = next((arrays[key] for key in KNOWN_GROUPS if key in arrays and arrays[key].ndim == 1), None)
    times = next((parse_times(f"array '{key}'", arrays[key]) for key in KNOWN_TIMES if key in arrays), None)
    if times is None and "start" in arrays and "step_minutes" in arrays:
        times = regular_times(str(arrays["start"]), float(arrays["step_minutes"]), len(values))
    table = _table(values, names, times, feature=chosen)
    return table if groups is None else replace(table, groups=tuple(_text(entry) for entry in groups))


def regular_times(start: str, step_minutes: float, steps: int) -> NDArray[np.datetime64]:
    """Return ``steps`` timestamps (seconds) from the ISO date ``start``, ``step_minutes`` apart."""
    seconds = np.round(np.arange(steps) * step_minutes * 60.0).astype(np.int64)
    return np.datetime64(start, "s") + seconds.astype("timedelta64[s]")


def _read_h5(file: h5py.File, array: str | None) -> SeriesTable:
    frames = [key for key, node in file.items() if isinstance(node, h5py.Group) and "block0_values" in node]
    plain = [key for key, node in file.items() if isinstance(node, h5py.Dataset) and _is_series(node)]
    if not frames and not plain and any(isinstance(node, h5py.Group) and "table" in node for node in file.values()):
        raise DataError("is in the pandas 'table' format; rewrite it with format='fixed', or as .csv or .parquet")
    chosen = _choose(frames + plain, array)
    if chosen in frames:
        return _read_pandas_frame(file[chosen])
    names = next(([_text(entry) for entry in file[key][()]] for key in KNOWN_NAMES if key in file), None)
    return _table(file[chosen][()], names, feature=chosen)


def _read_pandas_frame(group: h5py.Group) -> SeriesTable:
    """Read a DataFrame in the pandas 'fixed' layout: column labels axis0, index axis1, and blocks of columns."""
    columns = [_text(entry) for entry in group["axis0"][()]]
    position = {label: number for number, label in enumerate(columns)}
    index = group["axis1"]
    values = np.full((len(index), len(columns)), np.nan, dtype=np.float32)
    block = 0
    while f"block{block}_values" in group:
        items = [_text(entry) for entry in group[f"block{block}_items"][()]]
        part = group[f"block{block}_values"][()]
        if part.dtype.kind not in "fiu":
            raise DataError(f"columns {', '.join(items[:3])} hold no numbers")
        values[:, [position[item] for item in items]] = part if part.shape[0] == len(index) else part.T
        block += 1
    kind = _text(index.attrs.get("kind", "datetime64" if index.dtype.kind == "i" else ""))
    times = None
    if kind.startswith("datetime64"):
        unit = kind[11:-1] or "ns"  # "datetime64" alone means nanoseconds; newer files say "datetime64[us]"
        times = index[()].astype(f"datetime64[{unit}]").astype("datetime64[s]")
    return _table(values, columns, times)
