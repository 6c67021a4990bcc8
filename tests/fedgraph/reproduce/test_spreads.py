"""Rows compared with one of them, seed by seed."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fedgraph.reproduce.cells import Cell
from fedgraph.reproduce.csv_files import paired_csv
from fedgraph.reproduce.result_file import ResultFile
from fedgraph.reproduce.results import Outcome, Results
from fedgraph.reproduce.table import PublishedTable
from fedgraph.reproduce.table_files import load_table
from fedgraph.reproduce.text import markdown, terminal_tables
from fedgraph.simulations.pages import Results as PageResults
from fedgraph.simulations.pages import written_anew
from fedgraph.support.errors import ExperimentError

OURS, OTHER = {0: 0.5, 1: 0.7, 2: 0.4, 3: 0.9}, {0: 0.4, 1: 0.4, 2: 0.5, 4: 0.1}


@pytest.fixture
def results(table, tmp_path):
    """Two rows with accuracies by seed, that of SFL the reference."""

    def results(**changes):
        content = table | {"table": table["table"] | {"compare": "SFL", **changes}}
        outcomes = []
        for row, reached in (("SFL", OURS), ("FedAvg", OTHER)):
            for seed, value in reached.items():
                summary = {
                    "data": "Toy",
                    "clients": 2,
                    "seconds": 1.0,
                    "metrics": {"test": {"accuracy": {"mean": value, "worst5": 0.0}}},
                }
                cell = Cell(row, "digits", seed, None, tmp_path / f"{row}-{seed}")
                outcomes.append(Outcome(cell, "finished", "", summary))
        parsed = PublishedTable.model_validate(content)
        return Results("tiny", parsed, "small", parsed.profiles["small"], (0, 1, 2, 3, 4), (), tuple(outcomes))

    return results


def between(results):
    column = results.columns[0]
    metric = results.table.metrics_of(column)[0]
    return [results.difference(row, column, metric) for row in results.table.rows]


def test_differences_are_of_the_seeds_that_both_have_with_the_interval_of_scipy(results):
    fedavg, sfl, published = between(results())
    assert sfl is published is None
    assert fedavg.values == pytest.approx({0: 10.0, 1: 30.0, 2: -10.0})
    assert fedavg.above == 2
    every = list(fedavg.values.values())
    low, high = stats.t.interval(0.95, 2, np.mean(every), stats.sem(every))
    assert (fedavg.mean - fedavg.margin, fedavg.mean + fedavg.margin) == pytest.approx((low, high))


def test_splits_of_one_data_set_widen_the_interval(results):
    alone, split = between(results())[0], between(results(overlap=2 / 7))[0]
    assert split.margin / alone.margin == pytest.approx(((1 / 3 + 2 / 7) / (1 / 3)) ** 0.5)
    assert "widened" in markdown(results(overlap=2 / 7))
    assert "widened" not in markdown(results())


def test_they_are_shown_below_the_table_and_written(results):
    found = results()
    text = markdown(found)
    shown = str(between(found)[0])
    assert shown == "+10.000 [-39.683, +59.683] 2/3"
    assert f"| FedAvg | {shown} |" in text
    assert len(list(terminal_tables(Console(), found, ["SFL", "FedAvg"], ["digits"]))) == 2
    assert len(list(terminal_tables(Console(), found, ["SFL"], ["digits"]))) == 1
    first = next(iter(csv.DictReader(io.StringIO(paired_csv(found)))))
    assert (first["row"], first["reference"], first["above"], first["seeds"]) == ("FedAvg", "SFL", "2", "3")
    assert float(first["mean"]) == pytest.approx(10.0)


def test_pages_have_them_from_result_files(results, table, write, tmp_path):
    for folder in ("tables", "results"):
        (tmp_path / "toy" / folder).mkdir(parents=True)
    table["table"]["compare"] = "SFL"
    write(table, tmp_path / "toy" / "tables" / "tiny.toml")
    path = tmp_path / "toy" / "results" / "tiny-small.csv"
    lines = [f"SFL,digits,mean,{seed},{100 * value},,,," for seed, value in OURS.items()]
    lines += [f"FedAvg,digits,mean,{seed},{100 * value},,,," for seed, value in OTHER.items()]
    path.write_text("row,column,metric,seed,value,deviation,seeds,settings,source\n" + "\n".join(lines) + "\n")
    found = ResultFile(path)
    assert str(found.compared("FedAvg", "digits", "mean")) == str(between(results())[0])
    assert found.compared("SFL", "digits", "worst") is None
    known = PageResults(tmp_path)
    known.named = lambda name: found
    page = "<!-- toy/tiny-small {FedAvg|digits|mean:compared} -->1<!-- end -->"
    assert str(between(results())[0]) in written_anew(page, known)


def test_without_a_reference_there_is_nothing_to_show(results):
    found = results(compare="")
    assert between(found) == [None] * 3
    assert " less " not in markdown(found)


def test_a_reference_must_be_a_row_that_is_run(table, write):
    table["table"]["compare"] = "Oracle"
    with pytest.raises(
        ExperimentError, match="compare must name a row with a method, got 'Oracle'; known: FedAvg, SFL"
    ):
        load_table(str(write(table)))
