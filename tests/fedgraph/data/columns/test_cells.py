"""Numbers and missing values in the ways in which files of many countries and programs write them."""

import gzip
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedgraph.data.columns import read_categories, read_table
from fedgraph.data.columns.cells import MISSING, mask_missing
from fedgraph.support.errors import DataError


def table(tmp_path, cells, separator=";", name="x", **more):
    """A file with a column of these cells beside one of words."""
    path = tmp_path / f"{abs(hash((tuple(cells), separator)))}.csv"
    lines = [f"word{separator}{name}", *(f'w{separator}"{cell}"' for cell in cells)]
    path.write_text("\n".join(lines) + "\n")
    return read_table(path, **more)


@pytest.mark.parametrize(
    ("separator", "cells", "named"),
    [
        (";", ["987", "1.234", "560"], ("1.234", "987")),
        ("\t", ["15", "2.155"], ("2.155", "15")),
        (",", ["987", "1.234", "560"], ("1.234", "987")),
        (";", ["659,5", "1.102,5"], ("1.102,5", "659,5")),
        (";", ["1.234.567", "12"], ("1.234.567", "12")),
        (",", ["234,000", "1,234,000"], ("1,234,000", "")),
        (",", ["234,000", "15"], ("234,000", "")),
        ("\t", ["1,234", "987.5"], ("1,234", "987.5")),
        (";", ["12\u202f345,5", "7,5"], ("12\u202f345,5", "7,5")),
        (";", ["12 345", "7"], ("12 345", "7")),
        (";", ["1'234.50", "7.25"], ("1'234.50", "7.25")),
        (",", ["12,34,567", "5"], ("12,34,567", "")),
    ],
)
def test_thousands_are_an_error_that_names_both_cells(tmp_path, separator, cells, named):
    found = table(tmp_path, cells, separator)
    with pytest.raises(DataError, match=r"column 'x' of .*\.csv holds") as caught:
        found.numbers("x")
    message = str(caught.value)
    for cell in filter(None, named):
        assert f"'{cell}' in row {cells.index(cell) + 1}" in message
        assert f"'{cell}'" not in caught.value.without_values
    # The words beside them can be read.
    assert found.names_in("word")[1] == ("w",)


@pytest.mark.parametrize(
    ("separator", "cells", "thousands", "numbers"),
    [
        (";", ["987", "1.234", "1.102,5"], ".", [987, 1234, 1102.5]),
        (",", ["987", "1,234", "1,102.5"], ",", [987, 1234, 1102.5]),
        (";", ["987", "12 345,5", "1\u00a0000"], " ", [987, 12345.5, 1000]),
        (";", ["1'234.5", "3"], "'", [1234.5, 3]),
        (";", ["987", "1.234"], "", [987, 1.234]),
    ],
)
def test_thousands_are_read_where_the_settings_say_what_separates_them(tmp_path, separator, cells, thousands, numbers):
    assert table(tmp_path, cells, separator, thousands=thousands).numbers("x").tolist() == numbers


def test_a_column_with_three_decimals_is_in_doubt_where_another_has_decimal_commas(tmp_path):
    path = tmp_path / "lab.csv"
    path.write_text("platelets;crp\n1.009;15,02\n2.782;10,66\n")
    with pytest.raises(DataError, match=r"'platelets'.*'1\.009' .*'15,02'"):
        read_table(path).numbers("platelets")
    np.testing.assert_array_equal(read_table(path).numbers("crp"), [15.02, 10.66])


@pytest.mark.parametrize(
    ("separator", "cells", "numbers"),
    [
        (";", ["0.125", "1.250", "2"], [0.125, 1.25, 2]),
        (";", ["1.25", "1.234", "2"], [1.25, 1.234, 2]),
        (";", ["12.345", "45.678"], [12.345, 45.678]),
        (",", ["1", "2", "2.375"], [1, 2, 2.375]),
        (",", ["0", "1.234", "23.456"], [0, 1.234, 23.456]),
        (";", ["0,5", "12", "-3,25"], [0.5, 12, -3.25]),
        (";", ["1e3", "+2", "-.5"], [1000, 2, -0.5]),
        (",", ["17021385", "20000001"], [17021385, 20000001]),
    ],
)
def test_decimals_stay_decimals(tmp_path, separator, cells, numbers):
    np.testing.assert_array_equal(table(tmp_path, cells, separator).numbers("x"), numbers)


