"""Ten files that pandas reads too: windows, splits and encodings recomputed by pandas and NumPy alone are equal.

What is under test hands over batches of windows, rows and codes; only the random order of rows is drawn as it draws it.
"""

import io
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.data.encoding import read_values
from fedgraph.data.schema import infer_schema
from fedgraph.support.randomness import generator

DRAWS = np.random.default_rng(7)
SPLITS = ("train", "validation", "test")
INPUT, OUTPUT, SHARES = 6, 3, (0.7, 0.2, 0.1)

# ---- series

HOURS = pd.date_range("2021-02-26 22:00", periods=160, freq="h")
FLOW = pd.DataFrame(DRAWS.normal(500, 300, (160, 3)).round(2), index=HOURS, columns=["009", "a b", "Süd"])
FLOW.iloc[DRAWS.integers(0, 160, 25), 1] = np.nan


def long(frame):
    """A row for each time and client in a random order; the first rows name the clients in order."""
    rows = frame.rename_axis("time").reset_index().melt("time", var_name="sensor", value_name="flow")
    rows = rows.sample(frac=1, random_state=0)
    return pd.concat([rows.drop_duplicates("sensor").sort_values("sensor"), rows]).drop_duplicates()


def wide_with_gaps(folder):
    FLOW.drop(HOURS[[5, 6, 90]]).rename_axis("time").to_csv(folder / "f.csv")
    return pd.read_csv(folder / "f.csv", index_col=0, parse_dates=True), "f.csv", {}


def rows_of_sensors(folder):
    long(FLOW).to_csv(folder / "f.csv", index=False)
    read = pd.read_csv(folder / "f.csv", dtype={"sensor": str}, parse_dates=["time"])
    return read.pivot(index="time", columns="sensor", values="flow"), "f.csv", {}


def german(folder):
    FLOW.set_index(HOURS.strftime("%d.%m.%Y %H:%M")).rename_axis("Zeit").to_csv(
        folder / "f.csv", sep=";", decimal=",", encoding="cp1252"
    )
    read = pd.read_csv(folder / "f.csv", sep=";", decimal=",", encoding="cp1252", index_col=0)
    return read.set_index(pd.to_datetime(read.index, format="%d.%m.%Y %H:%M")), "f.csv", {}


def digits_in_parquet(folder):
    frame = long(FLOW)
    frame["time"] = frame.time.dt.strftime("%Y%m%d%H").astype(np.int64)
    frame.astype({"sensor": "category"}).to_parquet(folder / "f.parquet", index=False)
    read = pd.read_parquet(folder / "f.parquet")
    read["time"] = pd.to_datetime(read.time.astype(str), format="%Y%m%d%H")
    return read.pivot(index="time", columns="sensor", values="flow"), "f.parquet", {}


def parts_of_times_and_marks(folder):
    parts = {part: getattr(HOURS, part) for part in ("year", "month", "day", "hour")}
    frame = pd.concat([pd.DataFrame(parts, index=HOURS), FLOW.fillna(-999)], axis=1)
    frame.iloc[70, 4] = -9
    frame.to_csv(folder / "f.csv", index=False)
    read = pd.read_csv(folder / "f.csv", na_values=[-999, -9])
    times = pd.to_datetime(read[list(parts)])
    return read.set_index(times).drop(columns=list(parts)), "f.csv", {"missing": ["-9.0", -999]}


def watts(folder):
    frame = (FLOW.fillna(0) * 40_000).astype(np.int64).abs()
    frame.to_csv(folder / "f.csv.gz", index_label="timestamp")
    return pd.read_csv(folder / "f.csv.gz", index_col=0, parse_dates=True), "f.csv.gz", {"missing": 0}


def expected_windows(frame):
    """For each split and client the scaled inputs, targets and weights of all windows, by NumPy."""
    frame = frame.reindex(pd.date_range(frame.index.min(), frame.index.max(), freq="h"))
    ends = [int(len(frame) * share + 1e-6) for share in np.cumsum(SHARES)]
    values = frame.to_numpy(np.float64)
    mean, std = np.nanmean(values[: ends[0]], 0), np.nanstd(values[: ends[0]], 0)
    scaled = (values - mean) / std
    known, filled = ~np.isnan(scaled), np.nan_to_num(scaled)
    found = {}
    for split, start, end in zip(SPLITS, [0, *ends], ends, strict=False):
        firsts = range(start, end - INPUT - OUTPUT + 1)
        found[split] = {
            "inputs": np.array([filled[first : first + INPUT] for first in firsts]),
            "targets": np.array([filled[first + INPUT : first + INPUT + OUTPUT] for first in firsts]),
            "weights": np.array([known[first + INPUT : first + INPUT + OUTPUT] for first in firsts]),
        }
    return found, mean, std


