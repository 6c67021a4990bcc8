"""What is forecast, and for whom: columns of files are told apart, or an error says which key does."""

import numpy as np
import pandas as pd
import pytest

from fedgraph.data.own import OwnData
from fedgraph.data.series.column_files import Reading
from fedgraph.data.series.layout import Choice
from fedgraph.data.series.series import SeriesSettings, SeriesSource
from fedgraph.data.series.series_files import read_series
from fedgraph.support.errors import DataError, ExperimentError, IdentityError
from fedgraph.support.settings import parse

TIMES = pd.date_range("2021-03-01", periods=80, freq="h")
NAMES = ("009021", "023000", "066062")
DRAWS = np.random.default_rng(0)
FLOW = DRAWS.normal(50, 9, (80, 3)).round(2)


def rows(**columns):
    """A row for each time and client; functions of the numbers of step and client make the columns."""
    made = [{name: of(step, client) for name, of in columns.items()} for step in range(80) for client in range(3)]
    return pd.DataFrame(made)


BASE = {"time": lambda step, client: TIMES[step], "value": lambda step, client: FLOW[step, client]}


def source(folder, frame, kind="csv", own=None, **keys):
    path = folder / f"a.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    settings = parse(SeriesSettings, {"path": path.name, "input-steps": 2, "output-steps": 2, **keys}, "[data]")
    return SeriesSource(settings, folder, own)


def check(found, names=NAMES, forecast="value", by=""):
    """That clients, target and readings are these, and that the description says so."""
    assert tuple(found.client_names()) == names
    data = found.load(names)
    inputs = data.splits["train"].batch(np_indices(len(names)))
    values = inputs.inputs[:, 0, :, data.splits["train"].target]
    mean, std = data.mean[:, None], data.std[:, None]
    np.testing.assert_allclose(values * std + mean, FLOW[:2, : len(names)].T, rtol=1e-4)
    if by:
        assert f"forecast: {forecast}; by client: {by}" in found.describe()


def np_indices(clients):
    import torch

    return torch.zeros(clients, 1, dtype=torch.int64)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("heading", ["station_id", "sensor", "LCLid", "STATIONS_ID"])
def test_zeros_in_front_of_names_stay(tmp_path, kind, heading):
    frame = rows(**{**BASE, heading: lambda step, client: NAMES[client]})
    check(source(tmp_path, frame, kind), by=heading)
    if kind == "parquet":
        check(source(tmp_path, frame.astype({heading: "category"}), kind), by=heading)


@pytest.mark.parametrize(
    "order", [("time", "value", "sensor_id"), ("value", "sensor_id", "time"), ("id", "time", "sensor_id", "value")]
)
def test_a_number_of_the_row_is_no_client(tmp_path, order):
    more = {"id": lambda step, client: 3 * step + client + 1, "sensor_id": lambda step, client: client + 16}
    frame = rows(**BASE, **more)[list(order)]
    found = source(tmp_path, frame)
    check(found, ("16", "17", "18"), by="sensor_id")
    assert ("'id' left out, as it numbers the rows" in found.describe()) == ("id" in order)


@pytest.mark.parametrize("heading", ["minute", "elapsed [s]", "hour", "year", "counter"])
def test_a_first_column_in_equal_steps_is_no_client(tmp_path, heading):
    lines = [f"{1800 + 2.5 * step},{step % 7},{step % 5}" for step in range(40)]
    (tmp_path / "own.csv").write_text("\n".join([f"{heading},a,b", *lines]))
    found = read_series(tmp_path / "own.csv")
    assert found.names == ("a", "b")
    assert f"'{heading}' left out, as it numbers the rows" in found.notes
    # Requested, or beside times, it is a reading like others.
    assert read_series(tmp_path / "own.csv", how=Reading(Choice(target=heading))).features == (heading, "a", "b")
    times = [f"2024-01-01 {step:02d}:00,{step},{step % 5}" for step in range(24)]
    (tmp_path / "timed.csv").write_text("\n".join(["time,ramp,b", *times]))
    assert read_series(tmp_path / "timed.csv").names == ("ramp", "b")


