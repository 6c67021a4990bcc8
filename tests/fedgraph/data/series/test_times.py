from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph.data.own import OwnData
from fedgraph.data.series.series import SeriesSettings, SeriesSource
from fedgraph.data.series.series_files import SeriesTable, read_series
from fedgraph.data.series.times import MONDAY
from fedgraph.data.series.windows import WindowSplit
from fedgraph.fusion.forecasting import NO_WINDOW, OwnerWindows
from fedgraph.support.errors import DataError
from fedgraph.support.settings import parse

START = np.datetime64("2024-03-01T00:00:00")
WINDOWS = {"input-steps": 2, "output-steps": 2}


def table(minutes: list[float]) -> SeriesTable:
    times = START + np.array([round(60 * minute) for minute in minutes]).astype("timedelta64[s]")
    return SeriesTable(("a",), np.arange(len(minutes), dtype=np.float32).reshape(1, -1, 1), times)


def write(folder: Path, rows: list[int], step: int = 5) -> Path:
    """A file of one client whose reading at step ``i`` is ``i``, with these steps as rows."""
    lines = [f"{START + np.timedelta64(step * row, 'm')},{row}" for row in rows]
    (folder / "own.csv").write_text("\n".join(["time,a", *lines]) + "\n")
    return folder / "own.csv"


def source(folder: Path, **keys: object) -> SeriesSource:
    return SeriesSource(parse(SeriesSettings, {"path": "own.csv", **WINDOWS, **keys}, "[data]"), folder)


def test_unsorted_times_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 3, 2, 4])
    message = r"own\.csv: the times are not in order: row 4 has .*T00:10:00 after .*T00:15:00 in row 3; sort the rows"
    with pytest.raises(DataError, match=message) as caught:
        source(tmp_path).client_names()
    assert "2024" not in caught.value.without_values  # times of a client's data stay with its owner


def test_repeated_times_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 2, 2, 3])
    with pytest.raises(DataError, match="rows 3 and 4 .*T00:10:00") as caught:
        source(tmp_path).client_names()
    assert "2024" not in caught.value.without_values


def test_rows_without_a_time_are_refused() -> None:
    times = table([0, 5, 10])
    assert times.times is not None
    times.times[1] = np.datetime64("NaT")
    with pytest.raises(DataError, match="row 2 has no time"):
        times.with_every_step()


def test_times_that_are_no_regular_steps_are_refused() -> None:
    with pytest.raises(DataError, match="row 4 .*7 minutes"):
        table([0, 5, 10, 17, 22, 27]).with_every_step()
    with pytest.raises(DataError, match="205 steps .*only 6"):
        table([0, 5, 10, 1010, 1015, 1020]).with_every_step()


def test_months_and_clocks_that_are_not_exact_are_regular() -> None:
    months = np.arange("2023-01", "2025-01", dtype="datetime64[M]").astype("datetime64[s]")
    yearly = SeriesTable(("a",), np.zeros((1, 24, 1), dtype=np.float32), months)
    assert yearly.with_every_step() is yearly
    late = table([0, 5.5, 10, 15.25, 20])
    assert late.with_every_step() is late


def test_missing_steps_become_missing_readings(tmp_path: Path) -> None:
    kept = [*range(10), *range(13, 20), *range(21, 40)]
    found = read_series(write(tmp_path, kept), every_step=True)
    assert found.times is not None
    np.testing.assert_array_equal(found.times, START + np.arange(40) * np.timedelta64(300, "s"))
    readings = found.values[0, :, 0]
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(readings)), [10, 11, 12, 20])
    np.testing.assert_array_equal(readings[kept], kept)
    assert source(tmp_path).describe() == (
        "own.csv, 1 client, 40 five-minute steps, 4 of 40 steps missing in the file and masked (longest gap 3 steps "
        "after 2024-03-01T00:45:00)"
    )
    # The file as it is, for data sets whose times are known.
    assert read_series(tmp_path / "own.csv").values.shape[1] == 36


def test_windows_across_a_gap_do_not_pretend_that_it_is_consecutive(tmp_path: Path) -> None:
    write(tmp_path, [*range(10), *range(13, 40)])
    own = source(tmp_path, covariates=["time-of-day"])
    cohort = own.load(["a"])
    batch = cohort.splits["train"].batch(torch.tensor([[8, 10]]))  # steps 8, 9 | 10, 11 and 10, 11 | 12, 13
    assert batch.weights.tolist() == [[[0.0, 0.0], [0.0, 1.0]]]
    readings = batch.targets * cohort.std[0] + cohort.mean[0]
    assert float(readings[0, 1, 1]) == pytest.approx(13)
    torch.testing.assert_close(batch.inputs[0, :, :, 1], torch.tensor([[8, 9], [10, 11]]) * 5 / 1440)
    assert cohort.task.step_minutes == 5.0


