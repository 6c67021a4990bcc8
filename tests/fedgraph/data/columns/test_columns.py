from __future__ import annotations

import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.columns.columns import (
    as_category,
    is_number,
    read_column,
    read_numbers,
    sort_categories,
)
from fedgraph.data.columns.table import Table
from fedgraph.support.errors import DataError

CELLS = st.one_of(st.none(), st.integers(-9, 99).map(str), st.sampled_from(["2.0", "2.5", "yes", "nan", "07"]))


def table(cells, kind=None):
    return Table({"x": pa.array(cells, kind)}, "t.csv")


def test_codes_and_texts():
    column = read_column(table(["b", None, "a", "b"]), "x")
    assert column.texts.to_pylist() == ["b", "a"]
    assert column.codes.tolist() == [0, -1, 1, 0]
    assert column.counts.tolist() == [2, 1]
    assert column.categories() == ("a", "b")
    assert column.categories(least_rows=2) == ("b",)
    assert column.numbers is None


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        (["2.0", "2", "2.", "-3.00"], ["2", "-3"]),
        (["2.50", "1e3", "02.0"], ["2.50", "1e3", "02"]),
        ([1.0, 2.5, 1.0], ["1", "2.5"]),
        ([True, False], ["true", "false"]),
        ([decimal.Decimal("1.50")], ["1.50"]),
    ],
)
def test_one_number_is_one_category(cells, texts):
    assert read_column(table(cells), "x").texts.to_pylist() == texts


def test_missing_codes():
    cells = ["1", "99", "99.0", "099", "unk", "a", None]
    assert read_column(table(cells), "x", [99, "unk"]).texts.to_pylist() == ["1", "099", "a"]
    # Among words 099 is a word; among numbers it is 99, unless the code is a text.
    assert read_column(table(cells[:4]), "x", [99]).texts.to_pylist() == ["1"]
    assert read_column(table(cells[:5]), "x", [99, "unk"]).texts.to_pylist() == ["1"]
    assert read_column(table(cells[:4]), "x", ["99"]).texts.to_pylist() == ["1", "099"]
    for codes in ([99], [99, "none"], ["99"]):
        numbers = read_numbers(table(cells[:4]), "x", codes)
        assert np.isnan(numbers).tolist() == [False, True, True, 99 in codes]


def test_numbers_that_are_nan_are_missing_and_infinite_ones_are_refused():
    for cells in (["1", "nan", "2"], [1.0, float("nan"), 2.0]):
        column = read_column(table(cells), "x")
        assert column.codes.tolist() == [0, -1, 1]
        np.testing.assert_array_equal(column.as_numbers(), [1, np.nan, 2])
    for cells in (["1", "nan", "-inf"], [1.0, float("nan"), float("-inf")]):
        for read in (read_column, read_numbers):
            with pytest.raises(DataError, match="'x' .*-inf in row 3"):
                read(table(cells), "x")
    with pytest.raises(DataError, match="holds inf in row 2"):
        read_column(table(["none", "inf", "3"]), "x", ["none"])


def test_a_few_words_in_a_column_of_numbers():
    for cells in ([*map(str, range(11)), "unknown"], ["1", "2.5", "unknown", "3"]):
        row = cells.index("unknown") + 1
        message = rf"'x' of t.csv holds 'unknown' \(the first in row {row}\).*: do so"
        with pytest.raises(DataError, match=message) as caught:
            read_column(table(cells), "x").check_words("do so")
        assert "unknown" not in caught.value.without_values
    for cells in (["0", "1", "2", "3+"], ["a", "b", "1.5"], ["1", "2.5"], [*map(str, range(20)), *"abcdef"]):
        read_column(table(cells), "x").check_words("do so")


def test_words_in_the_place_of_numbers_or_categories():
    column = read_column(table(["1", "<5", "?", *"abcd"]), "x")
    with pytest.raises(DataError, match=r"'x' .*t\.csv .*'<5'"):
        column.as_numbers()
    with pytest.raises(DataError, match="holds unknown categories: '<5'"):
        column.as_codes(("a", "b", "1"))
    codes = column.as_codes(("a", "b", "1"), unknown_is_missing=True)
    np.testing.assert_array_equal(codes, [2, np.nan, np.nan, 0, 1, np.nan, np.nan])


def test_columns_that_cannot_be():
    with pytest.raises(DataError, match="no column 'y'; its columns: x"):
        read_column(table(["1"]), "y")
    with pytest.raises(DataError, match="of type list<"):
        read_column(table([[1], [2]]), "x")


@settings(max_examples=200)
@given(st.lists(CELLS, min_size=1), st.lists(st.sampled_from([99, 2, 2.5, "yes", "2", "nope"]), max_size=2))
def test_the_quick_way_to_numbers_is_the_same(cells, codes):
    held = table(cells, pa.string())
    column, quick = read_column(held, "x", codes), read_numbers(held, "x", codes)
    assert (quick is None) == (column.numbers is None)
    if quick is not None:
        np.testing.assert_array_equal(quick, column.as_numbers())
    # Every code points to what the cell says.
    for cell, code in zip(cells, column.codes, strict=True):
        if code >= 0:
            assert column.texts[code].as_py() == as_category(cell)
    assert sorted(set(column.codes[column.codes >= 0])) == list(range(len(column.texts)))


def test_late_words_are_found():
    assert read_numbers(table(["1"] * 200 + ["a"]), "x") is None


def test_order():
    assert sort_categories(["10", "9", "-1.5"]) == ("-1.5", "9", "10")
    assert sort_categories(["10", "9", "x"]) == ("10", "9", "x")
    assert is_number("1e3")
    assert not any(map(is_number, ["nan", "inf", "1_000", "٣", "x"]))
    assert as_category(99.0) == as_category(" 99") == "99"