def test_years_with_a_gap_and_hours_of_unknown_days_are_no_client(tmp_path):
    lines = [f"{1800 + step + 9 * (step > 20)},{step % 7}" for step in range(40)]
    (tmp_path / "years.csv").write_text("\n".join(["year,a", *lines]))
    with pytest.raises(DataError, match=r"'year'.* not in equal steps \(row 22\)"):
        read_series(tmp_path / "years.csv")
    lines = [f"{step % 7},{step % 5},{step % 24}" for step in range(50)]
    (tmp_path / "hours.csv").write_text("\n".join(["a,b,hour", *lines]))
    found = read_series(tmp_path / "hours.csv")
    assert found.names == ("a", "b")
    assert "'hour' left out, as it holds times" in found.notes


def test_a_site_of_several_sensors_is_no_client(tmp_path):
    more = {"site": lambda step, client: "london", "sensor_id": lambda step, client: client + 16}
    found = source(tmp_path, rows(**BASE, **more))
    check(found, ("16", "17", "18"), by="sensor_id")
    assert "'site' left out, as it holds no numbers" in found.describe()


@pytest.mark.parametrize("status", [lambda step, client: "ok" if step % 7 else "bad", lambda step, client: "ok"])
def test_a_status_is_no_client(tmp_path, status):
    more = {"status": status, "sensor": lambda step, client: NAMES[client]}
    check(source(tmp_path, rows(**BASE, **more)[["time", "status", "sensor", "value"]]), by="sensor")


OPENAQ = {
    "location_id": lambda step, client: 2178 + client,
    "sensors_id": lambda step, client: 3178 + client,
    "location": lambda step, client: ("Old Town", "Harbour", "Hill")[client],
    "datetime": lambda step, client: f"{TIMES[step]:%Y-%m-%dT%H:%M:%S}+01:00",
    "lat": lambda step, client: 48.2 + client,
    "parameter": lambda step, client: "pm25",
    "value": BASE["value"],
}


def test_what_is_forecast_is_not_guessed(tmp_path):
    with pytest.raises(DataError, match=r"'lat', 'value' .*target = \"value\""):
        source(tmp_path, rows(**OPENAQ)).client_names()
    found = source(tmp_path, rows(**OPENAQ), target="value")
    # Columns that divide the rows alike name the same clients: the words are their names.
    check(found, ("Old Town", "Harbour", "Hill"), by="location")
    assert "'parameter' left out, as it holds no numbers" in found.describe()
    check(source(tmp_path, rows(**OPENAQ), target="value", **{"client-column": "sensors_id"}), ("3178", "3179", "3180"))
    alone = source(tmp_path, rows(**OPENAQ), target="value", features=["value"])
    check(alone, ("Old Town", "Harbour", "Hill"))
    assert alone.load(["Hill"]).task.features == ("value",)
    by_number = source(tmp_path, rows(**OPENAQ), **{"target-feature": 3})
    assert "forecast: value" in by_number.describe()


def test_columns_that_could_each_be_clients_are_named(tmp_path):
    more = {
        "station": lambda step, client: NAMES[client],
        "device": lambda step, client: f"d{client + 3 * (step > 40)}",  # replaced half way
    }
    with pytest.raises(DataError, match=r"'station', 'device' .*client-column = \"station\""):
        source(tmp_path, rows(**BASE, **more)).client_names()
    check(source(tmp_path, rows(**BASE, **more), target="value", **{"client-column": "station"}), by="station")


def test_no_column_that_tells_clients_apart(tmp_path):
    with pytest.raises(DataError, match="'region' .*client-column"):
        source(tmp_path, rows(**BASE, region=lambda step, client: "north")).client_names()
    with pytest.raises(DataError, match="'sensr'; .*sensor"):
        source(
            tmp_path, rows(**BASE, sensor=lambda step, client: NAMES[client]), **{"client-column": "sensr"}
        ).client_names()


