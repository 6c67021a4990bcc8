import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgraph.commands import cli
from fedgraph.reproduce.result_file import ResultFile, ResultLine, declared, merged, read_lines
from fedgraph.reproduce.table_files import load_table
from fedgraph.support.errors import ExperimentError

HEAD = "row,column,metric,seed,value,deviation,seeds,settings,source\n"


def call(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])


@pytest.fixture
def file(tmp_path):
    """A result file of given lines."""

    def file(*lines, name="table1-small.csv"):
        path = tmp_path / "results" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(HEAD + "".join(f"{line}\n" for line in lines))
        return path

    return file


def test_what_was_measured_is_exported_seed_by_seed_and_added_to(table, write):
    path = write(table)
    result = call(path, "--out", "out", "--seeds", "0", "--results", "kept")
    assert result.exit_code == 0, result.output
    assert "kept/tiny-small.csv" in result.output
    first = read_lines(Path("kept/tiny-small.csv"))
    assert {(line.row, line.seed) for line in first} == {("FedAvg", "0"), ("SFL", "0")}
    # Seed 1 comes from another machine, where nobody has the runs of seed 0.
    assert call(path, "--out", "elsewhere", "--seeds", "1", "--results", "kept").exit_code == 0
    both = read_lines(Path("kept/tiny-small.csv"))
    assert {(line.row, line.seed) for line in both} == {(row, seed) for row in ("FedAvg", "SFL") for seed in "01"}
    assert [line for line in both if line.seed == "0"] == first
    shown = list(csv.DictReader(Path("elsewhere/tiny-small/summary.csv").read_text().splitlines()))
    ours = next(float(line["mean"]) for line in shown if (line["row"], line["metric"]) == ("SFL", "mean"))
    kept = ResultFile(Path("kept/tiny-small.csv")).spread("SFL", "digits", "mean")
    assert kept.values[1] == pytest.approx(ours)
    assert kept.mean == pytest.approx(sum(kept.values.values()) / 2)
    # What else the folder holds is left alone.
    assert call(path, "--out", "out", "--rows", "SFL", "--seeds", "0", "--results", "some").exit_code == 0
    assert {(line.row, line.seed) for line in read_lines(Path("some/tiny-small.csv"))} == {("SFL", "0")}


def test_overrides_that_no_row_names_are_refused_before_anything_is_run(table, write):
    result = call(write(table), "--out", "out", "--results", "kept", "--set", "sfl.hops=2")
    assert result.exit_code == 1
    assert "add a row with this setting to the table" in result.output
    assert not Path("out").exists()
    assert not Path("kept").exists()


def line(row, seed, value, settings="a", **more):
    return ResultLine(row, "c", "m", seed, str(value), settings=settings, **more)


def test_merging_keeps_what_was_not_measured_anew():
    old = [line("A", "0", 1), line("A", "1", 2), line("B", "0", 3), line("C", "", 4, deviation="0.5", seeds="0 1")]
    new = [line("A", "1", 20), line("A", "2", 30), line("C", "0", 40)]
    found = [(each.row, each.seed, each.value) for each in merged(old, new)]
    assert found == [("A", "0", "1"), ("A", "1", "20"), ("A", "2", "30"), ("B", "0", "3"), ("C", "0", "40")]


def test_seeds_of_other_settings_are_not_averaged_with_new_ones():
    assert merged([line("A", "0", 1, "old")], [line("A", "1", 2, "new")]) == [line("A", "1", 2, "new")]


def test_settings_have_another_name_once_a_row_or_its_experiment_says_something_else(table, results_of):
    def name(content):
        results = results_of(content)
        found = declared(results.table, results.profile, results.table.rows[1], results.columns[0], Path.cwd())
        return next(iter(found.values()))

    usual = name(table)
    table["rows"][1]["differs"] = "said otherwise"
    table["table"]["set"] = ["train.threads=2", "fedper.personal-layers=1"]
    small = Path("small.toml").read_text()
    Path("small.toml").write_text(f"{small}\n[ditto]\nlambda-personal = 0.5\n")
    assert name(table) == usual, "what is said, speed, and tables of other methods change no result"
    Path("small.toml").write_text(small)
    table["rows"][1]["set"] = ["sfl.hops=2"]
    other = name(table)
    assert other != usual
    table["rows"][1]["after"] = "FedAvg"
    built_on = name(table)
    assert built_on != other
    table["rows"][0]["set"] = ["fedavg.fraction-train=0.5"]
    assert name(table) != built_on, "the run that it builds on is another"
    table["rows"][1].pop("after")
    assert name(table) == other
    Path("small.toml").write_text(small.replace("rounds = 1", "rounds = 2"))
    assert name(table) not in (usual, other)


def test_mean_and_deviation_from_seeds_and_as_they_were_written_down(file):
    path = file("A,c,m,0,1,,,,", "A,c,m,1,3,,,,", "B,c,m,,5.5,0.25,0 1 2,,page", "D,c,m,,7,,0,,page")
    results = ResultFile(path)
    assert results.spread("A", "c", "m")[:2] == (2.0, pytest.approx(2**0.5))
    assert results.spread("B", "c", "m")[:2] == (5.5, 0.25)
    assert results.spread("D", "c", "m")[:2] == (7.0, None)
    assert results.spread("A", "c", "else") is None
    assert [results.num_seeds(row, "c", "m") for row in "ABD"] == [2, 3, 1]
    assert results.rows == ["A", "B", "D"]


def test_published_values_are_those_of_the_table_or_of_lines_of_their_own(file):
    assert ResultFile(file("A,c,m,,5,0.5,,,published")).published("A", "c", "m") == (5.0, 0.5)
    shipped = load_table("sfl-table1")[2].parent.parent / "results" / "table1-small.csv"
    assert ResultFile(shipped).published("SFL", "metr-la", "MAE") == 5.22
    assert ResultFile(shipped).published("Ditto", "metr-la", "MAE") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "is not a result file"),
        (HEAD + "A,c,m,0,1\n", "line 2: expected 9 entries, got 5"),
        (HEAD + "A,c,m,0,nan,,,,\n", "must be numbers"),
        (HEAD + "A,c,m,x,1,,,,\n", "a seed must be a whole number"),
    ],
)
def test_a_file_that_is_no_result_file_is_refused(tmp_path, text, message):
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises(ExperimentError, match=message):
        read_lines(path)
