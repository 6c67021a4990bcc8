import csv
import io

import pytest

from fedgraph.support.csv_text import as_csv, cell_text, detect_separator, text_of_cell, with_decimal_point


@pytest.mark.parametrize(
    ("line", "separator"),
    [
        ("a,b", ","),
        ("a;b;c,d", ";"),
        ("a\tb", "\t"),
        ("a", ","),
        ("", ","),
        ("1,5;2,5", ";"),
        ("1,2", ","),
        ('"a;b;c",d', ","),
    ],
)
def test_separator_of_a_first_line(line, separator):
    assert detect_separator(line) == separator


def test_decimal_commas_of_numbers_alone():
    cells = ["1,5", "-,5", "+1,5e-3", "1.5", "a,5", "1,234,5", ""]
    assert [with_decimal_point(cell) for cell in cells] == ["1.5", "-.5", "+1.5e-3", *cells[3:]]


FORMULAS = [
    "=1+1",
    "=cmd|'/c calc'!A0",
    "+SUM(A1)",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "-cmd|'/c calc'!A0",
    "-SUM(A1)",
    "+",
]
ORDINARY = ["a", "", "-", "-1", "+1", "+1.5e-3", "-0,5", "- none", "-b", "a=b", "O'Neil", "1-2", 5, -2.5, None, True]


@pytest.mark.parametrize("text", FORMULAS + [f"'{text}" for text in FORMULAS])
def test_texts_that_spreadsheets_compute_get_an_apostrophe(text):
    assert cell_text(text) == f"'{text}"
    assert text_of_cell(f"'{text}") == text
    ((cell,),) = csv.reader(io.StringIO(as_csv([[text]]), newline=""))
    assert cell == f"'{text}"


@pytest.mark.parametrize("value", [*ORDINARY, "'a", "''", "'-1"])
def test_others_stay_as_they_are(value):
    assert cell_text(value) == value
    assert text_of_cell(value) == value
