import io

import pytest
from rich.console import Console

from fedgraph.runs.reports.tables import as_text, results_table
from fedgraph.runs.reports.words import sentence

NAMES = ("a", "b")
_LEFT_OUT = ["best 5 %", "seconds", "MB up", "worst 5 %"]


def summary(method, metrics, **changes):
    base = {"method": method, "data": "Digits", "clients": 2, "rounds": 3, "exchanges": 5, "seconds": 1.25,
            "bytes_down": 2_345_678, "bytes_up": 49_999, "nodes": 2, "bytes_down_per_client": 1_172_839.0,
            "bytes_up_per_client": 24_999.5, "models_per_round": 4.04}  # fmt: skip
    return {**base, "metrics": metrics, **changes}


def spread(mean, **changes):
    return {"mean": mean, "std": 0.25, "best5": 0.9, "worst5": 0.1, **changes}


def text(table):
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def row(shown, label):
    return next(line for line in shown.splitlines() if label in line).split("│")[2:-1]


def test_a_column_per_run_and_a_row_per_metric():
    shown = text(
        results_table([
            summary("sfl", {"test": {"accuracy": spread(0.5), "loss": spread(12345.678)}}),
            summary(
                "fedavg", {"test": {"accuracy": spread(None, std=None)}}, exchanges=7, seconds=100.0,
                bytes_down_per_client=1.234e9,
            ),
        ])
    )  # fmt: skip
    assert [cell.strip() for cell in row(shown, "accuracy ")] == ["0.500 ± 0.250", "-"]
    assert [cell.strip() for cell in row(shown, "loss ")] == ["1.235e+04 ± 0.250", "-"]
    assert [cell.strip() for cell in row(shown, "accuracy, best 5 %, 1 client ")] == ["0.900", "-"]
    assert [cell.strip() for cell in row(shown, "accuracy, worst 5 %, 1 client ")] == ["0.100", "-"]
    assert [cell.strip() for cell in row(shown, "exchanges")] == ["5", "7"]
    assert [cell.strip() for cell in row(shown, "models moved a round")] == ["4.0", "4.0"]
    assert [cell.strip() for cell in row(shown, "MB down, per client")] == ["1.17", "1234.00"]
    assert [cell.strip() for cell in row(shown, "MB up, per client")] == ["0.02", "0.02"]
    assert [cell.strip() for cell in row(shown, "MB in all, 2 nodes")] == ["2.40", "2.40"]
    assert [cell.strip() for cell in row(shown, "seconds")] == ["1.2", "100.0"]
    assert "On each client's own test data" in shown


def test_a_row_per_group_of_the_first_metric():
    metrics = {"test": {"mae": spread(0.5), "rmse": spread(0.7)}}
    grouped = {"test": {"cold": metrics["test"], "[red]": {"mae": spread(None, std=None)}}}
    shown = text(results_table([summary("sfl", metrics, per_group=grouped), summary("local", metrics)]))
    assert [cell.strip() for cell in row(shown, "mae, cold")] == ["0.500 ± 0.250", "-"]
    assert [cell.strip() for cell in row(shown, "mae, [red]")] == ["-", "-"]
    assert "rmse, cold" not in shown
    assert "mae, cold" in as_text(summary("sfl", metrics, per_group=grouped))
    many = {"test": {f"group {number}": metrics["test"] for number in range(21)}}
    assert "mae, group" not in text(results_table([summary("sfl", metrics, per_group=many)]))


def test_a_row_for_fairness_where_it_was_followed():
    metrics = {"test": {"accuracy": spread(0.5)}}
    shown = text(results_table([summary("ipa", metrics, fairness={"last": 87.25}), summary("local", metrics)]))
    assert [cell.strip() for cell in row(shown, "fairness")] == ["87.250", "-"]
    assert "fairness" not in text(results_table([summary("local", metrics)]))


def test_a_run_of_which_the_bytes_were_not_counted():
    old = summary("sfl", {})
    for key in ("bytes_down", "bytes_up", "nodes", "bytes_down_per_client", "bytes_up_per_client", "models_per_round"):
        del old[key]
    shown = text(results_table([old]))
    assert [cell.strip() for cell in row(shown, "MB down, per client")] == ["-"]
    assert [cell.strip() for cell in row(shown, "MB in all")] == ["-"]
    assert "models moved" not in shown
    assert "MB" not in sentence([old])


def test_runs_over_other_numbers_of_nodes_say_over_how_many():
    shown = text(results_table([summary("sfl", {}), summary("centralised", {}, nodes=1)]))
    assert [cell.strip() for cell in row(shown, "MB in all (nodes)")] == ["2.40 (2)", "2.40 (1)"]


