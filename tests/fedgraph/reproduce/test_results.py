import csv
import io
import json

import numpy as np
import pytest

from fedgraph.reproduce.cells import Cell
from fedgraph.reproduce.csv_files import long_csv, summary_csv
from fedgraph.reproduce.results import Outcome, Results, is_same_data
from fedgraph.reproduce.table import PublishedTable
from fedgraph.reproduce.text import markdown


def summary(mean, worst=0.0, **more):
    return {
        "data": "Toy, 3 of 9 clients: not comparable",
        "seconds": 1.5,
        "clients": 3,
        "rounds": 1,
        "bytes_down": 2_000_000,
        "bytes_up": 1_000_000,
        "metrics": {"test": {"accuracy": {"mean": mean, "std": 0.1, "best5": None, "worst5": worst}}},
        **more,
    }


@pytest.fixture
def made(table, tmp_path):
    """Results from summaries by (row, seed); what is not given was not run."""

    def made(summaries, states=None, **changes):
        content = PublishedTable.model_validate(table | changes)
        outcomes = []
        for row in ("FedAvg", "SFL"):
            for seed in (0, 1, 2):
                cell = Cell(row, "digits", seed, None, tmp_path / f"{row}-{seed}")
                found = summaries.get((row, seed))
                state, reason = (states or {}).get((row, seed), ("not run", ""))
                outcomes.append(Outcome(cell, "finished", "", found) if found else Outcome(cell, state, reason))
        return Results("tiny", content, "small", content.profiles["small"], (0, 1, 2), (), tuple(outcomes))

    return made


def parts(results, row=0):
    column = results.columns[0]
    return results.table.rows[row], column, results.table.metrics_of(column)


def test_mean_and_sample_deviation_over_seeds_in_the_unit_of_the_paper(made):
    results = made({("FedAvg", 0): summary(0.2), ("FedAvg", 1): summary(0.5), ("FedAvg", 2): summary(0.6)})
    row, column, (mean, worst) = parts(results)
    ours = results.ours(row, column, mean)
    assert ours.values == {0: 20.0, 1: 50.0, 2: 60.0}
    assert ours.mean == pytest.approx(130 / 3)
    assert ours.deviation == pytest.approx(np.std([20, 50, 60], ddof=1))
    assert results.ours(row, column, worst).mean == 0


@pytest.mark.parametrize(
    ("ours", "same"),
    [
        ("CIFAR-10 (60,000 images 32x32, 103 of them approximate), 100 clients, 2 shards each", True),
        ("CIFAR-100 (60,000 images 32x32), 20 clients", False),
        ("CIFAR-10 (60,000 images 32x32, 2,500 of 50,000 training images), 50 clients", False),
        ("Fashion-MNIST (70,000 images 28x28), 50 clients", False),
    ],
)
def test_data_are_the_published_ones_where_a_run_says_so_and_had_all_of_them(ours, same):
    assert is_same_data("CIFAR-10", ours) == same
    assert is_same_data("MNIST", "Fashion-MNIST (70,000 images 28x28)") is False
    assert is_same_data("METR-LA, 207 sensors", "METR-LA, 207 sensors, 34,272 five-minute steps")
    week = "METR-LA, 207 sensors, 2,016 five-minute steps: not comparable with published tables over all time steps"
    assert not is_same_data("METR-LA, 207 sensors", week)
    assert not is_same_data("METR-LA, 207 sensors", "METR-LA, 29 of 207 sensors, 34,272 five-minute steps")


def test_what_is_not_known_to_be_the_published_data_is_taken_for_other(made, table):
    table["columns"][0]["published-data"] = "Toy"
    nothing, something = made({}), made({("FedAvg", 0): summary(0.5)})
    assert nothing.published_heading(nothing.columns[0]) == "published, Toy"
    assert something.published_heading(something.columns[0]) == "published, Toy", "3 of 9 clients"
    whole = made({("FedAvg", 0): {**summary(0.5), "data": "Toy, 9 clients"}})
    assert whole.published_heading(whole.columns[0]) == "published"