def test_a_row_without_a_client(tmp_path):
    frame = rows(**BASE, sensor=lambda step, client: NAMES[client] if step != 5 or client else None)
    with pytest.raises(DataError, match="row 16 .*'sensor'"):
        source(tmp_path, frame).client_names()


def test_a_file_of_one_client_that_it_names(tmp_path):
    frame = pd.DataFrame(
        {"STATIONS_ID": 44, "MESS_DATUM": TIMES.strftime("%Y%m%d%H"), "TT_TU": FLOW[:, 0], "eor": "eor"}
    )
    found = source(tmp_path, frame)
    assert found.client_names() == ["44"]
    assert "forecast: TT_TU; by client: STATIONS_ID; 'eor' left out" in found.describe()


def test_columns_of_one_client_that_the_file_does_not_name(tmp_path):
    frame = pd.DataFrame({"time": TIMES, "flow": FLOW[:, 0], "speed": FLOW[:, 1], "state": "ok"})
    with pytest.raises(DataError, match=r"'state' .*'ok': .*without = \[\"state\"\]"):
        source(tmp_path, frame).client_names()
    assert source(tmp_path, frame, without=["state"]).client_names() == ["flow", "speed"]
    one = source(tmp_path, frame, target="speed")
    assert one.client_names() == ["a"]
    assert one.load(["a"]).task.features == ("flow", "speed")
    at_node = source(tmp_path, frame, target="speed", own=OwnData(tmp_path / "a.csv", ("mercy",)))
    assert at_node.client_names() == ["mercy"]
    with pytest.raises(IdentityError, match="'clients' must name"):
        source(tmp_path, frame, target="speed", own=OwnData(tmp_path / "a.csv"))


def test_a_column_for_each_client_whose_names_speak_of_sensors(tmp_path):
    flows = {f"sensor {client}": DRAWS.integers(0, 9, 80) for client in range(3)}
    found = source(tmp_path, pd.DataFrame({"time": TIMES, **flows}))
    assert found.client_names() == ["sensor 0", "sensor 1", "sensor 2"]
    assert "forecast" not in found.describe()


@pytest.mark.parametrize("keys", [{"without": ["066062"]}, {"clients": ["009021", "023000"]}])
def test_cells_of_clients_that_are_left_out_are_not_looked_at(tmp_path, keys):
    wide = pd.DataFrame({"time": TIMES, NAMES[0]: FLOW[:, 0], NAMES[1]: FLOW[:, 1], NAMES[2]: "down"})
    check(source(tmp_path, wide, **keys), NAMES[:2])
    frame = rows(**BASE, sensor=lambda step, client: NAMES[client]).astype({"value": object})
    frame.loc[frame.sensor == NAMES[2], "value"] = "down"
    check(source(tmp_path, frame, target="value", **keys), NAMES[:2])
    with pytest.raises(DataError, match="holds no number in row . but 'down'|holds no number in row ., but 'down'"):
        source(tmp_path, wide).client_names()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_numbers_and_words_that_mean_missing(tmp_path, kind):
    frame = pd.DataFrame({"time": TIMES, "a": FLOW[:, 0], "b": FLOW[:, 1]})
    frame.loc[3, "a"], frame.loc[4, "a"] = -9, -999.0
    if kind == "csv":
        frame = frame.astype({"b": object})
        frame.loc[5, "b"] = "Null"
    found = source(tmp_path, frame, kind, missing=["-999", -9.0, "Null"])
    table = found.table()
    assert np.argwhere(np.isnan(table.values)).tolist() == [
        [0, 3, 0],
        [0, 4, 0],
        *([[1, 5, 0]] if kind == "csv" else []),
    ]


