import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgraph.commands import cli
from fedgraph.reproduce import command


def call(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])


@pytest.fixture
def file(table, write):
    return write(table)


def test_without_a_name_the_tables_are_listed():
    result = call()
    assert result.exit_code == 0
    for text in ("sfl-table1", "sfl-fig4", "metr-la"):
        assert text in result.output


def test_a_table_is_run_written_and_shown(file):
    result = call(file, "--out", "out")
    assert result.exit_code == 0, result.output
    folder = Path("out/tiny-small")
    assert {path.name for path in folder.iterdir()} == {"table.md", "table.csv", "summary.csv", "figure.png"}
    assert len([path for path in Path("out/cells").iterdir() if path.name != ".locks"]) == 4
    for text in ("4/4", "SFL", "12.50", "as it is", "out/tiny-small/table.md", "out/tiny-small/figure.png"):
        assert text in result.output
    again = call(file, "--out", "out")
    assert "4/4" not in again.output
    assert "12.50" in again.output


def test_quiet_leaves_only_the_results(file):
    result = call(file, "--out", "out", "--rows", "SFL", "--seeds", "0", "--quiet")
    assert result.exit_code == 0, result.output
    assert "1/1" not in result.output
    assert "out/tiny-small/table.md" in result.output
    assert len([path for path in Path("out/cells").iterdir() if path.name != ".locks"]) == 1


def test_chosen_rows_seeds_and_columns_are_run_and_the_files_have_all(file):
    result = call(file, "--out", "out", "--rows", "sfl", "--seeds", "1", "--columns", "digits")
    assert result.exit_code == 0, result.output
    assert "FedAvg" not in result.output
    (cell,) = [path for path in Path("out/cells").iterdir() if path.name != ".locks"]
    assert cell.name.startswith("digits-sfl-seed1-")
    assert "FedAvg" in Path("out/tiny-small/table.md").read_text()
    assert "not run for seed 0" in Path("out/tiny-small/table.md").read_text()
    assert call(file, "--out", "out", "--rows", "FedAvg", "--seeds", "0").exit_code == 0
    assert "2 of 4 runs are finished" in Path("out/tiny-small/table.md").read_text()


def test_another_seed_than_the_tables(file):
    assert call(file, "--out", "out", "--rows", "SFL", "--seeds", "7").exit_code == 0
    assert "Seeds: 0, 1, 7; 1 of 6" in Path("out/tiny-small/table.md").read_text()


def test_overrides_have_a_table_of_their_own(file):
    assert call(file, "--out", "out", "--rows", "SFL", "--seeds", "0", "--set", "train.workers=1").exit_code == 0
    assert call(file, "--out", "out", "--rows", "SFL", "--seeds", "0", "--set", "sfl.hops=2").exit_code == 0
    tables = sorted(path.name for path in Path("out").iterdir() if path.name != "cells")
    assert len(tables) == 2
    assert tables[0] == "tiny-small"
    assert "Overridden on the command line: `sfl.hops=2`" in (Path("out") / tables[1] / "table.md").read_text()
    assert "1 of 4 runs" in (Path("out") / tables[0] / "table.md").read_text()


def test_missing_data_is_no_failure_but_anything_else_is(table, write):
    table["rows"][0]["set"] = ['data={set = "pems04"}', 'graph.source="none"']
    result = call(write(table), "--out", "out", "--seeds", "0")
    assert result.exit_code == 0, result.output
    assert "no data: digits (FedAvg, seed 0): no files of PEMS04" in result.output
    table["rows"][0]["set"] = ["experiment.min-clients=7"]
    result = call(write(table), "--out", "out", "--seeds", "0")
    assert result.exit_code == 1
    assert "failed: digits (FedAvg, seed 0): only 6" in result.output
    assert "only 6 of at least 7 clients" in Path("out/tiny-small/table.md").read_text()
    assert call(write(table), "--out", "out", "--seeds", "0", "--rows", "SFL").exit_code == 0


def test_the_state_is_listed_and_nothing_is_run(file):
    assert call(file, "--out", "out", "--rows", "SFL", "--seeds", "0").exit_code == 0
    shutil.rmtree("out/tiny-small")
    result = call(file, "--out", "out", "--list")
    assert result.exit_code == 0
    lines = {line.split("│")[1].strip(): line for line in result.output.splitlines() if "│" in line}
    assert "1 of 2" in lines["SFL"]
    assert "0 of 2" in lines["FedAvg"]
    assert "published" in lines["Oracle"]
    assert not Path("out/tiny-small").exists()


def test_interrupted(file, monkeypatch):
    def interrupt(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_cells", interrupt)
    result = call(file, "--out", "out")
    assert result.exit_code == 130
    assert "The same command goes on from here" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--profile", "full"), "tiny has no profile 'full'; known: small"),
        (("--rows", "SFL,FedAvgg"), "tiny has no row 'FedAvgg'; known: FedAvg, SFL, Oracle"),
        (("--columns", "x"), "tiny has no column 'x'; known: digits"),
        (("--seeds", "a"), "--seeds takes whole numbers with commas between them; got 'a'"),
        (("--set", "rounds=3"), "override 'rounds=3' is not of the form"),
        (("--out", "small.toml"), "--out: cannot write to small.toml"),
    ],
)
def test_what_cannot_be_done_is_one_message(file, arguments, message):
    result = call(file, "--out", "out", *arguments)
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
    assert "Traceback" not in result.output
    assert not Path("out").exists()


def test_a_strategy_beside_the_table_is_found(table, write, tmp_path):
    (tmp_path / "mine_beside_table.py").write_text(
        "from fedgraph.algorithms.bounds import LocalOnly\n\n\nclass Mine(LocalOnly):\n    pass\n"
    )
    table["rows"] = [{"label": "Mine", "method": "mine_beside_table:Mine"}]
    result = call(write(table), "--out", "out", "--seeds", "0")
    assert result.exit_code == 0, result.output
    (cell,) = [path for path in Path("out/cells").iterdir() if path.name != ".locks"]
    assert json.loads((cell / "summary.json").read_text())["method"] == "Mine"
