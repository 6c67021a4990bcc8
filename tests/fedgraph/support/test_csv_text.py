import pytest

from fedgraph.support.csv_text import detect_separator, with_decimal_point


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