@pytest.mark.parametrize(
    ("separator", "cells", "named"),
    [(",", ["1", "0,5", "12,25"], "'0,5' in row 2"), (";", ["0,5", "12", "2.5"], r"'2\.5' in row 3")],
)
def test_decimal_commas_between_commas_or_beside_points_are_an_error(tmp_path, separator, cells, named):
    with pytest.raises(DataError, match=named) as caught:
        table(tmp_path, cells, separator).numbers("x")
    assert cells[int(named[-1]) - 1] not in caught.value.without_values


def test_names_are_no_numbers(tmp_path):
    found = table(tmp_path, ["1.001", "2.002", "7"], name="ward")
    assert found.names_in("ward")[1] == ("1.001", "2.002", "7")
    assert table(tmp_path, ["009", "10", "9"], name="ward").names_in("ward")[1] == ("009", "9", "10")


MARKS = ("", "-999.0", "-9", "unk")


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["-999", "1.5", "-9.0", None]),
        pa.array(["-999.000", "1.5", "unk", ""]),
        pa.array([-999.0, 1.5, -9.0, None]),
        pa.array([-999.0, 1.5, -9.0, None], pa.float32()),
        pa.array([-999, 2, -9, None], pa.int16()),
        pa.array(["-999", "word", "-9.0", "unk"]),
    ],
)
def test_marks_match_as_numbers_in_columns_of_any_type(column):
    assert [place for place, cell in enumerate(mask_missing(column, MARKS).to_pylist()) if cell is not None] == [1]


def test_marks_are_no_numbers_in_columns_of_words_with_zeros_in_front():
    assert mask_missing(pa.array(["099", "99", "a"]), ("99",)).to_pylist() == ["099", None, "a"]
    assert mask_missing(pa.array([True, False]), ("1",)).to_pylist() == [True, False]


@pytest.mark.parametrize("kind", ["decimal", "category", "float", "int"])
def test_parquet_columns_of_all_kinds(tmp_path, kind):
    numbers = [Decimal("2.50"), Decimal("-999.00"), Decimal("3.25")]
    frame = {
        "decimal": pd.Series(numbers),
        "category": pd.Series(["2.5", "-999", "3.25"]).astype("category"),
        "float": pd.Series([2.5, -999, 3.25]),
        "int": pd.Series([2, -999, 3]),
    }
    pd.DataFrame({"x": frame[kind]}).to_parquet(tmp_path / "x.parquet")
    found = read_table(tmp_path / "x.parquet", missing=("", "-999.0")).numbers("x")
    np.testing.assert_array_equal(found, [2, np.nan, 3] if kind == "int" else [2.5, np.nan, 3.25])


def test_categories_compare_as_numbers_however_they_are_written(tmp_path):
    cells = ["0", "0.0", "1.00", "1"]
    assert read_categories(table(tmp_path, cells), "x")[1] == ("0", "1")
    codes, classes = read_categories(table(tmp_path, cells), "x", ("1.0", "0"))
    assert (codes.tolist(), classes) == ([1, 1, 0, 0], ("1.0", "0"))
    with pytest.raises(DataError, match=r"'0', '0\.0'"):
        read_categories(table(tmp_path, cells), "x", ("0", "0.0", "1"))
    with pytest.raises(DataError, match="'DEAD', .*'dead'"):
        read_categories(table(tmp_path, ["dead", "DEAD"]), "x", ("dead", "alive"))


