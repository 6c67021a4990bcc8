import re
import shutil
import subprocess
import sys

import pytest

from fedgraph.reproduce.result_file import read_lines
from fedgraph.simulations import pages
from fedgraph.simulations.pages import REPOSITORY, Results, stale, written_anew
from fedgraph.support.errors import ExperimentError

HEAD = "row,column,metric,seed,value,deviation,seeds,settings,source\n"
GENERATED = re.compile(r"<!-- table .*?<!-- end of table -->", re.DOTALL)


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "simulations" / "toy" / "results"
    folder.mkdir(parents=True)
    (folder / "one-small.csv").write_text(
        HEAD + "A,c,mae,0,1.25,,,,\nA,c,mae,1,1.75,,,,\nB,c,mae,,4,0.5,0 1 2,,page\nB,c,mae,,3.5,,,,published\n"
        "A,d,mae,0,1234.5,,,,\nA: best,c,f1,0,0.5,,,,\n"
    )
    return Results(tmp_path)


def test_the_numbers_of_all_pages_are_those_of_the_result_files():
    told = [
        f"{page.relative_to(REPOSITORY)}: {line}"
        for page, text, again in stale(REPOSITORY)
        for line in pages.differences(text, again)
    ]
    assert not told, "python -m fedgraph.simulations.pages writes them anew:\n" + "\n".join(told)


def test_numbers_of_earlier_commits_are_listed_with_what_they_take():
    files = sorted((REPOSITORY / "simulations").glob("*/results/*.csv"))
    lines = {
        f"{file.parent.parent.name}/{file.stem}": sum(line.source.startswith("page") for line in read_lines(file))
        for file in files
    }
    text = (REPOSITORY / "simulations" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/-]+)` \| (\d+) \| .+ \| .+ \|$", text, flags=re.MULTILINE)
    assert {name: int(count) for name, count in listed} == {name: count for name, count in lines.items() if count}


def test_rows_that_were_measured_with_other_settings_are_named(tmp_path):
    assert list(pages.outdated(REPOSITORY)) == []
    shutil.copytree(REPOSITORY / "simulations" / "graphs", tmp_path / "simulations" / "graphs")
    table = tmp_path / "simulations" / "graphs" / "tables" / "clients.toml"
    written = table.read_text()
    assert 'method = "fedavg"' in written
    table.write_text(written.replace('method = "fedavg"', 'method = "fedprox"', 1))
    (said,) = pages.outdated(tmp_path)
    assert "graphs/results/clients-small.csv: measured with other settings" in said
    assert "'FedAvg' of" in said


def test_pictures_show_the_numbers_of_the_result_files(tmp_path):
    found = list(pages.pictures(REPOSITORY))
    assert found
    assert [picture.path for picture in found if picture.is_stale] == [], (
        "python -m fedgraph.simulations.pages draws them anew"
    )
    shutil.copytree(REPOSITORY / "simulations", tmp_path / "simulations", ignore=shutil.ignore_patterns("*.py*"))
    (picture,) = (each for each in pages.pictures(tmp_path) if each.path.name == "days.png")
    assert not picture.is_stale
    file, row = picture.file.path, picture.rows[0]
    file.write_text(re.sub(rf"^({row},all,[^\n]*,0),[\d.]+", r"\1,9.5", file.read_text(), flags=re.MULTILINE))
    (changed,) = (each for each in pages.pictures(tmp_path) if each.path.name == "days.png")
    assert changed.is_stale
    changed.draw()
    assert not changed.is_stale
    assert changed.path.read_bytes() != (REPOSITORY / "simulations" / "forecasting" / "days.png").read_bytes()


@pytest.mark.parametrize(
    ("file", "row", "message"),
    [("forecasting/days-small", "FedAvgg", "has no row 'FedAvgg'; known: "), ("sfl/table1-small", "SFL", "figure")],
)
def test_a_picture_that_cannot_be_drawn_is_refused(file, row, message, tmp_path):
    with pytest.raises(ExperimentError, match=message):
        pages.Picture(tmp_path / "x.png", Results(REPOSITORY).named(file), (row,)).draw()


def test_every_table_of_measured_numbers_is_written_from_a_result_file():
    number = re.compile(r"\**-?[\d,]*\.?\d+( ± [\d.]+)?( / -?[\d.]+( ± [\d.]+)?)*\**")
    for page in pages.pages(REPOSITORY):
        for line in GENERATED.sub("", page.read_text()).splitlines():
            if line.startswith("|"):
                typed = [cell for cell in line.strip("|").split("|")[1:] if number.fullmatch(cell.strip())]
                assert not typed, f"{page}: {line}: see simulations/pages.py for how to have it written"


def test_a_number_beside_that_of_another_row(results):
    shown = "{A|c|mae:% below B .1} % less, {B|c|mae:% above A .0}, {A|c|mae:less B .2}"
    page = f"<!-- toy/one-small {shown} --><!-- end -->"
    assert "-->62.5 % less, 167, -2.50<!-- end -->" in written_anew(page, results)
    with pytest.raises(ExperimentError, match="no row 'C'"):
        written_anew(page.replace("below B", "below C"), results)


@pytest.mark.parametrize(
    ("page", "begins"),
    [
        ("docs/guides/which-method.md", "## What each method reaches"),
        ("docs/guides/reproduce.md", "## In short"),
        ("docs/methods/f3.md", "## When to use it"),
        ("docs/methods/f3-forecast.md", "## When to use it"),
        ("docs/methods/ipa.md", "## When to use it"),
        ("docs/methods/sfl.md", "## When to use it"),
    ],
)
def test_headline_numbers_are_from_the_files_that_the_results_pages_have_them_from(page, begins):
    text = (REPOSITORY / page).read_text()
    (told,) = re.findall(rf"^{begins}.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert len(re.findall("<!-- end -->", told)) >= 2
    typed = re.sub(r"`[^`]*`", "", pages._NUMBER.sub("", told))
    assert not re.findall(r"\d*\.\d+", typed), "see simulations/pages.py for numbers in a sentence"


def test_a_page_whose_number_is_not_the_measured_one_is_found_and_mended(tmp_path):
    shutil.copytree(REPOSITORY / "simulations", tmp_path / "simulations", ignore=shutil.ignore_patterns("*.py*"))
    text = (REPOSITORY / "docs" / "methods" / "fedngm.md").read_text()
    wrong = re.sub(r"(Global NGM\|births\|birth weight[^>]*-->)[\d.]+", r"\g<1>1.0", text)
    assert wrong != text
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "fedngm.md").write_text(wrong)
    ((page, _, again),) = stale(tmp_path)
    assert page == tmp_path / "docs" / "fedngm.md"
    assert again == text


