"""Where data lies: in the place that the experiment names, or in a node's own."""

from pathlib import Path

import pytest

from fedgraph.data import OWN_FILE_SETS, open_source, parse_data
from fedgraph.data.own import OwnData, data_path, data_title
from fedgraph.support.errors import DataError, IdentityError


def test_own_data_takes_the_place_of_what_the_experiment_names(tmp_path):
    own = OwnData(tmp_path, ("mercy",))
    assert data_path("a.csv", Path("/data"), None) == Path("/data/a.csv")
    assert data_path("/b/a.csv", Path("/data"), None) == Path("/b/a.csv")
    assert data_path("a.csv", Path("/data"), own) == data_path(None, Path("/data"), own) == tmp_path
    assert data_title("b/a.csv", None) == "a.csv"
    assert data_title("b/a.csv", own) == data_title(None, own) == data_title(None, None) == "own data"
    with pytest.raises(DataError, match="no path, .*'data'"):
        data_path(None, Path("/data"), None)
    with pytest.raises(DataError, match=r"none\.csv, .*'data'"):
        data_path(None, Path("/data"), OwnData(tmp_path / "none.csv"))
    # For each client another one: who knows which are there.
    each = OwnData(tmp_path / "{client}.csv")
    assert data_path(None, Path("/data"), each) == each.path


def test_the_only_client():
    assert OwnData(Path("/x"), ("mercy",)).only_client() == "mercy"
    with pytest.raises(IdentityError, match="it names none"):
        OwnData(Path("/x")).only_client()


def test_sets_that_are_the_same_everywhere_are_nobodys_own(tmp_path):
    for table in ({"set": "iris"}, {"set": "mnist"}, {"set": "metr-la"}, {"set": "linked-deaths", "clients": 3}):
        with pytest.raises(DataError, match=f"'{table['set']}' is the same for all .* {', '.join(OWN_FILE_SETS)}$"):
            open_source(parse_data(table), tmp_path, OwnData(tmp_path))
