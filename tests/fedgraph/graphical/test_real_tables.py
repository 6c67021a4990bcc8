"""Schemas, agreement and units of real mixed tables, which lie in the data folder."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from fedgraph.data.columns.table_files import Table, read_table
from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.scaling import Scaling, ScalingSettings
from fedgraph.data.encoding.values import as_table, read_values
from fedgraph.data.schema.agreement import agree
from fedgraph.data.schema.inference import SchemaSettings, infer_schema
from fedgraph.data.schema.json import schema_as_json, schema_from_json
from fedgraph.data.schema.schema import Feature
from fedgraph.graphical.statistics import StatisticsSettings, shared_statistics
from fedgraph.privacy.noise.counts import CountNoiseSettings
from fedgraph.support.randomness import generator
from fedgraph.support.settings import parse

ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip

BIRTHS = parse(
    SchemaSettings,
    {
        "drop": ["apgar10", "uld_breech"],
        "kinds": dict.fromkeys(("combgest", "apgar5", "precare"), "ordinal") | {"dplural": "integer"},
    },
    "[features]",
)


def existing(path):
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(scope="module")
def births(data_dir):
    return read_table(existing(data_dir / "cdc-infant" / "natality_2014_100k.csv.gz"), missing=("", "NA"))


def test_births_are_of_every_kind(births):
    schema = infer_schema(births, BIRTHS)
    kinds = {
        kind: {f.name for f in schema.features if f.kind == kind}
        for kind in ("real", "ordinal", "integer", "categorical")
    }
    assert kinds == {
        "real": {"dbwt", "pwgt_r", "dwgt_r"},
        "ordinal": {"combgest", "apgar5", "precare"},
        "integer": {"mager", "fagecomb", "dplural", "m_ht_in", "previs", "priorlive", "priordead", "priorterm"}
        | {f"cig_{part}" for part in range(4)},
        "categorical": {"ubfacil", "pay", "me_pres", "me_rout"},
    }
    assert sum(f.kind == "binary" for f in schema.features) == 21
    assert schema["ilive"] == Feature("ilive", "binary", ("n", "y"))
    assert len(schema.unit_feature) == 58


def test_births_become_units_and_come_back(births, tmp_path):
    schema = infer_schema(births, BIRTHS)
    values = read_values(births, schema, BIRTHS)
    encoding = Encoding(schema, Scaling.measured(values, schema, 0.01))
    units = encoding.encode(values)
    assert tuple(units.shape) == (100_000, 58)
    # At most 2 % of the values of any number lie outside its quantiles, and none far.
    numbers = [schema.slices[name].start for name in encoding.scaling.ranges]
    outside = ((units[:, numbers] < 0) | (units[:, numbers] > 1)).float().mean(0)
    assert float(outside.max()) < 0.02
    back = encoding.decode(units)
    np.testing.assert_allclose(back, values, atol=0.01)
    some = slice(0, 2000)
    as_table(back[some], schema).to_pandas().to_csv(tmp_path / "births.csv", index=False)
    written = read_table(tmp_path / "births.csv")
    for feature in schema.features:
        if feature.categories:
            assert written.column(feature.name).to_pylist() == births.column(feature.name)[some].to_pylist()


def test_hospitals_agree_on_births(births):
    """Three clients that see different people: the rare kind of facility, for one, is not seen by all."""
    few = {name: column.slice(0, 3000) for name, column in births.columns.items()}
    clients = {}
    for name, column, value in (
        ("medicaid", "pay", "medicaid"),
        ("cesarean", "me_rout", "cesarean"),
        ("no-wic", "wic", "n"),
    ):
        mask = pc.fill_null(pc.equal(few[column], value), False)
        clients[name] = Table({key: one.filter(mask) for key, one in few.items()}, name)
    schemas = {
        name: schema_from_json(schema_as_json(infer_schema(table, BIRTHS, partial=True)))
        for name, table in clients.items()
    }
    assert schemas["medicaid"]["pay"].categories == ("medicaid",)
    agreement = agree(schemas)
    assert set(agreement.common["pay"].categories) == set().union(*(s["pay"].categories for s in schemas.values()))
    assert agreement.common["pay"].kind == "categorical"
    assert len(agreement.unseen["pay"]["medicaid"]) == len(agreement.common["pay"].categories) - 1
    for name, table in clients.items():
        values = read_values(table, agreement.common, BIRTHS)
        units = Encoding(agreement.common, Scaling.measured(values, agreement.common, 0.01)).encode(values)
        assert units.shape == (table.num_rows, len(agreement.common.unit_feature))
        if name == "medicaid":
            seen = units[:, agreement.common.slices["pay"]].sum(0)
            assert int((seen > 0).sum()) == 1


def test_private_ranges_of_births_are_near_the_quantiles(births):
    schema = infer_schema(births, BIRTHS).select(["dbwt", "mager", "combgest", "pay"])
    values = read_values(births, schema)
    bounds = {"dbwt": (0.0, 8192.0), "mager": (10.0, 74.0), "combgest": (0.0, 64.0)}
    told = shared_statistics(
        values,
        schema,
        ScalingSettings(source="shared-ranges"),
        StatisticsSettings(noise=CountNoiseSettings(epsilon=1.0), bounds=bounds),
        generator=generator(0, "noise"),
    )
    exact = Scaling.measured(values, schema, 0.01).ranges
    for name, limits in told.ranges.items():
        cell = (bounds[name][1] - bounds[name][0]) / 64
        np.testing.assert_allclose(limits, exact[name], atol=2 * cell)
    assert set(told.ranges) == set(bounds)


def test_adults(data_dir):
    table = read_table(existing(data_dir / "mixed-tables" / "adult-train.csv.gz"), ADULT, ("", "?"))
    schema = infer_schema(table)
    values = read_values(table, schema)
    assert len(schema.unit_feature) == 105
    assert schema["income"] == Feature("income", "binary", ("<=50K", ">50K"))
    assert len(schema["native-country"].categories) == 41
    assert np.isnan(values).sum() == 4262
    encoding = Encoding(schema, Scaling.measured(values, schema, 0.01))
    np.testing.assert_allclose(encoding.decode(encoding.encode(values)), values, atol=1)


def test_proteins(data_dir):
    folder = data_dir / "graph-truth"
    cells = read_table(existing(folder / "sachs.continuous.txt.gz"), delimiter="\t")
    assert {f.kind for f in infer_schema(cells).features} == {"real"}
    levels = read_table(existing(folder / "sachs.discrete.txt.gz"), delimiter="\t")
    assert {f.kind for f in infer_schema(levels).features} == {"integer"}
    told = parse(SchemaSettings, {"kinds": dict.fromkeys(levels.names, "categorical")}, "[features]")
    assert {f.categories for f in infer_schema(levels, told).features} == {("1", "2", "3")}
