import pytest
import torch

from fedgraph.clients.engine.table_rows import TableRows
from fedgraph.data import open_source
from fedgraph.data.encoding.scaling import Scaling, ScalingSettings
from fedgraph.data.tables.client_tables import client_table_source
from fedgraph.experiment.experiment import parse_experiment


@pytest.fixture
def source(table_tables, data_dir):
    return client_table_source(open_source(parse_experiment(table_tables).data, data_dir), "fedngm")


def test_rows_are_scaled_as_the_server_says_and_else_by_the_clients_own(source):
    common = Scaling({"height": (0.0, 1000.0)})
    held = TableRows(source, ["east", "north"], ScalingSettings(quantile=0.0))
    schema = held.schema("east").select(["height", "weight"])
    rows = held.rows("east", schema, common)
    units = rows.units("train")
    assert torch.allclose(units[:, 0].double(), torch.from_numpy(rows.values["train"][:, 0]) / 1000)
    assert (units[:, 1].nan_to_num(0.5).min(), units[:, 1].nan_to_num(0.5).max()) == (0, 1)
    assert len(rows.values["train"]) == len(held.tables["east"].rows("train"))


def test_a_table_is_read_once(source, monkeypatch):
    held = TableRows(source, ["east", "north"], ScalingSettings())
    schema = held.schema("north")
    assert held.whole("east", schema).names == (*schema.names, "ecg")
    first = [held.rows("east", schema, None), held.rows("north", schema, Scaling()), held.public(schema)]
    monkeypatch.setattr("fedgraph.clients.engine.table_rows.read_values", None)
    again = [held.rows("east", schema, None), held.rows("north", schema, Scaling()), held.public(schema)]
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert first[0] is not first[1]
    assert len(held.public(schema)) > 0