def test_few_clients_and_bytes_over_nodes_are_named_in_headings(made, table):
    table["table"]["metrics"].append({"title": "MB", "value": "run/bytes", "factor": 1e-6})
    table["rows"][0]["published"], table["rows"][2]["published"] = {}, {}
    results = made({("FedAvg", 0): summary(0.5, clients=50, nodes=2)})
    column = results.columns[0]
    headings = [results.heading(column, metric) for metric in results.table.metrics_of(column)]
    assert headings == ["mean", "worst, 2 clients", "MB, 2 nodes in all"]


def test_one_seed_has_no_deviation_and_none_no_value(made):
    results = made({("FedAvg", 1): summary(0.5)})
    row, column, (mean, _) = parts(results)
    assert results.ours(row, column, mean)[:2] == (50.0, None)
    assert results.ours(results.table.rows[1], column, mean) is None


def test_published_values_stand_beside_and_change_nothing(made, table):
    summaries = {("FedAvg", 0): summary(0.5)}
    results = made(summaries)
    row, column, (mean, worst) = parts(results)
    assert results.published(row, column, mean) == 12.5
    assert results.published(row, column, worst) == (3.0, 1.25)
    assert results.published(results.table.rows[1], column, mean) is None
    assert results.published(results.table.rows[2], column, worst) is None
    ours = results.ours(row, column, mean)
    table["rows"][0]["published"]["digits"] = [99.0, 99.0]
    assert made(summaries).ours(row, column, mean) == ours


def test_other_statistics_and_groups(made, table):
    table["table"]["metrics"] = [
        {"title": "std", "value": "test/accuracy:std"},
        {"title": "cold", "value": "test/accuracy:worst5@cold"},
        {"title": "best", "value": "test/accuracy:best5"},
        {"title": "other", "value": "validation/accuracy"},
    ]
    table["rows"][0]["published"], table["rows"][2]["published"] = {}, {}
    groups = {"test": {"cold": {"accuracy": {"mean": 0.1, "worst5": 0.05}}}}
    results = made({("FedAvg", 0): summary(0.5, per_group=groups)})
    row, column, metrics = parts(results)
    values = [results.ours(row, column, metric) for metric in metrics]
    assert [value and value.mean for value in values] == [0.1, 0.05, None, None]


def test_rows_and_columns_of_one_client_and_of_one_of_several_models(made, table):
    table["table"]["metrics"] = [{"title": "error", "value": "test/weight-mae", "factor": 1000}]
    for row in table["rows"]:
        row.pop("published", None)
    table["columns"][0]["client"] = "south"
    table["rows"][1] |= {"client": "north", "suffix": "-local"}
    values = {"weight-mae": {"north": 1.0, "south": 2.0}, "weight-mae-local": {"north": 3.0, "south": None}}
    found = summary(0.5, per_client={"test": values})
    results = made({(row, seed): found for row in ("FedAvg", "SFL") for seed in (0, 1, 2)})
    for number, value in ((0, 2000), (1, 3000)):
        row, column, (error,) = parts(results, number)
        assert results.ours(row, column, error).values == {0: value, 1: value, 2: value}
    lines = list(csv.DictReader(io.StringIO(summary_csv(results))))
    assert [line["value"] for line in lines] == ["test/weight-mae of south", "test/weight-mae-local of north"]
    # Six runs, each of which counts once.
    assert "took 9 s in total" in markdown(results)
    table["rows"][1]["client"] = "south"
    row, column, (error,) = parts(results := made({("SFL", seed): found for seed in (0, 1, 2)}), 1)
    assert results.ours(row, column, error) is None
    assert results.trouble(row, column) == "its runs have no test/weight-mae-local of south"


