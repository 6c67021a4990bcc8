"""What scripts write: a page, tables, and lines of a result file."""

import re

import pandas as pd
import pytest
import typer
from matplotlib.figure import Figure

from fedgraph.reproduce import ResultFile
from fedgraph.simulations.scripts import Page, markdown, run
from fedgraph.support.errors import ExperimentError

TABLES = {
    "all": pd.DataFrame({"seed": [3, 4], "size": [2, 5]}),
    "summary": pd.DataFrame({"what": ["large", "a|b"], "size": [1.23456789, None], "holds": [True, False]}),
    "first": pd.DataFrame({"what": ["large"], "size": [9], "seeds": ["3"]}),
}


@pytest.fixture
def page():
    return Page("Sizes", "First {all}\n\n![picture](drawn.png)\n\n{summary}", TABLES, (3, 4), {"drawn": Figure()})


def test_a_table_as_markdown_is_rounded_with_numbers_to_the_right():
    assert markdown(TABLES["summary"]).splitlines() == [
        "| what | size | holds |",
        "| --- | ---: | --- |",
        "| large | 1.235 | yes |",
        "| a\\|b | - | no |",
    ]


def test_a_page_is_written_with_its_tables_and_pictures(page, tmp_path, capsys):
    page.write(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "page.md", "drawn.png", "all.csv", "summary.csv", "first.csv"
    }  # fmt: skip
    assert (tmp_path / "out" / "summary.csv").read_text().splitlines()[1] == "large,1.23456789,True"
    text = (tmp_path / "out" / "page.md").read_text()
    assert text.startswith("# Sizes\n\nFirst | seed | size |")
    assert "| large | 1.235 | yes |" in text
    assert re.search(r"Seeds: 3, 4\. Made with commit [\w-]+: `python .+`", text)
    assert "page.md" in capsys.readouterr().out


def test_numbers_go_to_a_result_file(page, tmp_path):
    file = tmp_path / "kept" / "sizes.csv"
    page.write(tmp_path / "out", file)
    page.write(tmp_path / "out", file)
    kept = ResultFile(file)
    assert kept.spread("", "all", "size").values == {3: 2.0, 4: 5.0}
    assert (kept.spread("large", "summary", "size").mean, kept.num_seeds("large", "summary", "size")) == (1.23456789, 2)
    assert kept.spread("a|b", "summary", "size") is None
    assert kept.num_seeds("large", "first", "size") == 1, "the seeds that the line names, and not all"
    assert len(kept.lines) == 4, "once each"


def test_an_error_that_is_raised_on_purpose_is_one_line(capsys):
    def fails():
        raise ExperimentError("there is no network 'azia'")

    with pytest.raises(SystemExit) as ended:
        run(fails)
    assert ended.value.code == 1
    assert capsys.readouterr().err == "Error: there is no network 'azia'\n"
    app = typer.Typer()
    app.command()(lambda: None)
    with pytest.raises(SystemExit) as ended:
        run(lambda: app([]))
    assert not ended.value.code
