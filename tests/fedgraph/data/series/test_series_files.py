from __future__ import annotations

import gzip
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import fedgraph.data.series.series_files as series_files
from fedgraph.data.series.series_files import SeriesTable, read_series, regular_times
from fedgraph.support.errors import DataError

VALUES = np.array([[1.0, 10.0, 0.5], [2.0, np.nan, 1.5], [3.0, 30.0, 2.5], [4.0, 40.0, 3.5]])
NAMES = ("773869", "767541", "b")
START = "2012-03-01T00:00"
TIMES = np.datetime64(START, "s") + np.arange(4) * np.timedelta64(300, "s")


def write_pandas_fixed(
    path: Path,
    group: str,
    columns: Sequence[str] | Sequence[int],
    blocks: Sequence[Sequence[int]] = ((0, 1, 2),),
    kind: str = "datetime64",
    unit: str = "ns",
) -> None:
    """The layout of metr-la.h5 and pems-bay.h5: values are stored time x columns, one block per kind of number."""
    labels = np.array(columns, dtype="S6") if isinstance(columns[0], str) else np.array(columns)
    with h5py.File(path, "w") as file:
        frame = file.create_group(group)
        frame.attrs["pandas_type"] = np.bytes_(b"frame")
        frame["axis0"] = labels
        frame["axis1"] = TIMES.astype(f"datetime64[{unit}]").astype(np.int64)
        frame["axis1"].attrs["kind"] = np.bytes_(kind.encode())
        for number, block in enumerate(blocks):
            frame[f"block{number}_items"] = labels[list(block)]
            frame[f"block{number}_values"] = VALUES[:, list(block)].astype("f8" if number == 0 else "f4")


def same(table: SeriesTable, names: Sequence[str] = NAMES) -> None:
    assert table.names == tuple(names)
    assert table.values.dtype == np.float32
    assert table.values.flags.c_contiguous
    np.testing.assert_array_equal(table.values[:, :, 0], VALUES.T.astype(np.float32))


def timed(table: SeriesTable) -> None:
    assert table.times is not None
    np.testing.assert_array_equal(table.times, TIMES)
    assert table.step_minutes == 5.0


def test_pandas_fixed_frame_with_text_labels(tmp_path: Path) -> None:
    write_pandas_fixed(tmp_path / "metr-la.h5", "df", NAMES)
    table = read_series(tmp_path / "metr-la.h5")
    same(table)
    timed(table)