def test_clients_that_never_change_and_those_without_a_test_reading_are_told(tmp_path):
    frame = pd.DataFrame({"time": TIMES, "a": 0.0, "b": 7, "c": FLOW[:, 0], "d": FLOW[:, 1]})
    frame.loc[60:, "d"] = np.nan
    told = source(tmp_path, frame).describe()
    assert "0 throughout, so that small errors pull means down: a;" in told
    assert "constant, so that small errors pull means down: b;" in told
    assert told.endswith("without a reading in the test part, so that means are over the others: d")
    frame["e"] = frame["c"].where((frame.index < 56) | (frame.index >= 72))
    told = source(tmp_path, frame).describe()
    assert "without a reading in the validation part, so that means are over the others: e;" in told
    assert source(tmp_path, frame[["time", "c"]]).describe() == "a.csv, 1 client, 80 hourly steps"


def test_two_ways_to_say_what_is_forecast():
    with pytest.raises(ExperimentError, match="set target or target-feature"):
        parse(SeriesSettings, {"target": "a", "target-feature": 0}, "[data]")


def test_whole_numbers_beyond_those_of_single_precision(tmp_path):
    watt = DRAWS.integers(17_000_000, 23_000_000, (80, 2))
    for kind in ("csv", "parquet"):
        found = source(tmp_path, pd.DataFrame({"time": TIMES, "a": watt[:, 0], "b": watt[:, 1]}), kind)
        np.testing.assert_array_equal(found.table().values[:, :, 0].T, watt.astype(np.float32))


def test_columns_that_name_clients_together(tmp_path):
    more = {"site": lambda step, client: "XXY"[client], "sensor": lambda step, client: [1, 2, 1][client]}
    with pytest.raises(DataError, match=r"\('site', 'sensor'"):
        source(tmp_path, rows(**BASE, **more)).client_names()
    found = source(tmp_path, rows(**BASE, **more), **{"client-column": ["site", "sensor"]})
    check(found, ("X/1", "X/2", "Y/1"), by="site/sensor")


def test_names_of_clients_that_differ_in_case_alone_are_told(tmp_path):
    found = source(tmp_path, rows(**BASE, sensor=lambda step, client: ("Hill", "hill ", "Old Town")[client]))
    assert "'Hill' and 'hill' are two clients" in found.describe()


def test_parts_of_the_time_are_no_clients(tmp_path):
    frame = pd.DataFrame(
        {"time": TIMES, "hour": TIMES.hour, "weekday": TIMES.weekday, "a": FLOW[:, 0], "b": FLOW[:, 1]}
    )
    found = source(tmp_path, frame)
    assert found.client_names() == ["a", "b"]
    assert "'hour' left out, as it holds times; 'weekday' left out" in found.describe()
    years = pd.DataFrame({"year": range(1941, 2021), "a": FLOW[:, 0], "b": FLOW[:, 1]})
    yearly = source(tmp_path, years)
    assert yearly.client_names() == ["a", "b"]
    assert yearly.table().times[0] == np.datetime64("1941-01-01")


@pytest.mark.parametrize("first", [738_000, 2_459_215.5])
def test_times_that_are_counted_in_another_way_are_refused(tmp_path, first):
    frame = pd.DataFrame({"time": first + np.arange(80) / 24, "a": FLOW[:, 0]})
    with pytest.raises(DataError, match="column 'time' .*2012"):
        source(tmp_path, frame).client_names()
    assert source(tmp_path, frame.assign(time=5 * np.arange(80))).table().times is None


def test_names_with_accents_apart_are_the_same_in_file_settings_and_graph(tmp_path):
    apart, whole = "Mu\u0308nchen", "M\u00fcnchen"
    frame = rows(**BASE, station=lambda step, client: (apart, "Ulm", "Bern")[client])
    (tmp_path / "near.csv").write_text(f"from,to,weight\n{apart},Ulm,1\nUlm,Bern,1\n")
    found = source(tmp_path, frame, clients=[apart, "Ulm"], graph=str(tmp_path / "near.csv"))
    assert found.client_names() == [whole, "Ulm"]
    graph = found.given_graph()
    assert graph is not None
    assert graph.names == (whole, "Ulm")
