"""Data frames in memory as a data set."""

import pandas as pd
import pytest

from fedgraph.data.tables import ClientTableSettings, FrameTables, client_table_source
from fedgraph.support.errors import DataError

FRAME = pd.DataFrame({"age": range(10), "name": ["a"] * 10})


def test_the_frame_is_loaded_once_and_divided_by_the_shares():
    loaded = []
    source = FrameTables(ClientTableSettings(shares=(0.5, 0.2, 0.3)), "mercy", lambda: loaded.append(1) or FRAME)
    assert client_table_source(source, "fedngm") is source
    assert source.client_names() == ["mercy"]
    assert loaded == []
    table = source.load_table("mercy")
    assert [len(table.rows(split)) for split in ("train", "validation", "test")] == [5, 2, 3]
    assert source.load_table("mercy").split.tolist() == table.split.tolist()
    assert len(loaded) == 1
    assert source.public_table() is None
    assert source.given_graph() is None
    with pytest.raises(DataError, match="without one label"):
        source.load(["mercy"])


def test_the_server_has_public_rows_alone():
    source = FrameTables(ClientTableSettings(), public=FRAME)
    assert source.client_names() == []
    assert source.public_table().names == ["age", "name"]
    with pytest.raises(DataError, match="no client 'mercy'"):
        source.load_table("mercy")


def test_dropped_columns_may_be_of_others_but_not_misspelt():
    def load(dropped):
        return FrameTables(ClientTableSettings(table_schema={"drop": [dropped]}), "mercy", lambda: FRAME)

    assert load("dose").load_table("mercy").table.names == ["age", "name"]
    with pytest.raises(DataError, match="did you mean 'name'"):
        load("nam").load_table("mercy")