def test_pandas_fixed_frame_with_number_labels(tmp_path: Path) -> None:
    write_pandas_fixed(tmp_path / "pems-bay.h5", "speed", [400001, 400017, 400030])
    same(read_series(tmp_path / "pems-bay.h5", "speed"), ["400001", "400017", "400030"])


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_pandas_fixed_frame_in_blocks_and_with_a_unit(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "blocks.h5"
    write_pandas_fixed(path, "df", NAMES, blocks=((2, 0), (1,)), kind=f"datetime64[{unit}]", unit=unit)
    same(read_series(path))
    timed(read_series(path))


def test_plain_h5_arrays(tmp_path: Path) -> None:
    path = tmp_path / "plain.h5"
    with h5py.File(path, "w") as file:
        file["speed"], file["other"], file["names"] = VALUES, VALUES * 2, np.array(NAMES, dtype="S6")
    same(read_series(path))
    np.testing.assert_array_equal(read_series(path, "other").values, 2 * read_series(path).values)


def test_pandas_table_format_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group("df")["table"] = np.zeros(3)
    with pytest.raises(DataError, match=r"pandas 'table' format.*format='fixed'"):
        read_series(tmp_path / "a.h5")


def test_npz_with_names_and_times(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", speed=VALUES, sensor_ids=np.array(NAMES), start=START, step_minutes=5)
    table = read_series(tmp_path / "a.npz")
    same(table)
    timed(table)
    assert table.features == ("speed",)


@pytest.mark.parametrize("key", ["groups", "corridor"])
def test_npz_with_groups(key: str, tmp_path: Path) -> None:
    words = np.array([f"road {number}" for number in range(VALUES.shape[1])])
    np.savez(tmp_path / "a.npz", speed=VALUES, **{key: words})
    assert read_series(tmp_path / "a.npz").groups == tuple(words)
    np.savez(tmp_path / "c.npz", speed=VALUES)
    assert read_series(tmp_path / "c.npz").groups is None


def test_npz_with_features_and_without_names(tmp_path: Path) -> None:
    cube = np.arange(24.0).reshape(4, 2, 3)
    np.savez(tmp_path / "a.npz", data=cube)
    table = read_series(tmp_path / "a.npz")
    assert table.names == ("client-000", "client-001")
    assert table.features == ("data-0", "data-1", "data-2")
    np.testing.assert_array_equal(table.values, cube.transpose(1, 0, 2))
    assert table.times is None
    assert table.step_minutes == 0.0
    assert read_series(tmp_path / "a.npz", names=["x", "y"]).names == ("x", "y")


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    trap = np.empty((4, 3), dtype=object)
    trap[:] = VALUES
    np.savez(tmp_path / "a.npz", speed=trap, flow=VALUES)
    assert read_series(tmp_path / "a.npz").features == ("flow",)
    with pytest.raises(DataError, match="'speed'; .*flow"):
        read_series(tmp_path / "a.npz", "speed")


CSV = """,773869,767541,b
2012-03-01 00:00:00,1,10,0.5
2012-03-01 00:05:00,2,,1.5
2012-03-01 00:10:00,3,30,2.5
2012-03-01 00:15:00,4,40,3.5
"""


def test_csv_with_timestamps(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    for name in ("a.csv", "b.csv.gz"):
        same(read_series(tmp_path / name))
        timed(read_series(tmp_path / name))


def test_csv_without_timestamps_and_with_a_row_number(tmp_path: Path) -> None:
    rows = [line.split(",", 1)[1] for line in CSV.splitlines()]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    (tmp_path / "b.csv").write_text("\n".join(f"{'' if not n else n - 1},{row}" for n, row in enumerate(rows)))
    for name in ("a.csv", "b.csv"):
        same(read_series(tmp_path / name))
        assert read_series(tmp_path / name).times is None


def test_csv_with_other_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("when,a\nmorning,1\nevening,2\n")
    with pytest.raises(DataError, match="'when' .*'morning'"):
        read_series(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("a,b\n1,x\n2,y\n")
    with pytest.raises(DataError, match="'b' .*'x'"):
        read_series(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"c\.csv has no rows"):
        read_series(tmp_path / "c.csv")


def test_parquet(tmp_path: Path) -> None:
    columns = {name: VALUES[:, number] for number, name in enumerate(NAMES)}
    pa.parquet.write_table(pa.table({**columns, "__index_level_0__": TIMES}), tmp_path / "a.parquet")
    same(read_series(tmp_path / "a.parquet"))
    timed(read_series(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    ("arrays", "keys", "message"),
    [
        ({"speed": VALUES, "sensor_ids": np.array([7, 8, 7])}, {}, "duplicate client names: 7"),
        ({"speed": VALUES}, {"names": ["x", "y"]}, "2 client names for 3 series"),
        ({"one": VALUES, "two": VALUES}, {}, "`array`; .*one, two"),
        ({"one": VALUES, "two": VALUES}, {"array": "three"}, "series 'three'"),
        ({"speed": VALUES, "names": np.array(NAMES, dtype=object)}, {}, r"'names' .*np\.array\(names"),
        ({"speed": VALUES, "times": np.arange(4)}, {}, "'times' .*1970"),
        ({"speed": VALUES, "groups": np.array(["road"])}, {}, "1 groups for 3 clients"),
    ],
)
def test_arrays_that_cannot_be(
    arrays: dict[str, np.ndarray], keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=rf"a\.npz: .*{message}"):
        read_series(tmp_path / "a.npz", **keys)


@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.parquet", "a.csv.gz"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"not what the name says")
    with pytest.raises(DataError, match=name):
        read_series(tmp_path / name)


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("speed.npy", b"\x93NUMPY\x01\x00cut")
    with pytest.raises(DataError, match=r"a\.npz"):
        read_series(tmp_path / "a.npz")


def test_a_missing_or_unknown_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.npz: cannot be read"):
        read_series(tmp_path / "gone.npz")
    (tmp_path / "a.json").write_text("1")
    with pytest.raises(DataError, match="unknown kind of file"):
        read_series(tmp_path / "a.json")


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read = series_files._read
    monkeypatch.setattr(series_files, "_read", lambda path, *how: reads.append(path) or read(path, *how))
    path = tmp_path / "a.npz"
    np.savez(path, speed=VALUES)
    assert read_series(path) is read_series(tmp_path / "." / "a.npz")
    assert len(reads) == 1
    read_series(path, names=["x", "y", "z"])
    assert len(reads) == 2
    np.savez(path, speed=VALUES + 1)
    os.utime(path, ns=(1, 1))
    assert read_series(path).values[0, 0, 0] == 2.0
    assert len(reads) == 3


def test_regular_times() -> None:
    assert regular_times("2020-02-28T23:30", 20.0, 3)[2] == np.datetime64("2020-02-29T00:10:00")


def test_a_leading_step_number_is_no_client(tmp_path):
    (tmp_path / "s.csv").write_text("time,a,b\n0,1,2\n1,3,4\n")
    assert read_series(tmp_path / "s.csv").names == ("a", "b")


@pytest.mark.parametrize(
    "form", ["{}+00:00", "{}Z", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "unix", "milliseconds", "{}.000"]
)
def test_ways_to_write_times(form, tmp_path):
    def cell(row):
        time = TIMES[row].astype("datetime64[s]").item()
        seconds = int(TIMES[row].astype(np.int64))
        if form in ("unix", "milliseconds"):
            return str(seconds * (1000 if form == "milliseconds" else 1))
        return form.format(TIMES[row]) if "{" in form else time.strftime(form)

    lines = [",".join([cell(row), "1", "2"]) for row in range(4)]
    (tmp_path / "a.csv").write_text("\n".join(["timestamp,a,b", *lines]) + "\n")
    table = read_series(tmp_path / "a.csv")
    assert table.names == ("a", "b")
    timed(table)


def test_times_of_a_zone_are_in_utc(tmp_path):
    rows = ["2024-10-27T02:30:00+02:00,1", "2024-10-27T02:00:00+01:00,2", "2024-10-27T02:30:00+01:00,3"]
    (tmp_path / "a.csv").write_text("\n".join(["time,a", *rows]) + "\n")
    times = read_series(tmp_path / "a.csv", every_step=True).times
    assert times is not None
    assert times.astype(str).tolist() == ["2024-10-27T00:30:00", "2024-10-27T01:00:00", "2024-10-27T01:30:00"]
    (tmp_path / "b.csv").write_text("time,a\n2024-10-27T02:30:00Z,1\n2024-10-27T02:40:00,2\n")
    with pytest.raises(DataError, match="'time' .*UTC"):
        read_series(tmp_path / "b.csv")


def test_a_step_number_that_skips_rows_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("index,a\n0,1\n1,3\n4,2\n5,2\n")
    with pytest.raises(DataError, match="'index'.*row 3"):
        read_series(tmp_path / "a.csv")


LONG = [(row, name) for name in (2, 0, 1) for row in range(4) if not np.isnan(VALUES[row, name])]


@pytest.mark.parametrize("header", ["when,sensor,flow", "time,station_id,flow"])
def test_a_row_for_each_time_and_client(header, tmp_path):
    names = NAMES if "sensor" in header else ("773869", "767541", "7")
    lines = [f"{TIMES[row]},{names[name]},{VALUES[row, name]}" for row, name in LONG]
    (tmp_path / "a.csv").write_text("\n".join([header, *lines]) + "\n")
    table = read_series(tmp_path / "a.csv")
    assert table.names == (names[2], names[0], names[1])
    assert table.features == ("flow",)
    timed(table)
    np.testing.assert_array_equal(table.values[:, :, 0], VALUES.T[[2, 0, 1]].astype(np.float32))
    (tmp_path / "b.csv").write_text("\n".join([header, *lines, lines[1]]) + "\n")
    both = rf"rows 2 and 12 are both of client '{names[2]}' at 2012-03-01T00:05:00"
    with pytest.raises(DataError, match=f"{both}.*; if a local clock went back by an hour, write times in UTC"):
        read_series(tmp_path / "b.csv")


def test_rows_of_time_and_client_with_several_features(tmp_path):
    lines = [f"{name},{time},{number},{10 * number}" for number, name in enumerate("ab") for time in TIMES]
    (tmp_path / "a.csv").write_text("\n".join(["place,time,flow,speed", *lines]) + "\n")
    table = read_series(tmp_path / "a.csv")
    assert (table.names, table.features) == (("a", "b"), ("flow", "speed"))
    assert table.values[1].tolist() == [[1, 10]] * 4


def test_npz_with_times(tmp_path):
    for times in (TIMES, TIMES.astype(str), TIMES.astype(np.int64)):
        np.savez(tmp_path / "a.npz", speed=VALUES, names=np.array(NAMES), times=times)
        os.utime(tmp_path / "a.npz", ns=(1, int(times[0] == TIMES[0])))
        timed(read_series(tmp_path / "a.npz"))


def test_infinite_readings_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,inf\n")
    with pytest.raises(DataError, match="'b' in row 2 is infinite"):
        read_series(tmp_path / "a.csv", every_step=True)
