"""Figure 6 of FedNGM: shares of values by client and in the public rows, against a count by hand."""

from collections import Counter

import pytest
import tomli_w

from fedgraph.data import open_source
from fedgraph.experiment.experiment import load_experiment
from fedgraph.simulations.fedngm.distribution import distribution, distributions, draw
from fedgraph.support.errors import ExperimentError

SEGMENTS = {"poor": {"pay": ["state"]}, "north": {"site": ["1"], "pay": ["own"]}}


@pytest.fixture
def experiment(tmp_path):
    """Write an experiment on a small table; returns its path."""
    lines = ["pay,site"] + [f"{('own', 'state', '')[n % 3]},{n % 5}" for n in range(900)]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")

    def experiment(**data):
        tables = {
            "experiment": {"name": "small", "method": "fedngm"},
            "data": {"set": "mixed-table", "path": "people.csv", **data},
        }
        path = tmp_path / "small.toml"
        path.write_text(tomli_w.dumps(tables))
        return str(path)

    return experiment


def test_shares_are_of_the_rows_where_the_column_is_known(experiment, tmp_path):
    path = experiment(segments=SEGMENTS, **{"public-share": 0.5})
    found = distribution(path, tmp_path, 3)
    source = open_source(load_experiment(path, ["data.partition-seed=3"]).data, tmp_path)
    tables = {"poor": source.load_table("poor").table, "north": source.load_table("north").table}
    tables["public"] = source.public_table()
    assert (found.name, list(found.shares)) == ("small", ["pay", "site"])
    for who, table in tables.items():
        pay = Counter(table.column("pay").to_pylist())
        assert found.rows[who] == pay.total()
        shares = {value: by_client[who] for value, by_client in found.shares["pay"].items()}
        known = pay["own"] + pay["state"]
        assert shares == pytest.approx({"own": pay["own"] / known, "state": pay["state"] / known})
    both = Counter(
        zip(tables["north"].column("pay").to_pylist(), tables["north"].column("site").to_pylist(), strict=True)
    )
    assert found.inside["north"][0] == pytest.approx(both["own", "1"] / both.total())
    assert found.inside["poor"][0] > found.inside["poor"][1] + 0.1
    # Values that make a segment are bold.
    axes = draw(found).axes
    bold = [[t.get_text() for t in axis.get_xticklabels() if t.get_fontweight() == "bold"] for axis in axes]
    assert bold[:2] == [["own", "state"], ["1"]]
    assert [len(axis.patches) for axis in axes[:2]] == [6, 15]


def test_other_data_are_refused(experiment, tmp_path):
    for path in (experiment(clients=3), experiment(segments=SEGMENTS), "ipa/digits.toml"):
        with pytest.raises(ExperimentError, match="its data are not dealt out by segments"):
            distribution(path, tmp_path, 0)


def test_the_page(experiment, tmp_path):
    path = experiment(segments=SEGMENTS, **{"public-share": 0.5})
    page = distributions(tmp_path, [path])
    assert list(page.figures) == ["small"]
    assert "![How the rows of small are distributed](small.png)" in page.text
    lines = page.tables["splits"][["client", "segment"]].to_numpy().tolist()
    assert lines == [["poor", "pay = state"], ["north", "site = 1 and pay = own"], ["public", ""]]