def test_a_table_is_written_between_its_markers(results):
    page = """Before.

<!-- table toy/one-small
corner = "MAE"
rows = ["A", {row = "B", title = "**B**"}, "A: best"]
columns = [
    {column = "c", title = "ours", show = "{mae:±.2}"},
    {column = "c", title = "paper", show = "{mae:published}", otherwise = ""},
    {column = "d", title = "d (c)", show = "{mae:,.1} ({A|c|mae:.0})", otherwise = "only {B|c|mae:.1}"},
]
-->
| whatever | stood | here |
<!-- end of table -->

After.
"""
    again = written_anew(page, results)
    assert (
        """-->

| MAE | ours | paper | d (c) |
|---|---|---|---|
| A | 1.50 ± 0.35 |  | 1,234.5 (2) |
| **B** | 4.00 ± 0.50 | 3.5 | only 4.0 |
| A: best | - |  | only 4.0 |

<!-- end of table -->

After.
"""
        in again
    )
    assert written_anew(again, results) == again


def test_rows_and_columns_name_each_others_places(results):
    page = """<!-- table toy/one-small
rows = [{row = "best", column = "c", title = "best"}]
columns = [{row = "A: {row}", metric = "f1", title = "F1", show = "{:.2}"}, {title = "MAE", show = "{B||mae:.0}"}]
-->
<!-- end of table -->"""
    assert "| best | 0.50 | 4 |" in written_anew(page, results)


def test_numbers_in_a_sentence(results):
    page = "an error of <!-- toy/one-small\n {A|c|mae:±.2} --><!-- end -->, "
    page += "<!-- toy/one-small {A|c|mae:seed 1 .1} -->9<!-- end -->"
    again = written_anew(page, results)
    assert "-->1.50 ± 0.35<!-- end -->" in again
    assert "-->1.8<!-- end -->" in again
    seeds = "<!-- toy/one-small {B|c|mae:seeds} seeds -->9<!-- end -->"
    assert "-->3 seeds<!-- end -->" in written_anew(seeds, results)
    verdict = "<!-- toy/one-small {B|c|mae:yes} -->9<!-- end -->"
    assert "-->yes<!-- end -->" in written_anew(verdict, results)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- toy/one-small {A|c|mae:.1} -->1", "lacks its other half"),
        ("1<!-- end -->", "lacks its other half"),
        ("<!-- table toy/one-small\ncolumns = []\n-->\n", "lacks its other half"),
        ("<!-- toy/one-small {A|c|rmse:.1} -->1<!-- end -->", "has no metric 'rmse'; known: mae; f1"),
        ("<!-- toy/one-small {B|d|mae:.1} -->1<!-- end -->", "has no number for 'B|d|mae'"),
        ("<!-- toy/one-small {A|mae:.1} -->1<!-- end -->", "does not say row, column and metric"),
        ("<!-- toy/one-small {A|c|mae} -->1<!-- end -->", "a number is"),
        ("<!-- toy/one-small {A|c|mae:.x} -->1<!-- end -->", "is no number with its format"),
        ("<!-- toy/two-small {A|c|mae:.1} -->1<!-- end -->", "cannot read the result file"),
        ("<!-- table toy/one-small\nrow = 1\n-->\n<!-- end of table -->", "has no key 'row'"),
    ],
)
def test_wrong_markers_are_named(results, page, message):
    with pytest.raises(ExperimentError, match=re.escape(message)):
        written_anew(page, results)


@pytest.mark.process
def test_the_command_has_an_exit_status():
    done = subprocess.run(
        [sys.executable, "-m", "fedgraph.simulations.pages", "--check"], cwd=REPOSITORY, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
