"""Times as programs write them: digits, days of a spreadsheet, in several columns, late, early, half a step off."""

import numpy as np
import pandas as pd
import pytest

from fedgraph.data.series.series_files import read_series
from fedgraph.data.series.stamps import parse_times
from fedgraph.support.errors import DataError

HOURS = pd.date_range("2021-01-30 21:00", periods=60, freq="h")


def write(folder, columns, name="a.csv", separator=","):
    frame = pd.DataFrame(columns)
    frame.to_csv(folder / name, index=False, sep=separator)
    return folder / name


def check(path, times=HOURS, names=("a", "b")):
    table = read_series(path, every_step=True)
    assert table.names == names
    assert table.times is not None
    np.testing.assert_array_equal(table.times, times.values.astype("datetime64[s]"))
    np.testing.assert_array_equal(table.values[0, :, 0], np.arange(len(times), dtype=np.float32))


def readings(times=HOURS):
    return {"a": np.arange(len(times)), "b": np.arange(len(times)) + 0.5}


@pytest.mark.parametrize(
    ("form", "freq"),
    [("%Y%m%d%H", "h"), ("%Y%m%d%H%M", "10min"), ("%Y%m%d%H%M%S", "30s"), ("%Y%m%d", "D"), ("%Y%m", "MS")],
)
@pytest.mark.parametrize("heading", ["time", "MESS_DATUM", "date_time"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_digits_are_dates(tmp_path, form, freq, heading, kind):
    times = pd.date_range("2021-01-01", periods=60, freq=freq)
    digits = times.strftime(form).astype(np.int64)
    frame = pd.DataFrame({heading: digits, **readings(times)})
    path = tmp_path / f"a.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    check(path, times)


def test_seconds_from_1970_stay_seconds(tmp_path):
    # Digits of which some could be those of a date.
    seconds = (HOURS.values.astype("datetime64[s]")).astype(np.int64)
    for factor in (1, 1000, 1_000_000, 1_000_000_000):
        check(write(tmp_path, {"time": seconds * factor, **readings()}, f"{factor}.csv"))


def test_digits_of_which_one_is_no_date_are_refused(tmp_path):
    digits = HOURS.strftime("%Y%m%d%H").tolist()
    digits[7] = "2021013125"
    with pytest.raises(DataError, match="'time' .*'2021013125'"):
        read_series(write(tmp_path, {"time": digits, **readings()}))


@pytest.mark.parametrize("decimals", [6, 10])
def test_days_of_a_spreadsheet(tmp_path, decimals):
    days = (HOURS - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)
    check(write(tmp_path, {"Date": days.round(decimals), **readings()}))
    whole = pd.date_range("2021-01-01", periods=60, freq="D")
    days = ((whole - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)).astype(int)
    # Whole numbers that go up by one could number the rows, unless they are in the range of dates.
    check(write(tmp_path, {"date": days, **readings()}, "b.csv"), whole)


def parted(form):
    if form == "date and hour":
        return {"date": HOURS.strftime("%Y-%m-%d"), "hour": HOURS.hour}
    if form == "digits and clock":
        return {"Datum": HOURS.strftime("%Y%m%d"), "Uhrzeit": HOURS.strftime("%H:%M")}
    if form == "german":
        return {"Datum": HOURS.strftime("%d.%m.%Y"), "Zeit": HOURS.strftime("%H:%M:%S")}
    if form == "hours to 24":
        return {"date": (HOURS - pd.Timedelta(hours=1)).strftime("%Y-%m-%d"), "hour": (HOURS.hour - 1) % 24 + 1}
    return {"No": np.arange(60) + 1, "year": HOURS.year, "month": HOURS.month, "day": HOURS.day, "hour": HOURS.hour}


@pytest.mark.parametrize("form", ["date and hour", "digits and clock", "german", "hours to 24", "parts"])
@pytest.mark.parametrize("kind", ["wide", "long"])
def test_times_in_several_columns(tmp_path, form, kind):
    columns = parted(form)
    if kind == "wide":
        check(write(tmp_path, {**columns, **readings()}))
        return
    columns.pop("No", None)
    frame = pd.concat([pd.DataFrame({**columns, "station": name, "flow": readings()[name]}) for name in "ab"])
    frame.to_csv(tmp_path / "a.csv", index=False)
    check(tmp_path / "a.csv")


def test_columns_of_times_that_the_settings_name(tmp_path):
    from fedgraph.data.series.column_files import Reading
    from fedgraph.data.series.layout import Choice

    path = write(tmp_path, {"von": HOURS.strftime("%d.%m.%Y"), "std": HOURS.hour, **readings()})
    table = read_series(path, how=Reading(Choice(time_columns=("von", "std"))))
    np.testing.assert_array_equal(table.times, HOURS.values.astype("datetime64[s]"))


def test_intervals_are_told_by_their_beginning(tmp_path):
    end = HOURS + pd.Timedelta(hours=1)
    both = HOURS.strftime("%d.%m.%Y %H:%M") + " - " + end.strftime("%d.%m.%Y %H:%M")
    check(write(tmp_path, {"MTU": both, **readings()}))
    check(write(tmp_path, {"start_time": HOURS, "end_time": end, **readings()}, "b.csv"))
    twice = {"utc_time": HOURS, "local_time": HOURS + pd.to_timedelta(HOURS.hour // 12, unit="h"), **readings()}
    with pytest.raises(DataError, match="'utc_time' .*'local_time' .*time-column"):
        read_series(write(tmp_path, twice, "c.csv"))


def test_midnight_at_the_end_of_a_day(tmp_path):
    ends = [
        f"{time - pd.Timedelta(hours=1):%Y-%m-%d} 24:00" if time.hour == 0 else f"{time:%Y-%m-%d %H:%M}"
        for time in HOURS
    ]
    check(write(tmp_path, {"time": ends, **readings()}))
    assert parse_times("x", np.array(["31.12.2020 24:00"])) == np.datetime64("2021-01-01T00:00:00")


@pytest.mark.parametrize("cells", [["1", "2", "5"], ["44197,5", "x", "y"], ["07:05", "07:10", "07:15"]])
def test_what_is_no_time_is_refused(cells):
    with pytest.raises(DataError, match="too small for seconds from 1970|neither numbers nor times"):
        parse_times("column 'time'", np.array(cells))


@pytest.mark.parametrize(
    ("times", "clock"),
    [
        (HOURS, "local"),
        (HOURS.tz_localize("Europe/Berlin"), "UTC"),
        (HOURS.strftime("%Y-%m-%d %H:%M"), "local"),
        (HOURS.strftime("%Y-%m-%dT%H:%MZ"), "UTC"),
        (HOURS.strftime("%Y-%m-%dT%H:%M:%S+0200"), "UTC"),
        (HOURS.strftime("%Y%m%d%H"), "local"),
        (HOURS.astype("datetime64[s]").astype("int64"), "UTC"),
        ((HOURS - pd.Timestamp("1899-12-30")) / pd.Timedelta("1D"), "local"),
        (range(60), ""),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_times_with_a_zone_or_from_1970_are_in_utc(tmp_path, times, clock, suffix):
    frame = pd.DataFrame({"time": times, **readings()})
    path = tmp_path / f"a{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    found = read_series(path)
    assert found.clock == clock
    assert ("times are in UTC" in found.notes) == (clock == "UTC")


@pytest.mark.parametrize(
    ("form", "freq"),
    [
        ("%d.%m.%Y %H:%M:%S", "h"), ("%d.%m.%y %H:%M", "h"), ("%Y/%m/%d %H:%M", "h"), ("%d %b %Y %H:%M", "h"),
        ("%d-%b-%Y", "D"), ("%d-%b-%y", "D"), ("%Y%m%dT%H%M%S", "h"), ("%G-W%V", "W-MON"), ("%YM%m", "MS"),
    ],
)  # fmt: skip
def test_times_whose_day_and_month_are_clear(tmp_path, form, freq):
    times = pd.date_range("2021-02-01", periods=60, freq=freq)
    check(write(tmp_path, {"time": times.strftime(form), **readings(times)}), times)


@pytest.mark.parametrize("joined", ["Q", "-Q"])
def test_quarters(tmp_path, joined):
    times = pd.date_range("1998-01-01", periods=60, freq="QS")
    texts = [f"{time.year}{joined}{time.quarter}" for time in times]
    check(write(tmp_path, {"time": texts, **readings(times)}), times)


@pytest.mark.parametrize("text", ["03/05/2024 00:00", "24/03/05", "2020-W54", "2020M13", "2020Q5", "05.03.204"])
def test_times_that_may_mean_several_or_none_are_refused(text):
    with pytest.raises(DataError, match=f"row 1 has '{text}'; write times as"):
        parse_times("column 'time'", np.array([text]))


@pytest.mark.parametrize("cell", ["inf", "1e999", "-inf", "99999999999999999999"])
def test_numbers_beyond_any_time_are_named(cell):
    with pytest.raises(DataError, match=f"'{cell}' in row 2, which is no time") as caught:
        parse_times("column 'time'", np.array(["1700000000", cell, "1700000060"]))
    assert cell not in caught.value.without_values


def test_a_column_of_years_and_months_is_no_client(tmp_path):
    months = pd.date_range("2015-01-01", periods=60, freq="MS")
    check(write(tmp_path, {"year": months.year, "month": months.month, **readings(months)}), months)


def long(times_by_client):
    rows = [
        (time, name, step + 100 * place)
        for place, (name, times) in enumerate(times_by_client.items())
        for step, time in enumerate(times)
    ]
    return {key: [row[place] for row in rows] for place, key in enumerate(("time", "sensor", "flow"))}


def test_seconds_of_jitter_are_one_step(tmp_path):
    draws = np.random.default_rng(0)
    jittered = {name: HOURS + pd.to_timedelta(draws.integers(-200, 200, 60), unit="s") for name in "ab"}
    table = read_series(write(tmp_path, long(jittered)), every_step=True)
    assert table.times is not None
    np.testing.assert_array_equal(table.times, HOURS.values.astype("datetime64[s]"))
    assert not np.isnan(table.values).any()
    assert table.missing is None


def test_clients_half_a_step_off_are_refused(tmp_path):
    apart = {"a": HOURS, "b": HOURS + pd.Timedelta(minutes=30)}
    with pytest.raises(DataError, match="'a' and 'b' .*30 minutes") as caught:
        read_series(write(tmp_path, long(apart)), every_step=True)
    assert "2021" not in caught.value.without_values
    # A client that is read twice as often is different.
    often = {"a": HOURS, "b": pd.date_range(HOURS[0], periods=119, freq="30min")}
    assert read_series(write(tmp_path, long(often), "b.csv"), every_step=True).values.shape == (2, 119, 1)


def test_an_error_names_the_row_of_the_file_and_its_client(tmp_path):
    columns = long({"a": HOURS, "b": HOURS})
    columns["time"].append(HOURS[30] + pd.Timedelta(minutes=25))
    columns["sensor"].append("b")
    columns["flow"].append(1)
    with pytest.raises(DataError, match="row 121 .*'b'.* row 31 .*'a'"):
        read_series(write(tmp_path, columns), every_step=True)
