import io

from rich.console import Console

from fedgraph.reproduce.numbers import NumberTable

TABLE = NumberTable(
    "numbers",
    "Some [numbers]",
    ("what", "value", "holds"),
    (("a|b", 1.23456789, True), ("c", 12, False), ("[d]", None, None)),
)


def test_csv_has_every_digit():
    assert TABLE.csv().splitlines() == ["what,value,holds", "a|b,1.23456789,True", "c,12,False", "[d],,"]


def test_markdown_is_rounded_with_numbers_to_the_right():
    assert TABLE.markdown().splitlines() == [
        "| what | value | holds |",
        "| --- | ---: | --- |",
        "| a\\|b | 1.235 | yes |",
        "| c | 12 | no |",
        "| [d] | - | - |",
    ]


def test_brackets_are_no_colours_on_the_terminal():
    console = Console(file=io.StringIO(), width=80)
    console.print(TABLE.for_terminal())
    shown = console.file.getvalue()
    for text in ("Some [numbers]", "[d]", "1.235", "yes"):
        assert text in shown


def test_numbers_are_whole_on_a_narrow_terminal_beside_the_names_of_their_rows():
    wide = NumberTable("wide", "Wide", ("network", "known", "mean", "worst"), (("asia", "half", 1.234567, 22.345678),))
    console = Console(file=io.StringIO(), width=30)
    console.print(wide.for_terminal())
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= 30
    assert shown.count("│ asia    │ half  │") == 2
    assert "1.235" in shown
    assert "22.35" in shown
