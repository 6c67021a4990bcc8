"""Tables of clients: dealt out by segments or a column, a file each, rows of a network; what is public and private."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.data.columns.columns import read_column
from fedgraph.data.images.images import ImageSettings, ImageSource
from fedgraph.data.tables.client_tables import client_table_source
from fedgraph.support.errors import DataError, ExperimentError

ROWS = 3000


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    lines = ["id,pay,sex,site"]
    for number in range(ROWS):
        pay = random.choice(["own", "state", ""], p=[0.6, 0.3, 0.1])
        lines.append(f"{number},{pay},{random.choice(['f', 'm'])},{random.choice(['north', 'south', ''])}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def source(folder, **keys):
    tables = {"set": "mixed-table", "path": "people.csv", **keys}
    return client_table_source(open_source(parse_data(tables), folder), "fedngm")


def numbers(table):
    return set(table.column("id").to_pylist())


SEGMENTS = {"poor": {"pay": ["state"]}, "women": {"sex": ["f"]}}


def test_every_row_is_public_or_has_one_client(folder):
    found = source(folder, segments=SEGMENTS, **{"public-share": 0.4})
    assert found.client_names() == ["poor", "women"]
    parts = [numbers(found.load_table(name).table) for name in found.client_names()] + [numbers(found.public_table())]
    assert sum(map(len, parts)) == len(set.union(*parts)) == ROWS
    assert found.describe() == (
        "people.csv, 3,000 rows, 2 clients by segments, 4 times as often, "
        f"{found.public_table().num_rows:,} rows public"
    )


def test_segments_come_more_often_to_their_client(folder):
    found = source(folder, segments=SEGMENTS)
    poor, women = (found.load_table(name).table for name in found.client_names())
    # Of men that the state pays for, 4 of 5 are the first client's; of women that it does not, 1 of 5.
    rows = [Counter(zip(one.column("pay").to_pylist(), one.column("sex").to_pylist())) for one in (poor, women)]  # noqa: B905
    share = {who: rows[0][who] / (rows[0][who] + rows[1][who]) for who in (("state", "m"), ("own", "f"), ("own", "m"))}
    assert share == pytest.approx({("state", "m"): 0.8, ("own", "f"): 0.2, ("own", "m"): 0.5}, abs=0.05)


def test_strata_are_in_the_public_part_as_often(folder):
    found = source(folder, clients=2, stratify=["pay", "sex"], **{"public-share": 0.25})
    everybody = Counter()
    public = found.public_table()
    counted = Counter(zip(public.column("pay").to_pylist(), public.column("sex").to_pylist(), strict=True))
    for table in (public, *(found.load_table(name).table for name in found.client_names())):
        everybody.update(zip(table.column("pay").to_pylist(), table.column("sex").to_pylist(), strict=True))
    assert len(everybody) == 6
    for who, count in everybody.items():
        assert abs(counted[who] - count / 4) <= 1


def test_clients_by_a_column(folder):
    found = source(folder, **{"client-column": "site"})
    assert found.client_names() == ["north", "south"]
    table = found.load_table("north").table
    assert table.names == ["id", "pay", "sex"]
    assert table.num_rows + found.load_table("south").table.num_rows < ROWS
    assert found.public_table() is None


@pytest.mark.parametrize("ways", [{"client-column": "site"}, {"clients": 2, "limit": 390}], ids=["column", "dealt"])
@pytest.mark.parametrize("cell", ["sixty", "inf"])
def test_a_cell_that_is_wrong_is_found_by_its_row_in_the_file(folder, ways, cell):
    ages = ["17.5"] * 400
    ages[300:] = [cell] * 100
    lines = [f"{age},{'north' if row % 3 else 'south'}" for row, age in enumerate(ages)]
    (folder / "people.csv").write_text("\n".join(["age,site", *lines]))
    found = source(folder, **ways)
    for name in found.client_names():
        held = found.load_table(name)
        for table in (held.table, held.part("train")):
            with pytest.raises(DataError, match=f"column 'age' of .*people.csv.* holds '?{cell}'?") as caught:
                read_column(table, "age").as_numbers()
            row = int(re.search(r"in row (\d+)", str(caught.value))[1])
            assert row > 300
            whose = lines[row - 1].split(",")[1]
            assert "limit" in ways or whose == name


def test_a_file_for_each_client(folder):
    (folder / "a.csv").write_text("x,y\n1,2\n3,4\n")
    (folder / "b.csv").write_text("x\n5\n")
    found = source(folder, path="{client}.csv", clients=["a", "b"], public="b.csv")
    assert found.load_table("a").table.names == ["x", "y"]
    assert found.load_table("b").table.num_rows == found.public_table().num_rows == 1
    assert found.describe() == "{client}.csv, 2 clients with a file each"


def test_private_features(folder):
    found = source(folder, clients=["a", "b", "c"], private={"b": ["sex"], "c": ["sex", "site"]})
    names = {name: found.load_table(name).table.names for name in found.client_names()}
    assert names == {"a": ["id", "pay"], "b": ["id", "pay", "sex"], "c": ["id", "pay", "sex", "site"]}
    with pytest.raises(DataError, match="no column 'age'"):
        source(folder, clients=["a"], private={"a": ["age"]}).load_table("a")
    with pytest.raises(DataError, match="private names unknown clients: z"):
        source(folder, clients=["a"], private={"z": ["sex"]}).load_table("a")


def test_splits_are_the_clients_own_and_cover_its_rows(folder):
    found = source(folder, clients=2, shares=[0.5, 0.25, 0.25])
    held = found.load_table("client-0")
    assert torch.bincount(held.split.long()).tolist() == [750, 375, 375]
    assert set(held.rows("train").tolist()).isdisjoint(held.rows("test").tolist())
    again = source(folder, clients=2, shares=[0.5, 0.25, 0.25])
    assert torch.equal(again.load_table("client-0").split, held.split)
    other = source(folder, clients=2, shares=[0.5, 0.25, 0.25], **{"partition-seed": 1})
    assert not torch.equal(other.load_table("client-0").split, held.split)
    assert numbers(other.load_table("client-0").table) != numbers(held.table)


def test_rows_of_a_network(folder):
    (folder / "net.bif").write_text(
        "network n { }\nvariable a { type discrete [ 2 ] { no, yes }; }\n"
        "variable b { type discrete [ 2 ] { no, yes }; }\n"
        "probability ( a ) { table 0.7, 0.3; }\n"
        "probability ( b | a ) { (no) 1.0, 0.0; (yes) 0.0, 1.0; }\n"
    )
    tables = {"set": "bayesian-network", "path": "net.bif", "rows": 500, "public-rows": 20, "clients": ["x", "y"]}
    found = client_table_source(open_source(parse_data(tables), folder), "fedngm")
    first, second = (found.load_table(name).table for name in ("x", "y"))
    assert first.column("a").to_pylist() == first.column("b").to_pylist() != second.column("a").to_pylist()
    assert 100 < first.column("a").to_pylist().count("yes") < 200
    assert found.public_table().num_rows == 20
    assert found.describe() == "net.bif, 2 variables, 2 clients with 500 rows drawn for each, 20 rows public"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "one of clients, .*segments"),
        ({"clients": 2, "client-column": "site"}, "one of clients, .*segments"),
        ({"clients": 2, "path": "{client}.csv"}, "needs the names of the clients"),
        ({"clients": ["a"], "path": "{client}.csv", "public-share": 0.5}, "with a file for each client, give public"),
        ({"clients": 2, "public-share": 0.5, "public": "p.csv"}, "not both"),
        ({"clients": 2, "stratify": ["pay"]}, "public-share is 0"),
        ({"clients": 2, "table-schema": {"kinds": {"pay": "odd"}}}, "table-schema"),
    ],
)
def test_settings_that_do_not_go_together(folder, keys, message):
    with pytest.raises(ExperimentError, match=message):
        source(folder, **keys)


def test_what_cannot_be_found(folder):
    with pytest.raises(DataError, match="'pay' .*rich"):
        source(folder, segments={"a": {"pay": ["rich"]}, "b": {}}).load_table("a")
    with pytest.raises(DataError, match="'z'; .*client-0, client-1"):
        source(folder, clients=2).load_table("z")
    (folder / "few.csv").write_text("x\n1\n")
    with pytest.raises(DataError, match="no row for client"):
        source(folder, path="few.csv", clients=2).load_table("client-1")


def test_methods_for_one_label_are_told_so(folder):
    with pytest.raises(DataError, match="methods such as fedngm"):
        source(folder, clients=2).load(["client-0"])
    with pytest.raises(DataError, match="mixed-table, .*bayesian-network"):
        client_table_source(ImageSource(ImageSettings(set="digits"), folder), "fedngm")


def test_rows_and_cells_can_be_left_out_to_see_what_gaps_do(folder):
    keys = {"clients": 3, "limit": 300, "gaps": 0.333, "whole": ["id"], "public-share": 0.5}
    found = source(folder, **keys)
    tables = [found.load_table(name).table for name in found.client_names()] + [found.public_table()]
    assert sum(table.num_rows for table in tables) == 300
    assert len(set.union(*map(numbers, tables))) == 300
    assert all(table.column("id").null_count == 0 for table in tables)
    lost = sum(table.column("sex").null_count for table in tables)
    assert 75 < lost < 125
    again, other = source(folder, **keys), source(folder, **keys, **{"partition-seed": 1})
    assert numbers(again.public_table()) == numbers(tables[-1]) != numbers(other.public_table())
    with pytest.raises(DataError, match="no column 'name'"):
        source(folder, clients=3, whole=["name"]).load_table("client-0")
    with pytest.raises(ExperimentError, match="limit and gaps"):
        source(folder, path="{client}.csv", clients=["a", "b"], gaps=0.1)


def test_folds_test_every_row_once(folder):
    seen = torch.zeros(ROWS, dtype=torch.int64)
    for fold in range(5):
        held = source(folder, clients=["all"], fold=fold).load_table("all")
        counts = [len(held.rows(split)) for split in ("train", "validation", "test")]
        assert counts == [2100, 300, 600]
        seen[held.rows("test")] += 1
    assert (seen == 1).all()
    with pytest.raises(ExperimentError, match="5 folds, .*fold 5"):
        source(folder, clients=2, fold=5)


def test_a_misspelled_column_to_drop_is_refused(folder):
    found = source(folder, clients=2, **{"table-schema": {"drop": ["ids"]}})
    message = r"drop of \[data.table-schema\] names 'ids', .*people.csv has no .*did you mean 'id' for 'ids'\?"
    with pytest.raises(DataError, match=message):
        found.load_table("client-0")
    # A file each: others may have the column.
    for client in ("a", "b"):
        (folder / f"{client}.csv").write_text(f"only_{client},x\n1,2\n3,4\n")
    keys = {"path": "{client}.csv", "clients": ["a", "b"], "table-schema": {"drop": ["only_a"]}}
    assert source(folder, **keys).load_table("b").table.names == ["only_b", "x"]


def test_categories_that_may_be_meant_as_one_are_noted(folder):
    (folder / "spellings.csv").write_text("age,outcome,smokes\n" + "61,dead,yes\n40,DEAD,TRUE\n52,alive,no\n" * 20)
    found = source(folder, path="spellings.csv", clients=2)
    assert "'DEAD' and 'dead' of 'outcome' are two categories" in found.describe()
    assert "of 'smokes' are two categories" in found.describe()
    assert "'age'" not in found.describe()
