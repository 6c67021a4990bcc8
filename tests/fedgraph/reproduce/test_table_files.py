import copy

import pytest

from fedgraph.reproduce.table_files import files_that_come_along, load_table
from fedgraph.support.errors import ExperimentError


def test_a_table_is_found_by_name_and_by_path(table, write):
    name, content, file = load_table("sfl-table1")
    assert (name, file.name) == ("sfl-table1", "table1.toml")
    assert content.rows[0].label == "FedAvg"
    name, content, file = load_table(str(write(table)))
    assert (name, file.parent.joinpath("small.toml").exists()) == ("tiny", True)
    assert [row.method for row in content.rows] == ["fedavg", "sfl", None]


def test_tables_come_along():
    names = files_that_come_along()
    assert {"f3-fig3", "f3-fig4", "sfl-table1", "sfl-table2", "sfl-table3", "sfl-table4", "sfl-fig3"} <= set(names)


def test_an_unknown_table_is_answered_with_the_known():
    with pytest.raises(ExperimentError, match="unknown table 'sfl-tabel1'; known: .*sfl-table1"):
        load_table("sfl-tabel1")


@pytest.mark.parametrize(
    ("where", "entry", "message"),
    [
        (("table",), {"titel": "x"}, r"\[table\] has no key 'titel'; known keys: caption, choose-by"),
        (("rows", 1), {"methods": "x"}, r"\[\[rows\]\] 'SFL' has no key 'methods'; known keys: .*method"),
        (
            ("columns", 0),
            {"exp": "x"},
            r"\[\[columns\]\] 'digits' has no key 'exp'; known keys: at, choose-by, client",
        ),
        (("profiles", "small"), {"sed": [1]}, r"\[profiles.small\] has no key 'sed'; known keys: columns"),
        (("profiles",), {"tiny": {}}, "profiles.tiny"),
        (("table", "metrics", 0), {"factors": 1}, "has no key 'factors'; known keys: factor, rounds, title, value"),
        (("table", "metrics", 0), {"value": "test/mea"}, "unknown metric 'mea'"),
        (("rows", 1), {"label": "SFL, ours"}, "label"),
        (("rows", 1), {"label": "FedAvg"}, "row label 'FedAvg' is given more than once"),
        (("rows", 1), {"columns": ["digit"]}, "row 'SFL' names unknown column 'digit'; known: digits"),
        (("rows", 0, "published"), {"digits": [1.0]}, "column 'digits' has 2 metrics, but 1 published values"),
        (("profiles", "small"), {"experiments": {"x": "y"}}, "profile 'small' names unknown column 'x'"),
        (("table",), {"metrics": []}, "column 'digits' needs metrics"),
        (
            ("columns", 0),
            {"client": "a"},
            "'test/accuracy:worst5' is defined over several clients, not for client 'a' alone",
        ),
        (("rows", 0), {"suffix": "local"}, "suffix"),
        (("table",), {"stand-alone": "alone"}, "a row with a method, got 'alone'; known: FedAvg, SFL$"),
        (("table",), {"stand-alone": "Oracle"}, "a row with a method, got 'Oracle'; known: FedAvg, SFL$"),
        (("table", "metrics", 0), {"value": "test/loss:fairness"}, r"test/loss:fairness needs \[table\] stand-alone"),
        (
            ("table", "metrics", 0),
            {"rounds": [1, 2]},
            "rounds need a value with ':fairness', got 'test/accuracy'",
        ),
        (("table", "metrics", 0), {"value": "test/loss:fairness", "rounds": [5, 1]}, r"\[first, last\], got \[5, 1\]"),
        (
            ("rows", 1),
            {"after": "Oracle"},
            "row 'SFL': after must name an earlier row .*, got 'Oracle'; known: FedAvg$",
        ),
        (("rows", 0), {"after": "SFL"}, "row 'FedAvg': after must name an earlier row .*, got 'SFL'; known: none$"),
        (
            ("rows",),
            [{"label": "A"}, {"label": "B", "method": "sfl", "after": "A"}],
            "row 'B' needs row 'A', which is not run for 'digits'",
        ),
    ],
)
def test_what_is_wrong_is_said(table, write, where, entry, message):
    content = copy.deepcopy(table)
    place = content
    for step in where:
        place = place[step]
    place.extend(entry) if isinstance(entry, list) else place.update(entry)
    with pytest.raises(ExperimentError, match=message) as error:
        load_table(str(write(content)))
    assert "tiny.toml" in str(error.value)


@pytest.mark.parametrize("content", [b"[table", b"\xff"])
def test_no_toml(tmp_path, content):
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(ExperimentError, match="bad.toml is not a TOML file"):
        load_table(str(tmp_path / "bad.toml"))


def test_metrics_that_a_row_cannot_have_may_stand_in_columns_without_it(table, write):
    content = copy.deepcopy(table)
    distances = [{"title": "distance", "value": "peers/l2"}]
    content["columns"].append({**content["columns"][0], "key": "peers", "metrics": distances})
    after_turn = {"label": "after its turn", "method": "ipa", "suffix": "-after-turn"}
    content["rows"].append(after_turn)
    with pytest.raises(ExperimentError, match="'peers/l2' has no suffix '-after-turn'"):
        load_table(str(write(content)))
    after_turn["columns"] = ["digits"]
    _, read, _ = load_table(str(write(content)))
    assert [read.rows[-1].stands_in(column.key) for column in read.columns] == [True, False]