def test_the_description_of_a_nodes_own_file_does_not_tell_when_it_was_off(tmp_path: Path) -> None:
    path = write(tmp_path, [*range(10), *range(13, 40)])
    own = SeriesSource(parse(SeriesSettings, WINDOWS, "[data]"), tmp_path, OwnData(path, ("a",)))
    assert own.describe().endswith("3 of 40 steps missing in the file and masked (longest gap 3 steps)")


@pytest.mark.parametrize("late", [0, 60, -60, 400])
def test_windows_start_alike_at_sites_whose_clocks_differ_a_little(tmp_path, late):
    """Stamps at :59 or in part late are those of the hour; those half a step off are others."""

    def starts(name, times):
        lines = [f"{time},{step % 7}" for step, time in enumerate(times)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["time,a", *lines]) + "\n")
        data = source(tmp_path, path=f"{name}.csv").load(["a"])
        return data.splits["train"].starts()

    hours = START + np.arange(60) * np.timedelta64(3600, "s")
    exact = starts("exact", hours)
    some = hours.copy()
    some[20:40] += np.timedelta64(late, "s")
    assert torch.equal(starts("some", some), exact)
    assert torch.equal(starts("all", hours + np.timedelta64(late, "s")), exact)
    assert not torch.isin(starts("half", hours + np.timedelta64(1800, "s")), exact).any()


def test_first_days_of_months_start_where_they_are(tmp_path):
    months = np.arange("2015-01", "2020-01", dtype="datetime64[M]").astype("datetime64[s]")
    (tmp_path / "m.csv").write_text("\n".join(["time,a", *(f"{time},{place}" for place, time in enumerate(months))]))
    windows = source(tmp_path, path="m.csv").load(["a"]).splits["train"]
    seconds = months.astype(np.int64) - 4 * 86_400
    assert windows.starts()[0].tolist() == seconds[: len(windows.starts()[0])].tolist()


def test_windows_from_before_1970_are_joined_like_any_other(tmp_path):
    lines = [f"{np.datetime64('1960-01') + month},{month}.5" for month in range(240)]
    (tmp_path / "m.csv").write_text("\n".join(["time,a", *lines]) + "\n")
    starts = source(tmp_path, path="m.csv").load(["a"]).splits["train"].starts()
    assert starts.min() < 0
    assert not bool((starts == NO_WINDOW).any())
    values = torch.arange(starts.numel()).view(*starts.shape, 1).float()
    padded, nothing = torch.nn.functional.pad(starts, (0, 2), value=NO_WINDOW), torch.zeros(1, starts.numel() + 2, 1)
    nothing[:, :-2] = values
    windows = OwnerWindows.of(padded, nothing, nothing, nothing > 0)
    assert windows.keys.tolist() == starts[0].tolist()
    assert windows.of_owners(windows.embeddings, padded).tolist() == nothing.tolist()


def _dates(folder: Path, dates: list[str]) -> Path:
    (folder / "own.csv").write_text("date,a\n" + "".join(f"{date},{row}.5\n" for row, date in enumerate(dates)))
    return folder / "own.csv"


@pytest.mark.parametrize(
    ("dates", "every", "ahead", "days"),
    [
        # Without February, which 31 days from January would not find.
        (["2023-01-01", "2023-03-01", "2023-04-01"], "2023-02-01", ["2023-05-01", "2023-06-01"], 31),
        (["2023-01-31", "2023-03-31", "2023-04-30", "2023-05-31"], "2023-02-28", ["2023-06-30", "2023-07-31"], 31),
        (["2024-01-01", "2024-04-01", "2024-10-01", "2025-01-01"], "2024-07-01", ["2025-04-01", "2025-07-01"], 91),
        (["2019-06-15", "2020-06-15", "2022-06-15"], "2021-06-15", ["2023-06-15", "2024-06-15"], 365),
        # A year without readings is no whole number of months of usual length.
        (["2023-01", "2023-02", "2023-03", "2024-03", "2024-04"], "2023-08-01", ["2024-05-01", "2024-06-01"], 31),
    ],
)
def test_months_are_those_of_the_calendar(tmp_path, dates, every, ahead, days):
    found = read_series(_dates(tmp_path, dates), every_step=True)
    assert np.datetime64(every, "s") in found.times
    assert found.missing is not None
    assert found.step_minutes == days * 24 * 60
    later = found.extended(2, found.step_minutes).times
    assert later is not None
    assert later[-2:].tolist() == [np.datetime64(day, "s").item() for day in ahead]


def test_any_months_are_as_far_apart_as_those_of_training(tmp_path):
    months = [f"{2010 + month // 12}-{month % 12 + 1:02d}-01" for month in range(60)]
    steps = {read_series(_dates(tmp_path, months[first : first + 5])).step_minutes for first in range(50)}
    assert steps == {31 * 24 * 60}
    _dates(tmp_path, months)
    windows = source(tmp_path).load(["a"]).splits["train"]
    assert isinstance(windows, WindowSplit)
    starts = windows.starts()[0][:12].numpy() + MONDAY
    assert [str(start)[8:] for start in starts.astype("datetime64[s]").astype("datetime64[D]")] == ["01"] * 12
