import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from fedgraph.reproduce.spreads import Spread
from fedgraph.reproduce.text import command, markdown, number, printed, terminal_tables


def shown(results, rows, columns, width=160):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for table in terminal_tables(console, results, rows, columns):
        console.print(table)
    return console.file.getvalue()


def cells_of(line):
    return [entry.strip() for entry in line.strip("|").split("|")]


@pytest.fixture
def finished(table, plan, execute, results_of):
    """Both seeds of SFL and one of FedAvg are run."""
    execute([cell for cell in plan(table) if cell.row == "SFL" or cell.seed == 0])
    return results_of(table)


def test_numbers():
    assert number(Spread(4.8804, 0.01249, {})) == "4.880 ± 0.012"
    assert number(Spread(54.254, None, {}), decimals=2) == "54.25"
    assert number(None) == "-"
    assert (printed(9.4), printed((18.55, 21.7)), printed(None)) == ("9.40", "18.55 ± 21.70", "-")
    assert printed(148, decimals=0) == "148"


def test_markdown_shows_ours_beside_the_published(finished):
    text = markdown(finished)
    column = finished.columns[0]
    lines = {cells_of(line)[0]: cells_of(line) for line in text.splitlines() if line.startswith("|")}
    assert lines["method"] == ["method", "mean", "published", "worst, 1 client", "published", "what differs"]
    fedavg, sfl = finished.table.rows[:2]
    mean, _worst = finished.table.metrics_of(column)
    ours = finished.ours(sfl, column, mean)
    best = "**" if finished.best(column, mean) == "SFL" else ""
    assert lines["SFL"][1] == f"{best}{ours.mean:.2f} ± {ours.deviation:.2f}{best}"
    assert lines["FedAvg"][1].strip("*") == f"{finished.ours(fedavg, column, mean).mean:.2f}"
    assert (lines["FedAvg"][2], lines["FedAvg"][4]) == ("12.50", "3.00 ± 1.25")
    assert lines["FedAvg"][5].startswith("not run for seed 1; one round; digits")
    assert lines["SFL"][5].endswith("as it is")
    assert lines["Oracle (published only)"][1:] == ["-", "99.00", "-", "-", ""]


def test_markdown_links_the_paper_and_the_picture_that_are_there(finished):
    assert "figure.png" in markdown(finished)
    assert "figure.png" not in markdown(finished, has_figure=False)
    about = finished.table.table.model_copy(update={"paper": "https://example.org"})
    rows = tuple(row.model_copy(update={"published": {}}) for row in finished.table.rows)
    of_paper = replace(finished, table=finished.table.model_copy(update={"table": about}))
    assert "Published at <https://example.org>." in markdown(of_paper)
    beside = replace(finished, table=finished.table.model_copy(update={"table": about, "rows": rows}))
    assert "The method is from <https://example.org>, this table is not." in markdown(beside)


def test_markdown_says_what_the_numbers_are(finished):
    text = markdown(finished)
    assert "Profile `small`: one round. Seeds: 0, 1; 3 of 4 runs are finished." in text
    assert f"Data: {finished.descriptions(finished.columns[0])[0]}." in text
    assert "`fedgraph reproduce tiny --profile small`" in text
    seconds = sum(outcome.summary["seconds"] for outcome in finished.outcomes if outcome.summary)
    assert f"took {seconds:,.0f} s" in text


def test_the_command_names_what_changes_numbers(finished):
    assert command(finished) == "fedgraph reproduce tiny --profile small"
    other = replace(finished, seeds=(0,), overrides=("sfl={alpha = 1}",))
    assert command(other) == "fedgraph reproduce tiny --profile small --seeds 0 --set 'sfl={alpha = 1}'"


def test_the_terminal_shows_the_chosen_rows_and_columns(finished):
    text = shown(finished, ["SFL", "Oracle"], ["digits"])
    assert "Digits (one round; digits (scikit-learn" in text
    assert "FedAvg" not in text
    assert "as it is" in text
    assert "99.00" in text
    assert shown(finished, ["SFL"], []) == ""
    assert shown(finished, ["a row of another column"], ["digits"]) == ""


@pytest.mark.parametrize("width", [60, 80])
def test_numbers_and_names_are_whole_on_a_narrow_terminal(table, finished, results_of, width):
    table["rows"][1] |= {"label": "SFL over a permuted road graph", "differs": "half of the rounds of the others"}
    table["rows"][1].pop("published", None)
    results = results_of(table)
    wide, narrow = (
        shown(results, ["SFL over a permuted road graph", "FedAvg"], ["digits"], each) for each in (200, width)
    )
    assert max(map(len, narrow.splitlines())) <= width
    numbers = re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?", wide)
    assert len(numbers) >= 4
    assert [number for number in numbers if number not in narrow] == []
    for word in ("SFL over a permuted road", "FedAvg", "half of the rounds"):
        assert word in narrow, word
    # Names stand beside every part.
    assert narrow.count("FedAvg") == narrow.count("method")
    assert narrow.count("what differs") == 1


def test_brackets_and_bars_in_words_are_harmless(table, results_of):
    table["rows"][1] |= {"method": "sfll", "differs": "[train] a|b"}
    results = results_of(table, seeds=[0])
    assert "failed: [experiment] method 'sfll' is not a built-in; " in markdown(results)
    assert "[train] a\\|b" in markdown(results)
    text = shown(results, ["SFL"], ["digits"])
    assert "failed; [train] a|b" in text


def test_a_column_of_which_nothing_is_published_has_no_place_for_it(table, results_of):
    for row in table["rows"]:
        row.pop("published", None)
    table["rows"].pop()
    results = results_of(table, seeds=[0])
    assert "| method | mean | worst | what differs |" in markdown(results)
    assert "| --- | ---: | ---: | --- |" in markdown(results)
    assert "published" not in shown(results, ["SFL"], ["digits"])


def test_the_terminal_names_a_value_that_is_missing_in_full(table, finished, results_of):
    table["table"]["metrics"] = [{"title": "rounds", "value": "test/loss:rounds"}]
    table["rows"][0]["published"] = table["rows"][2]["published"] = {}
    assert "its runs have no test/loss:rounds" in shown(results_of(table), ["SFL"], ["digits"])


def test_published_values_of_other_data_name_them(table, results_of, finished):
    assert "| published |" in markdown(finished)
    table["columns"][0]["published-data"] = "CIFAR-10"
    results = results_of(table)
    assert "| mean | published, CIFAR-10 | worst, 1 client | published, CIFAR-10 |" in markdown(results)
    assert "Published values are of CIFAR-10, not of these data." in markdown(results)
    told = shown(results, ["SFL"], ["digits"])
    assert "published," in told
    assert "CIFAR-10" in told
    table["columns"][0]["published-data"] = "digits"
    assert "| mean | published | worst, 1 client | published |" in markdown(results_of(table))
    assert "digits" not in shown(results_of(table), ["SFL"], ["digits"]).split("what differs")[1]