@pytest.mark.parametrize(
    "make", [wide_with_gaps, rows_of_sensors, german, digits_in_parquet, parts_of_times_and_marks, watts]
)
def test_windows_of_series(tmp_path, make):
    frame, name, keys = make(tmp_path)
    if "missing" in keys and keys["missing"] == 0:
        frame = frame.mask(frame == 0)
    table = {
        "set": "series",
        "path": name,
        "input-steps": INPUT,
        "output-steps": OUTPUT,
        "shares": list(SHARES),
        **keys,
    }
    source = open_source(parse_data(table), tmp_path)
    assert sorted(source.client_names()) == sorted(map(str, frame.columns))
    data = source.load([str(client) for client in frame.columns])
    windows, mean, std = expected_windows(frame)
    np.testing.assert_allclose(data.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(data.std, std, rtol=1e-6)
    for split, wanted in windows.items():
        count = len(wanted["inputs"])
        assert data.splits[split].num_examples.tolist() == [count] * len(frame.columns)
        batch = data.splits[split].batch(torch.arange(count).expand(len(frame.columns), -1))
        np.testing.assert_allclose(batch.inputs[..., 0].permute(1, 2, 0), wanted["inputs"], atol=2e-5)
        np.testing.assert_allclose(batch.targets.permute(1, 2, 0), wanted["targets"], atol=2e-5)
        np.testing.assert_array_equal(batch.weights.permute(1, 2, 0), wanted["weights"])


# ---- tables

PEOPLE = pd.DataFrame(
    {
        "site": DRAWS.choice(["mercy", "county", "07"], 150),
        "age": DRAWS.integers(18, 95, 150),
        "lactate": DRAWS.gamma(2, 1.2, 150).round(2),
        "ward": DRAWS.choice(["icu", "Säuglinge", "er"], 150),
        "dose": DRAWS.choice([0, 1, 2], 150),
        "outcome": DRAWS.choice(["well", "sick"], 150),
    }
)
LOST = DRAWS.random(150) < 0.1


def plain(folder):
    frame = PEOPLE.assign(lactate=PEOPLE.lactate.mask(LOST, -999), ward=PEOPLE.ward.mask(LOST[::-1], "?"))
    frame.to_csv(folder / "t.csv", index=False)
    return (
        pd.read_csv(folder / "t.csv", dtype={"site": str}, na_values=["?", -999]),
        "t.csv",
        {"missing": ["?", "-999.0"]},
    )


def semicolons(folder):
    frame = PEOPLE.assign(lactate=PEOPLE.lactate.mask(LOST, -9.0))
    frame.to_csv(folder / "t.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    read = pd.read_csv(
        folder / "t.csv", sep=";", decimal=",", encoding="utf-16", dtype={"site": str}, na_values=["-9,0"]
    )
    return read, "t.csv", {"missing": ["", -9]}


def parquet(folder):
    frame = PEOPLE.assign(lactate=[Decimal(f"{value:.2f}") for value in PEOPLE.lactate.mask(LOST, -999)])
    frame.astype({"ward": "category", "site": "category"}).to_parquet(folder / "t.parquet", index=False)
    read = pd.read_parquet(folder / "t.parquet")
    read["lactate"] = read.lactate.astype(float).mask(lambda lactate: lactate == -999)
    return read.astype({"site": str}), "t.parquet", {"missing": ["-999.000"]}


def headings(folder):
    text = PEOPLE.to_csv(index=False, sep="\t").replace("lactate", '"lactate\n(mmol/l)"', 1)
    (folder / "t.csv").write_text("\ufeff" + text, encoding="utf-8")
    read = pd.read_csv(io.StringIO(text), sep="\t", dtype={"site": str})
    return read, "t.csv", {}


TABLES = [plain, semicolons, parquet, headings]


def encoded(frame, columns):
    """Numbers as they are and words as indicators, by pandas; the names as ``column=word``."""
    words = [name for name in columns if not pd.api.types.is_numeric_dtype(frame[name])]
    parts = [
        pd.get_dummies(frame[name].astype(object), prefix=name, prefix_sep="=").sort_index(axis=1)
        if name in words
        else frame[[name]]
        for name in columns
    ]
    return pd.concat(parts, axis=1).astype(float), words


@pytest.mark.parametrize("make", TABLES)
def test_rows_of_tables(tmp_path, make):
    frame, name, keys = make(tmp_path)
    settings = {"set": "table", "path": name, "label": "outcome", "client-column": "site", **keys}
    source = open_source(parse_data(settings), tmp_path)
    clients = sorted(frame.site.unique())
    assert sorted(source.client_names()) == clients
    data = source.load(clients)
    columns = [column for column in frame.columns if column not in ("site", "outcome")]
    numbers, words = encoded(frame, columns)
    assert data.task.features == tuple(numbers.columns)
    assert data.task.classes == ("sick", "well")
    scaled = [column for column in columns if column not in words]
    for row, client in enumerate(clients):
        own = numbers[frame.site == client].reset_index(drop=True)
        labels = (frame.outcome[frame.site == client] == "well").to_numpy().astype(int)
        sizes = [max(1, round(len(own) * share)) for share in (0.1, 0.2)]
        rows = drawn(len(own), sizes, client)
        train = own.loc[rows["train"], scaled]
        whole = own.copy()
        whole[scaled] = ((own[scaled] - train.mean()) / train.std(ddof=0)).fillna(0.0)
        for split, places in rows.items():
            assert int(data.splits[split].num_examples[row]) == len(places)
            batch = data.splits[split].batch(torch.arange(len(places)).expand(len(clients), -1))
            np.testing.assert_allclose(batch.inputs[row], whole.loc[places], atol=1e-4)
            np.testing.assert_array_equal(batch.targets[row], labels[places])


def drawn(count, sizes, client):
    """The rows of each split, in order: a random order of all, cut."""
    order = torch.randperm(count, generator=generator(0, "split", client)).numpy()
    parts = np.split(order, np.cumsum([count - sum(sizes), *sizes])[:-1])
    return {split: np.sort(part) for split, part in zip(SPLITS, parts, strict=True)}


@pytest.mark.parametrize("make", TABLES)
def test_columns_of_owners(tmp_path, make):
    frame, name, keys = make(tmp_path)
    columns = [column for column in frame.columns if column not in ("site", "outcome")]
    owners = {"lab": columns[:2], "desk": columns[2:]}
    settings = {"set": "table-columns", "path": name, "label": "outcome", "owners": owners, **keys}
    held = open_source(parse_data(settings), tmp_path).holdings(["lab", "desk"])
    for place, own in enumerate(owners.values()):
        numbers, _ = encoded(frame, own)
        assert held.features[place] == tuple(numbers.columns)
        np.testing.assert_allclose(held.inputs[place], numbers.to_numpy(np.float32), rtol=1e-6)
    np.testing.assert_array_equal(held.labels, (frame.outcome == "well").astype(int))


@pytest.mark.parametrize("make", TABLES)
def test_values_of_mixed_tables(tmp_path, make):
    frame, name, keys = make(tmp_path)
    source = open_source(parse_data({"set": "mixed-table", "path": name, "client-column": "site", **keys}), tmp_path)
    settings = source.table_schema
    for client in frame.site.unique():
        table = source.load_table(client).table
        own = frame[frame.site == client].drop(columns="site")
        schema = infer_schema(table, settings, partial=True)
        assert schema.names == tuple(own.columns)
        values = read_values(table, schema, settings)
        for place, column in enumerate(own.columns):
            if pd.api.types.is_numeric_dtype(own[column]):
                expected = own[column].to_numpy(float)
                if schema[column].categories:
                    expected = own[column].map(lambda cell, listed=schema[column].categories: listed.index(str(cell)))
            else:
                codes = pd.Categorical(own[column], schema[column].categories).codes
                assert list(schema[column].categories) == sorted(own[column].dropna().unique())
                expected = np.where(codes < 0, np.nan, codes)
            np.testing.assert_allclose(values[:, place], np.asarray(expected, float), rtol=1e-12)