@pytest.mark.parametrize("heading", ["systolic\n(mmHg)", "systolic\r\n(mmHg)"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_line_breaks_in_headings(tmp_path, heading, place):
    names, cells = ["a", "b", "c"], ['"one\nline"', "2", "3"]
    names[place] = f'"{heading}"'
    for separator in ",;":
        path = tmp_path / f"break{separator}.csv"
        path.write_text(f"{separator.join(names)}\n{separator.join(cells)}\n4{separator}5{separator}6\n", newline="")
        found = read_table(path)
        assert found.names[place] == "systolic\n(mmHg)"
        assert found.num_rows == 2
        assert found.columns[found.names[0]].to_pylist() == ["one\nline", "4"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("heading", ["Größe", "size"])
def test_encodings(tmp_path, encoding, heading):
    raw = f"Ort;{heading}\nGrün;1,5\nMünchen;2,5\n".encode(encoding)
    (tmp_path / "a.csv").write_bytes(raw)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(raw))
    for name in ("a.csv", "a.csv.gz"):
        found = read_table(tmp_path / name)
        assert found.names == ["Ort", heading]
        assert found.names_in("Ort")[1] == ("Grün", "München")
        assert found.numbers(heading).tolist() == [1.5, 2.5]
        assert len(found.notes) == (encoding == "cp1252")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_separator_at_the_end_of_each_line_makes_no_column(tmp_path, separator):
    lines = ["a,b,", "1,2,", "3,4, "]
    (tmp_path / "a.csv").write_text("\n".join(lines).replace(",", separator))
    assert read_table(tmp_path / "a.csv").names == ["a", "b"]
    (tmp_path / "b.csv").write_text("\n".join(line + "," for line in lines).replace(",", separator))
    assert read_table(tmp_path / "b.csv").names == ["a", "b"]
    (tmp_path / "c.csv").write_text("a,b,\n1,2,\n3,4,5\n".replace(",", separator))
    assert read_table(tmp_path / "c.csv").columns[""].to_pylist() == [None, "5"]


@pytest.mark.parametrize(("first", "then"), [("a,b", "1,2,SECRET"), ("# exported", "a,SECRET"), ("a,b", '"SECRET')])
def test_lines_of_another_length_are_named_without_their_cells(tmp_path, first, then):
    (tmp_path / "a.csv").write_text(f"{first}\n{then}\n")
    with pytest.raises(DataError, match=r"a\.csv .*first line has [12] columns?, and another .* [1-3]: ") as caught:
        read_table(tmp_path / "a.csv")
    assert "SECRET" in str(caught.value)
    assert "SECRET" not in caught.value.without_values


@pytest.mark.parametrize("content", [b"PK\x03\x04\0\0", b'{"a": [1]}', b' [{"a": 1}]', b"ARROW1\0\0"])
def test_spreadsheets_and_the_like_are_no_text(tmp_path, content):
    (tmp_path / "a.xlsx").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.xlsx .*save it as CSV or Parquet"):
        read_table(tmp_path / "a.xlsx")


def test_headings_may_begin_with_brackets(tmp_path):
    (tmp_path / "a.csv").write_text("[kW],{a}\n1,2\n")
    assert read_table(tmp_path / "a.csv").names == ["[kW]", "{a}"]


@pytest.mark.parametrize("text", ["a,b", "a,b\n"])
def test_a_header_alone_is_no_table(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match="has no rows"):
        read_table(tmp_path / "a.csv")


def test_letters_with_accents_apart_are_the_same_letters(tmp_path):
    (tmp_path / "a.csv").write_text("Gro\u0308sse,y\nMu\u0308nchen,1\nM\u00fcnchen,2\n")
    found = read_table(tmp_path / "a.csv")
    assert found.names == ["Gr\u00f6sse", "y"]
    assert found.names_in("Gr\u00f6sse")[1] == ("M\u00fcnchen",)


def test_pandas_marks_are_missing_by_default(tmp_path):
    # "None" is a category in too many files, and "Null" a name.
    pandas = pd.read_csv(tmp_path / _csv(tmp_path, MISSING), keep_default_na=True, skip_blank_lines=False)
    found = read_table(tmp_path / _csv(tmp_path, MISSING))
    assert found.column("x").null_count == len(MISSING)
    assert pandas["x"].isna().sum() == len(MISSING) - 1  # all but "?"


def _csv(tmp_path, cells):
    (tmp_path / "m.csv").write_text("x,y\n" + "".join(f'"{cell}",1\n' for cell in [*cells, "5"]))
    return "m.csv"