def test_the_best_and_the_worst_say_how_many_clients_they_are():
    per_client = {"test": {"mae": {**{f"c{n}": 1.0 for n in range(60)}, "absent": None}}}
    metrics = {"test": {"mae": spread(0.5)}}
    assert "mae, worst 5 %, 3 clients" in text(
        results_table([summary("a", metrics, clients=61, per_client=per_client)])
    )
    both = [summary("a", metrics, clients=40), summary("b", metrics, clients=20)]
    assert "mae, worst 5 %, 1 or 2 clients" in text(results_table(both))


def test_rounds_bytes_and_seconds_to_a_target():
    reached = {
        "rounds_to_target": {"test/accuracy": {"target": 0.75, "mean": 12, "first": 3}},
        "bytes_to_target": {"test/accuracy": {"mean": 4.5e6, "first": 1.5e6}},
        "seconds_to_target": {"test/accuracy": {"mean": 60.04, "first": 20.0}},
    }
    never = {"rounds_to_target": {"test/accuracy": {"target": 0.75, "mean": None, "first": 3}}}
    shown = text(results_table([summary("ipa", {}, **reached), summary("fedavg", {}, **never), summary("local", {})]))
    for label, *expected in (
        ("rounds to test/accuracy 0.75", "12 (3)", "- (3)", "-"),
        ("MB per client to test/accuracy 0.75", "4.50 (1.50)", "-", "-"),
        ("seconds to test/accuracy 0.75", "60.0 (20.0)", "-", "-"),
    ):
        assert [cell.strip() for cell in row(shown, label)] == expected


def test_a_run_that_measured_nothing_still_has_a_table():
    shown = text(results_table([summary("local", {})]))
    assert row(shown, "rounds")[0].strip() == "3"
    assert "best 5 %" not in shown


def test_many_runs_become_rows_that_fit_a_terminal():
    def run(number):
        values = {"mean": number / 10, "std": 0.1, "best5": 0.9, "worst5": 0.1}
        metrics = {f"m{metric}": values for metric in range(5)}
        return {
            "method": f"method-{number}", "clients": 3, "data": "d", "rounds": 2, "exchanges": 4, "seconds": 1.0,
            "bytes_down": 1, "bytes_up": 2_000_000, "bytes_up_per_client": 2e6, "metrics": {"test": metrics},
        }  # fmt: skip

    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(results_table([run(number) for number in range(6)]))
    text = console.file.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    row = next(line for line in text.splitlines() if "method-4" in line)
    assert row.replace("│", " ").split() == ["method-4", "0.400", "0.400", "0.400", "0.900", "0.100", "2.00", "1.0"]
    assert "m0" not in text
    assert "m4" in text


def test_a_method_that_is_another_one_with_its_settings_says_so():
    shown = text(results_table([summary("fedprox", {}, remark="mu 0: the same as fedavg"), summary("fedavg", {})]))
    assert "(mu 0: the same as fedavg)" in shown


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(120, []), (80, ["best 5 %"]), (60, ["best 5 %", "seconds", "MB up"]), (50, _LEFT_OUT)],
)
def test_a_narrow_table_of_many_runs_leaves_columns_out_and_cuts_no_number(width, left_out):
    metrics = {"test": {name: spread(0.123) for name in ("mae-60min", "rmse-60min", "mape-60min")}}
    names = [f"a method with a name of {number} long-winded-words" for number in range(6)]
    console = Console(file=io.StringIO(), width=width)
    console.print(results_table([summary(name, metrics, seconds=1234.5) for name in names]))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("0.123") == 18
    assert shown.count("long-winded-words") == 6
    for label in _LEFT_OUT:
        assert (label in shown) == (label not in left_out)


def test_of_many_runs_metrics_are_shown_that_most_have():
    common, own = {"mae": spread(0.111), "rmse": spread(0.222)}, {"mae-local": spread(0.333), "rmse-local": spread(0.4)}
    runs = [summary("f3-forecast", {"test": {**common, **own}}), *(summary(name, {"test": common}) for name in "abcd")]
    shown = text(results_table(runs))
    assert shown.count("0.111") == shown.count("0.222") == 5
    assert "local" not in shown
    assert "own model" in text(results_table(runs[:2])), "few have room for all"


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_of_few_runs_with_long_names_cuts_neither_names_nor_numbers(width):
    metrics = {"test": {name: spread(0.123) for name in ("mae-60min", "rmse-60min")}}
    names = [f"simple-forecast (forecaster-{number} learning-rate=0.001)" for number in range(3)]
    console = Console(file=io.StringIO(), width=width)
    console.print(results_table([summary(name, metrics) for name in names]))
    shown = console.file.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("0.123") == 6
    for word in ("simple-forecast", "learning-rate=0.001)", "forecaster-1"):
        assert word in shown
    assert any("mae-60min" in line for line in shown.splitlines())
