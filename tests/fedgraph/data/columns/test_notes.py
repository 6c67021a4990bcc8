"""Notes on columns that may have been misread."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fedgraph.data import open_source, parse_data
from fedgraph.data.columns.notes import likely_marks, notes_on_column
from fedgraph.data.columns.table import Table


def table(cells):
    return Table({"x": pa.array(cells)}, "t.csv")


@pytest.mark.parametrize(
    ("others", "marks", "found"),
    [
        (np.arange(80, 160), [-999], [-999]),
        (np.arange(80, 160), [0], [0]),
        (np.resize([1, 2, 3, 4], 60), [98, 99], [99, 98]),
        (np.linspace(0.1, 7.3, 80), [99.9], [99.9]),
        (np.arange(80, 160), [170], []),  # beyond the others, but not far
        (np.resize([0, 1], 60), [], []),
        (np.resize([0, 1, 2, 5, 9, 14], 90), [], []),
        (np.full(60, 4.0), [99], []),
        (np.full(60, np.nan), [], []),
    ],
)
def test_numbers_that_may_mean_missing(others, marks, found):
    values = np.concatenate([others, np.repeat(marks, 4), [np.nan]]).astype(float)
    assert likely_marks(values) == found
    assert likely_marks(np.append(others, marks).astype(float)) == []  # once each
    assert len(notes_on_column(table(values), "x", "")) == bool(found)


@pytest.mark.parametrize(
    ("cells", "noted"),
    [
        (["01234", "98765", None], True),
        (["1234", "98765"], False),
        (["01", "12", "00"], False),  # months and hours
        (["0.123", "0"], False),
        ([12, 34], False),
    ],
)
def test_codes_with_zeros_in_front_are_noted(cells, noted):
    notes = notes_on_column(table(cells), "x", "[data.categories]")
    assert [note.endswith("if it is codes, see [data.categories]") for note in notes] == [True] * noted


@pytest.mark.parametrize(
    "data",
    [
        {"set": "table", "label": "ill", "client-column": "site"},
        {"set": "mixed-table", "client-column": "site"},
        {"set": "table-columns", "label": "ill", "owners": {"lab": ["bp"], "desk": ["age"]}},
        {"set": "series", "input-steps": 2, "output-steps": 1, "without": ["site", "ill"]},
    ],
)
def test_every_set_names_numbers_that_may_mean_missing(tmp_path, data):
    rows = [
        f"{30 + row * 7 % 40},{-999 if row % 9 == 0 else 100 + row % 13},{'ab'[row % 2]},{row % 3 % 2}"
        for row in range(90)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["age,bp,site,ill", *rows]))
    described = open_source(parse_data({**data, "path": "own.csv"}), tmp_path).describe()
    assert "-999, far from" in described
    assert described.count("far from") == 1
    marked = open_source(parse_data({**data, "path": "own.csv", "missing": -999}), tmp_path)
    assert "far from" not in marked.describe()


@pytest.mark.parametrize(
    ("column", "note"),
    [
        (["yes", "TRUE", "no"], "'TRUE' and 'yes' of 'x' are two categories"),
        (range(1, 31), "'x' numbers the rows, and is a feature unless [data] {key} leaves it out"),
        ([f"p{row}" for row in range(30)], "'x' is 30 categories, nearly one for each row"),
    ],
)
@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("drop", {"set": "table", "clients": 2}),
        ("owners", {"set": "table-columns", "owners": {"lab": ["x"], "desk": ["age"]}}),
    ],
)
def test_columns_that_may_be_no_features_are_noted(tmp_path, column, note, key, data):
    rows = [f"{40 + row % 7},{value},{'ab'[row % 2]}" for row, value in enumerate(np.resize([*column], 30))]
    (tmp_path / "own.csv").write_text("\n".join(["age,x,ill", *rows]))
    source = open_source(parse_data({**data, "path": "own.csv", "label": "ill"}), tmp_path)
    assert note.format(key=key) in source.describe()
