"""Tables of FedNGM: every metric of the paper beside those that go with it, and the rivals that one would try first."""

import pytest

from fedgraph.reproduce.table_files import load_table

TABLES = ("many", "table2", "table3", "table4", "folds", "private", "small", "released")
TOGETHER = {"mae": ("rmse",), "auc": ("aupr", "macro-precision", "macro-recall", "ece"), "macro-recall": ("ece",)}


@pytest.fixture(scope="module", params=TABLES)
def table(request):
    return load_table(f"fedngm-{request.param}")[1]


def test_no_metric_is_shown_without_those_that_go_with_it(table):
    for column in table.columns:
        values = [metric.value for metric in table.metrics_of(column)]
        for value in values:
            for measure, others in TOGETHER.items():
                if value.endswith((f"-{measure}", f"/{measure}")):
                    assert {f"{value.removesuffix(measure)}{other}" for other in others} <= set(values), column.key


def test_every_table_has_both_trivial_yardsticks(table):
    assert {"-mean", "-median"} <= {row.suffix for row in table.rows}


@pytest.mark.parametrize("name", ["many", "table4", "small"])
def test_a_federated_and_a_pooled_linear_model_are_the_rivals(name):
    rows = {row.label: row for row in load_table(f"fedngm-{name}")[1].rows}
    assert rows["FedAvg of a linear model"].method == "fedavg"
    for label in ("Linear model of pooled rows", "Boosted trees of pooled rows"):
        assert 'fedngm.global-model="pooled"' in rows[label].set
        assert rows[label].nodes == 1
