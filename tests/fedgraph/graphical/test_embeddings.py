"""Embeddings as features of a table, from the file to predictions, samples and a client's own model."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from fedgraph.data.columns.table import Table
from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.scaling import Scaling, ScalingSettings
from fedgraph.data.encoding.values import as_table, read_values
from fedgraph.data.schema.agreement import agree
from fedgraph.data.schema.inference import SchemaSettings, infer_schema
from fedgraph.data.schema.json import schema_as_json, schema_from_json
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.data.schema.text import as_text
from fedgraph.graphical.learning.averaging import average
from fedgraph.graphical.learning.dependence import derivatives, forbidden_pairs, violation
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.learning.stitching import ClientRows, GlobalModel, stitch_ngm
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.recovery import RecoverySettings, UnitTable, recover
from fedgraph.graphical.scores.model_scores import score_model, score_samples
from fedgraph.graphical.scores.yardsticks import fit_target
from fedgraph.graphical.statistics import StatisticsSettings, shared_statistics
from fedgraph.privacy.noise.counts import CountNoiseSettings
from fedgraph.support.errors import DataError, ExperimentError, ReplyError

SIZE = 12
TOLD = SchemaSettings(kinds={"scan": "embedding", "ill": "binary"})
SETTINGS = NGMSettings(hidden=8, epochs=40, learning_rate=0.01)
#: The scan tells whether somebody is ill, illness the cost; age has to do with nothing.
NAMES = ("age", "scan", "ill", "cost")
GRAPH = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
WAY = np.random.default_rng(5).normal(size=SIZE) / SIZE**0.5


def table(rows, seed=0):
    draw = np.random.default_rng(seed)
    scan = draw.normal(size=(rows, SIZE))
    ill = scan @ WAY > 0
    cost = 2 * ill + draw.normal(size=rows)
    columns = {"age": draw.uniform(20, 80, rows), **{f"scan.{place}": scan[:, place] for place in range(SIZE)}}
    columns |= {"ill": np.where(ill, "yes", "no"), "cost": cost}
    return Table({name: pa.array(values) for name, values in columns.items()}, "people.csv")


SCHEMA = infer_schema(table(50), TOLD)


def encoded(rows, seed=0):
    values = read_values(table(rows, seed), SCHEMA)
    return Encoding(SCHEMA, Scaling({"age": (20.0, 80.0), "scan": (-2.0, 2.0), "cost": (-2.0, 4.0)})), values


@pytest.fixture(scope="module")
def model():
    encoding, training = encoded(2000)
    _, held_out = encoded(500, 1)
    fit = fit_ngm(SCHEMA, GRAPH, [encoding.encode(training)], [encoding.encode(held_out)], ["one"], SETTINGS, 0)
    assert (fit.violation == 0).all()
    return GraphicalModel.of_one(fit.network, fit.parameters, encoding)


def test_a_schema_knows_its_embeddings_and_tells_of_them():
    assert SCHEMA.names == NAMES
    assert SCHEMA["scan"] == Feature("scan", "embedding", size=SIZE)
    assert (SCHEMA.num_values, SCHEMA.value_slices["ill"], len(SCHEMA.unit_feature)) == (SIZE + 3, slice(13, 14), 15)
    assert schema_from_json(schema_as_json(SCHEMA)) == SCHEMA
    text = as_text(SCHEMA, table(50), TOLD)
    assert "scan  embedding  12 numbers" in text
    assert "no features" not in text
    assert infer_schema(table(50), SchemaSettings(kinds=TOLD.kinds, features=("ill", "scan"))).names == ("ill", "scan")
    with pytest.raises(DataError, match="has no embedding 'plan'"):
        infer_schema(table(50), SchemaSettings(kinds={"plan": "embedding"}))
    with pytest.raises(ReplyError, match="at most 20,000 units"):
        schema_from_json(schema_as_json(SCHEMA).replace('"size": 12', '"size": 20000'))
    for wrong in ({"kind": "real", "size": 2}, {"kind": "embedding", "size": 0}):
        with pytest.raises(DataError, match="cannot consist of"):
            Feature("x", **wrong)


def test_clients_agree_on_embeddings_of_one_size():
    other = Schema((Feature("age", "real"), Feature("scan", "embedding", size=9)))
    assert agree({"a": SCHEMA, "b": SCHEMA}).common == SCHEMA
    with pytest.raises(DataError, match=r"'scan' .*\(12 numbers\) .*\(9 numbers\)"):
        agree({"a": SCHEMA, "b": other})
    assert agree({"a": SCHEMA, "b": other}, "private").common.names == ("age",)


def test_values_become_units_and_come_back():
    encoding, values = encoded(30)
    values[3, 4] = np.nan
    units = encoding.encode(values)
    assert torch.allclose(units[0, 1:13].double(), torch.from_numpy((values[0, 1:13] + 2) / 4))
    assert units[3, 1:13].isnan().all()
    back = encoding.decode(units)
    assert np.isnan(back[3, 1:13]).all()
    np.testing.assert_allclose(back[:3, 1:13], values[:3, 1:13], atol=1e-5)
    assert as_table(values, SCHEMA).names == table(2).names
    again = read_values(as_table(values, SCHEMA), SCHEMA)
    np.testing.assert_allclose(again[:3], values[:3])
    with pytest.raises(DataError, match="'scan' .*12 numbers, .*11 in short"):
        read_values(Table({n: c for n, c in table(2).columns.items() if n != "scan.11"}, "short"), SCHEMA)


def test_numbers_of_an_embedding_have_one_range():
    _, values = encoded(400)
    found = Scaling.measured(values, SCHEMA, 0.05).ranges["scan"]
    np.testing.assert_allclose(found, np.quantile(values[:, 1:13], [0.05, 0.95]))
    scaling = ScalingSettings(source="shared-ranges", quantile=0.05)
    told = shared_statistics(values, SCHEMA, scaling, StatisticsSettings())
    assert told.ranges["scan"] == found
    noise = StatisticsSettings(noise=CountNoiseSettings(epsilon=1), bounds=dict.fromkeys(NAMES, (-100, 100)))
    with pytest.raises(DataError, match="scan, .*ranges of embeddings"):
        shared_statistics(values, SCHEMA, scaling, noise)


def test_what_an_embedding_tells_is_used_and_nothing_forbidden_is(model):
    encoding, values = encoded(1000, 2)
    scores = score_model(model, values, NAMES)
    assert scores["ill"]["auc"] > 0.97
    assert scores["scan"]["rmse"] < 0.98, "1 is that of the mean"
    assert scores["age"]["mae"] > 14, "there is nothing to predict it from"
    found = derivatives(model.network, model.parameters[None], encoding.encode(values[:50])[None])
    unit = SCHEMA.unit_feature
    assert (found.largest[0][forbidden_pairs(model.network)] == 0).all()
    ill = found.largest[0, 13, 1:13]
    assert (ill > 0).all(), "every number of the scan counts"
    assert (found.largest[0][unit == 1][:, unit == 1] == 0).all(), "no number of a scan predicts another"


def test_models_of_clients_and_graphs_side_by_side():
    encoding, values = encoded(40)
    graphs = torch.stack([GRAPH, torch.ones(4, 4).bool()])
    network = Network(SCHEMA, graphs, SETTINGS)
    random = torch.randn(2, network.layout.num_parameters, generator=torch.Generator().manual_seed(0)) * 0.3
    rows = encoding.encode(values).expand(2, -1, -1)
    parameters = network.with_moments(random, rows)
    found = derivatives(network, parameters, rows)
    assert (violation(network, found) == 0).all()
    assert (found.largest[1][~torch.eye(4).bool()[SCHEMA.unit_feature][:, SCHEMA.unit_feature]] > 0).all()
    one = network.over(GRAPH)
    assert torch.allclose(one.forward(parameters[:1], rows[:1]), network.forward(parameters, rows)[:1], atol=1e-5)
    mean = average(one, one.pruned(parameters[[0, 0]]), [10, 30])
    assert torch.allclose(one.forward(mean, rows[:1]), one.forward(parameters[:1], rows[:1]), atol=1e-4)


def test_a_model_is_asked_sampled_and_kept(model, tmp_path):
    _, values = encoded(400, 3)
    scan = [float(number) for number in 2 * WAY]
    assert model.predict({"scan": scan}, "ill").tolist() == ["yes"]
    assert model.predict([{"scan": [-number for number in scan]}, {"scan": None}], "ill")[0] == "no"
    expected = model.predict([{"ill": "yes"}, {"ill": "no"}], "scan")
    assert expected.shape == (2, SIZE)
    assert (expected[0] - expected[1]) @ WAY > 1
    with pytest.raises(DataError, match="scan: .*distributions"):
        model.conditional({"ill": "yes"}, ["scan"])
    with pytest.raises(DataError, match="'scan' .*probabilities"):
        model.predict_proba({"ill": "yes"}, "scan")
    with pytest.raises(DataError, match="'scan' .*embedding: .*12 numbers"):
        model.predict({"scan": [1.0]}, "ill")
    chances = model.conditional({"age": 30, "scan": scan}, ["ill"])["ill"].probabilities
    assert chances[0, 1] > 0.9
    drawn = model.sample(2000)
    assert drawn.names == table(1).names
    rows = read_values(drawn, SCHEMA)
    sick = rows[:, 13] == 1
    assert 0.4 < sick.mean() < 0.6
    assert (rows[sick, 1:13].mean(0) - rows[~sick, 1:13].mean(0)) @ WAY > 1
    given = model.sample(3, {"scan": scan})
    np.testing.assert_allclose(read_values(given, SCHEMA)[:, 1:13], [scan] * 3)
    assert score_samples(model, values, "one", 0)["marginal-distance"] < 0.15
    model.save(tmp_path / "model.safetensors")
    again = GraphicalModel.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict({"ill": "yes"}, "scan"), model.predict({"ill": "yes"}, "scan"))


def test_an_embedding_of_one_client_alone_is_stitched_on(tmp_path):
    encoding, values = encoded(1500)
    names = ("age", "ill", "cost")
    common, whole = SCHEMA.select(names), SCHEMA.select([*names, "scan"])
    order = torch.cat([torch.arange(15)[SCHEMA.slices[name]] for name in (*names, "scan")])
    units = encoding.encode(values)[:, order]
    graph = GRAPH[[0, 2, 3, 1]][:, [0, 2, 3, 1]]
    fit = fit_ngm(common, graph[:3, :3], [units[:1200, :3]], [units[1200:, :3]], ["all"], SETTINGS, 0)
    start = GlobalModel(fit.network, fit.parameters)
    own = stitch_ngm(start, whole, graph, ClientRows("a", units[:1200], units[1200:]), SETTINGS, 0)
    model = GraphicalModel.of_one(own.network, own.parameters, Encoding(whole, encoding.scaling))
    model.save(tmp_path / "a.safetensors")
    model = GraphicalModel.load(tmp_path / "a.safetensors")
    fresh = read_values(table(1000, 4), whole)
    before = GraphicalModel.of_one(fit.network, fit.parameters, Encoding(common, encoding.scaling))
    auc = score_model(model, fresh, ["ill"])["ill"]["auc"]
    assert auc > score_model(before, fresh[:, :3], ["ill"])["ill"]["auc"] + 0.03
    assert own.violation == 0


def test_graphs_with_embeddings_are_recovered_or_refused():
    encoding, values = encoded(1500)
    one = UnitTable("a", NAMES, encoding.encode(values), SCHEMA.unit_feature, ("scan",))
    (found,) = recover(RecoverySettings(), [one], 0)
    assert ("scan", "ill") in found.graph.edges
    assert not any("age" in edge for edge in found.graph.edges)
    with pytest.raises(ExperimentError, match="'ges'.*'scan' .*'a'"):
        recover(RecoverySettings(method="ges"), [one], 0)


def test_yardsticks_look_at_embeddings_and_predict_none():
    _, values = encoded(800)
    for yardstick in ("trees", "linear"):
        found = fit_target(yardstick, SCHEMA, values, "ill").predict(encoded(300, 1)[1])
        assert ((found[:, 1] > 0.5) == (encoded(300, 1)[1][:, 13] == 1)).mean() > 0.8
    with pytest.raises(DataError, match="'scan' .*yardstick"):
        fit_target("trees", SCHEMA, values, "scan")