def test_rounds_to_a_target(made, table):
    table["table"]["metrics"] = [
        {"title": "all", "value": "test/accuracy:rounds"},
        {"title": "first", "value": "test/accuracy:first-rounds"},
    ]
    table["rows"][0]["published"], table["rows"][2]["published"] = {}, {}
    reached = {
        0: {"target": 0.9, "mean": 20, "first": 10},
        1: {"target": 0.9, "mean": None, "first": 14},
        2: {"target": 0.9, "mean": None, "first": 12},
    }
    summaries = {
        ("FedAvg", seed): summary(0.5, rounds_to_target={"test/accuracy": found}) for seed, found in reached.items()
    }
    results = made({**summaries, ("SFL", 0): summary(0.5, rounds_to_target={"test/accuracy": reached[0]})})
    row, column, (mean, first) = parts(results)
    assert (results.ours(row, column, mean).mean, results.ours(row, column, first).mean) == (20, 12)
    assert results.trouble(row, column) == "its runs have no test/accuracy:rounds with seed 1, 2"
    assert results.best(column, first) == "SFL", "fewer rounds are better"
    lines = {line.split(" | ")[0]: line for line in markdown(results).splitlines()}
    assert " | 20 | 12.0 ± 2.0 | " in lines["| FedAvg"].replace("**", ""), "whole where there is one seed"


def test_bytes_and_seconds_to_a_target(made, table):
    table["table"]["metrics"] = [
        {"title": "MB", "value": "test/accuracy:bytes", "factor": 1e-6},
        {"title": "seconds", "value": "test/accuracy:first-seconds"},
    ]
    table["rows"][0]["published"], table["rows"][2]["published"] = {}, {}
    took = {
        "bytes_to_target": {"test/accuracy": {"mean": 2.5e6, "first": 1e6}},
        "seconds_to_target": {"test/accuracy": {"mean": 9.0, "first": 4.0}},
    }
    results = made({("FedAvg", 0): summary(0.5, **took), ("SFL", 0): summary(0.5)})
    row, column, metrics = parts(results)
    assert [results.ours(row, column, metric).mean for metric in metrics] == [2.5, 4.0]
    assert results.trouble(results.table.rows[1], column).startswith("not run")


def test_how_different_peers_are(made, table):
    table["table"]["metrics"] = [
        {"title": "Hamming", "value": "peers/hamming"},
        {"title": "L1", "value": "peers/l1", "factor": 10},
    ]
    table["rows"][0]["published"], table["rows"][2]["published"] = {}, {}
    compared = {"l1": 1.5, "l2": 0.5, "hamming": 60.0, "both-right": 20.0, "both-wrong": 10.0, "examples": 100}
    results = made({("FedAvg", 0): summary(0.5, peers=compared), ("SFL", 0): summary(0.5), ("SFL", 1): summary(0.5)})
    row, column, metrics = parts(results)
    assert [results.ours(row, column, metric).mean for metric in metrics] == [60, 15]
    assert results.ours(results.table.rows[1], column, metrics[0]) is None
    assert results.best(column, metrics[0]) is None, "neither few nor many are better"
    assert "SFL,digits,Hamming" in summary_csv(results)
    lines = [line for line in csv.DictReader(io.StringIO(long_csv(results))) if line["split"] == "peers"]
    assert {line["metric"]: float(line["value"]) for line in lines} == compared
    assert {(line["row"], line["group"], line["statistic"]) for line in lines} == {("FedAvg", "", "mean")}


@pytest.fixture
def with_fairness(made, table):
    """Results with SFL as the stand-alone row, from each client's accuracy at the end, and by round in every run."""
    table["table"] |= {
        "stand-alone": "SFL",
        "metrics": [
            {"title": "at the end", "value": "test/accuracy:fairness"},
            {"title": "rounds 1 to 2", "value": "test/accuracy:fairness", "rounds": [1, 2], "factor": 0.01},
            {"title": "of loss", "value": "test/loss:fairness"},
        ],
    }
    table["rows"][0]["published"], table["rows"][2]["published"] = {}, {}

    def with_fairness(reached, by_round=None):
        results = made({
            place: summary(0.5, per_client={"test": {"accuracy": values}}) for place, values in reached.items()
        })  # fmt: skip
        lines = [
            {"round": number, "phase": "evaluation", "split": "test", "per_client": {"accuracy": values}}
            for number, values in (by_round or {}).items()
        ]
        for outcome in results.outcomes:
            outcome.cell.path.mkdir(exist_ok=True)
            (outcome.cell.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return results

    return with_fairness


def test_fairness_is_against_the_stand_alone_row_of_the_same_seed(with_fairness):
    alone = {seed: {"a": 0.1, "b": 0.5, "c": 0.3 + seed / 2} for seed in (0, 1)}
    reached = {"c": 0.9, "b": 0.8, "a": 0.4}
    by_round = {
        0: {"a": 1.0, "b": 0.0, "c": 0.5},
        1: {"a": 0.2, "b": None, "c": 0.1},
        2: {"a": 0.4, "b": 0.7, "c": 0.8},
        3: reached,
    }
    results = with_fairness(
        {("SFL", 0): alone[0], ("SFL", 1): alone[1], ("FedAvg", 0): reached, ("FedAvg", 1): reached}, by_round
    )
    row, column, (last, averaged, _) = parts(results)

    def by_hand(seed, values):
        return 100 * np.corrcoef([alone[seed][name] for name in "abc"], values)[0, 1]

    assert results.ours(row, column, last).values == pytest.approx({s: by_hand(s, [0.4, 0.8, 0.9]) for s in (0, 1)})
    found = results.value(results.outcomes[0], row, column, averaged)
    assert found == pytest.approx(by_hand(0, [(0.2 + 0.4) / 2, 0.7, (0.1 + 0.8) / 2]) / 100)
    assert results.best(column, last) == "FedAvg"


def test_what_has_no_fairness(with_fairness):
    alone, same, other = {"a": 0.1, "b": 0.5}, {"a": 0.2, "b": 0.2}, {"a": 0.1, "b": 0.2}
    reached = {("SFL", seed): alone for seed in range(3)} | {("FedAvg", seed): same for seed in range(3)}
    results = with_fairness(reached)
    row, column, metrics = parts(results)
    assert [results.ours(row, column, metric) for metric in metrics] == [None] * 3
    assert results.trouble(row, column) == "its runs have no test/accuracy:fairness, test/loss:fairness"
    sfl = results.table.rows[1]
    assert [results.ours(sfl, column, metric) for metric in metrics] == [None] * 3, "it is what others are held against"
    assert results.trouble(sfl, column) == ""
    del reached["SFL", 1]
    results = with_fairness({**reached, ("FedAvg", 1): other, ("FedAvg", 2): other})
    assert list(results.ours(row, column, metrics[0]).values) == [2], "those of another seed are other clients"


def test_what_differs(made):
    results = made({("FedAvg", 0): summary(0.5)})
    column = results.columns[0]
    fedavg, sfl, oracle = results.table.rows
    assert results.differs(fedavg, column) == "one round; Toy, 3 of 9 clients"
    assert results.differs(sfl, column) == "one round; Toy, 3 of 9 clients; as it is"
    assert results.differs(oracle, column) == ""
    assert made({}).differs(fedavg, column) == "one round"


def test_why_values_are_missing(made):
    results = made(
        {("SFL", 0): summary(0.5), ("SFL", 1): summary(0.5), ("SFL", 2): summary(0.5)},
        {("FedAvg", 0): ("not run", ""), ("FedAvg", 1): ("failed", "it broke"), ("FedAvg", 2): ("no data", "no file")},
    )
    column = results.columns[0]
    assert results.trouble(results.table.rows[0], column) == "failed: it broke"
    assert results.trouble(results.table.rows[1], column) == ""
    assert results.trouble(results.table.rows[2], column) == ""
    partly = made({("FedAvg", 0): summary(0.5)}, {("FedAvg", 1): ("failed", "it broke")})
    assert partly.trouble(partly.table.rows[0], column) == "failed for seeds 1, 2: it broke"


def test_a_metric_that_was_not_measured_is_said(made, table):
    table["table"]["metrics"][1]["value"] = "test/mae"
    results = made({("FedAvg", seed): summary(0.5) for seed in range(3)})
    assert results.trouble(results.table.rows[0], results.columns[0]) == "its runs have no test/mae"


def test_the_best_of_ours(made, table):
    summaries = {("FedAvg", 0): summary(0.4, 0.3), ("SFL", 0): summary(0.5, 0.1)}
    results = made(summaries)
    _, column, (mean, worst) = parts(results)
    assert results.best(column, mean) == "SFL"
    assert results.best(column, worst) == "FedAvg"
    assert made({}).best(column, mean) is None
    for measured in summaries.values():
        measured["metrics"]["test"]["mae"] = measured["metrics"]["test"]["accuracy"]
    table["table"]["metrics"][0]["value"] = "test/mae"
    results = made(summaries)
    assert results.best(column, results.table.table.metrics[0]) == "FedAvg"


def test_the_long_file_has_every_number(made):
    groups = {"test": {"north": {"accuracy": {"mean": 0.25}}}}
    lines = list(csv.DictReader(io.StringIO(long_csv(made({("SFL", 1): summary(0.5, per_group=groups)})))))
    assert len(lines) == 5
    assert {line["row"] for line in lines} == {"SFL"}
    assert {line["run"] for line in lines} == {"SFL-1"}
    found = {(line["group"], line["statistic"]): line["value"] for line in lines}
    assert found == {
        ("", "mean"): "0.5",
        ("", "std"): "0.1",
        ("", "best5"): "",
        ("", "worst5"): "0.0",
        ("north", "mean"): "0.25",
    }


def test_the_summary_file(made):
    results = made({("FedAvg", 0): summary(0.5), ("FedAvg", 2): summary(0.6)}, {("SFL", 0): ("failed", "it broke")})
    lines = list(csv.DictReader(io.StringIO(summary_csv(results))))
    assert [(line["row"], line["metric"]) for line in lines] == [
        (row, metric) for row in ("FedAvg", "SFL", "Oracle") for metric in ("mean", "worst")
    ]
    first = lines[0]
    assert float(first["mean"]) == pytest.approx(55)
    assert float(first["deviation"]) == pytest.approx(50**0.5)
    assert (first["seeds"], first["published"], first["published deviation"]) == ("0 2", "12.5", "")
    assert (lines[1]["published"], lines[1]["published deviation"]) == ("3.0", "1.25")
    assert lines[2]["missing because"] == "failed: it broke"
    assert (lines[4]["published"], lines[4]["mean"], lines[5]["published"]) == ("99.0", "", "")


def test_commits(made, tmp_path):
    for seed, commit in ((0, "abc"), (1, "abc"), (2, "def")):
        (tmp_path / f"SFL-{seed}").mkdir()
        (tmp_path / f"SFL-{seed}" / "environment.json").write_text(json.dumps({"commit": commit}))
    assert "Made with commit abc, def." in markdown(made({("SFL", seed): summary(0.5) for seed in range(3)}))
    assert "Made with commit abc." in markdown(made({("SFL", 0): summary(0.5)}))


def test_real_runs_are_read(table, plan, execute, results_of):
    execute(plan(table, seeds=[0])[1:])
    results = results_of(table)
    states = [outcome.state for outcome in results.outcomes]
    assert states == ["not run", "finished", "not run", "not run"]
    row, column, (mean, _) = parts(results, row=1)
    found = json.loads((results.outcomes[1].cell.path / "summary.json").read_text())
    assert results.ours(row, column, mean).mean == 100 * found["metrics"]["test"]["accuracy"]["mean"]
    assert results.descriptions(column) == [found["data"]]


def test_missing_data_and_failures_are_told_apart(table, results_of):
    table["rows"][0]["set"] = ['data={set = "pems04"}', 'graph.source="none"']
    table["rows"][1]["method"] = "sfll"
    results = results_of(table, seeds=[0])
    (first, second) = results.outcomes
    assert (first.state, second.state) == ("no data", "failed")
    assert "no files of PEMS04" in first.reason
    assert second.reason.endswith("'sfll' is not a built-in")
