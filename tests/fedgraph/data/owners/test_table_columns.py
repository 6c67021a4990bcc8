"""Tables cut by columns."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from fedgraph.data import open_source, parse_data
from fedgraph.data.owners.preparation import Preparation
from fedgraph.data.owners.samples import SAMPLE_SPLITS
from fedgraph.support.errors import DataError, ExperimentError

CSV = """id,age,colour,weight,glucose,ill
p3,30,red,60,5.0,yes
p1,40,blue,?,6.0,no
p2,50,?,?,7.0,
p9,20,red,80,,yes
p5,,blue,70,9.0,no
p6,35,red,75,8.0,yes
"""
OWNERS = {"hospital": ["age"], "lab": ["weight", "colour"], "sugar": ["glucose"]}
TABLE = {"set": "table-columns", "path": "t.csv", "label": "ill", "key-column": "id", "owners": OWNERS}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "t.csv").write_text(CSV)
    return tmp_path


def test_columns_by_owner(folder):
    source = open_source(parse_data({**TABLE, "scaling": "none", "shares": [1.0, 0.0, 0.0]}), folder)
    assert source.client_names() == ["hospital", "lab", "sugar"]
    data = source.load_owners(["lab", "hospital"])
    assert data.keys == ("p1", "p2", "p3", "p5", "p6", "p9")
    assert data.labels.tolist() == [0, -1, 1, 0, 1, 1]
    assert [SAMPLE_SPLITS[split] for split in data.split.tolist()] == ["train", "new"] + ["train"] * 4
    assert data.tasks[0].features == ("weight", "colour=blue", "colour=red")
    assert data.tasks[0].classes == ("no", "yes")
    # Neither weight nor colour of p2 is known, nor the age of p5; only the weight of p1 is missing.
    assert data.present.tolist() == [[True, False, True, True, True, True], [True, True, True, False, True, True]]
    mean = (60 + 80 + 70 + 75) / 4
    lab = [[mean, 1, 0], [0, 0, 0], [60, 0, 1], [70, 1, 0], [75, 0, 1], [80, 0, 1]]
    np.testing.assert_allclose(data.inputs[0], lab)
    assert data.inputs[1].flatten().tolist() == [40, 50, 30, 0, 35, 20]


def test_numbers_are_scaled_and_categories_are_not(folder):
    source = open_source(parse_data({**TABLE, "shares": [1.0, 0.0, 0.0]}), folder)
    inputs = source.load_owners(["lab"]).inputs[0]
    weights = np.array([60, 70, 75, 80])
    # Not of p2, which lab lacks; 0 for the missing weight of p1.
    np.testing.assert_allclose(inputs[1:, 0], (weights - weights.mean()) / weights.std(), rtol=1e-5)
    assert inputs[0].tolist() == [0, 1, 0]
    assert inputs[:, 2].tolist() == [0, 1, 0, 1, 1]


def test_columns_in_parts_of_a_bundled_table(tmp_path):
    settings = parse_data({"set": "table-columns", "bundled": "breast-cancer", "num-owners": 4, "scaling": "none"})
    source = open_source(settings, tmp_path)
    names = source.client_names()
    assert names == ["owner-0", "owner-1", "owner-2", "owner-3"]
    data = source.load_owners(names)
    assert [own.shape[1] for own in data.inputs] == [8, 8, 7, 7]
    bunch = load_breast_cancer()
    np.testing.assert_allclose(torch.cat(data.inputs, 1), bunch.data, rtol=1e-6)
    assert sum((task.features for task in data.tasks), ()) == tuple(bunch.feature_names)
    classes = data.tasks[0].classes
    assert [classes[label] for label in data.labels] == [bunch.target_names[label] for label in bunch.target]
    assert data.keys[:2] == ("row-000000", "row-000001")
    assert source.describe() == "breast-cancer (scikit-learn) by columns, 4 clients, 569 samples of 2 classes"
    assert source.given_graph() is None
    with pytest.raises(DataError, match=r"'owner-0' .*\(8,\), and client 'owner-2' .*\(7,\)"):
        source.load(names)
    assert source.load(["owner-0", "owner-1"]).task.input_shape == (8,)


def test_a_node_needs_the_columns_of_its_own_clients_only(folder, tmp_path):
    (tmp_path / "own").mkdir()
    lines = [",".join(line.split(",")[i] for i in (0, 4, 5)) for line in CSV.splitlines()]
    (tmp_path / "own/t.csv").write_text("\n".join(lines))
    here = open_source(parse_data(TABLE), tmp_path / "own").load_owners(["sugar"])
    there = open_source(parse_data(TABLE), folder).load_owners(["sugar"])
    assert here.keys == there.keys == ("p1", "p2", "p3", "p5", "p6")
    assert torch.equal(here.inputs[0], there.inputs[0])
    assert torch.equal(here.split, there.split)
    with pytest.raises(DataError, match="has no column 'age'"):
        open_source(parse_data(TABLE), tmp_path / "own").load_owners(["hospital"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bundled": "iris"}, "give either path"),
        ({"num-owners": 2}, "give either owners"),
        ({"owners": {"lab": ["age", "age"]}}, "'lab' .*column"),
        ({"owners": {"lab": ["age", "ill"]}}, "'ill', .*label"),
        ({"owners": {"lab": ["id"]}}, "'lab' .*'id', .*key-column"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ExperimentError, match=message):
        parse_data({**TABLE, **changes})


def test_tables_that_cannot_be(folder):
    def load(changes, text=CSV):
        (folder / "other.csv").write_text(text)
        table = {key: value for key, value in {**TABLE, "path": "other.csv", **changes}.items() if value is not None}
        source = open_source(parse_data(table), folder)
        source.load_owners(source.client_names())

    with pytest.raises(DataError, match="num-owners is 9, .*4"):
        load({"owners": None, "num-owners": 9})
    with pytest.raises(DataError, match=r"row 3 .*other\.csv .*'id'"):
        load({}, CSV.replace("p2,", ","))
    with pytest.raises(DataError, match="'p1' occurs"):
        load({}, CSV.replace("p2,", "p1,"))
    with pytest.raises(DataError, match="has no column 'height'"):
        load({"owners": {"lab": ["height"]}})


def test_the_first_rows_alone(folder):
    table = {**TABLE, "first-rows": 4, "shares": [1.0, 0.0, 0.0]}
    data = open_source(parse_data(table), folder).load_owners(["hospital", "sugar"])
    assert data.keys == ("p1", "p2", "p3", "p9")
    bundled = {"set": "table-columns", "bundled": "breast-cancer", "num-owners": 4, "first-rows": 100}
    assert len(open_source(parse_data(bundled), folder).holdings(()).keys) == 100


ALL_TRAIN = {**TABLE, "shares": [1.0, 0.0, 0.0]}


class TestInputsOfAFrozenModel:
    """What comes after training is made as the training samples were, whatever else is in the file."""

    @pytest.fixture
    def prepared(self, folder):
        data = open_source(parse_data(ALL_TRAIN), folder).load_owners(["lab", "hospital"])
        return dict(zip(data.owners, data.preparations, strict=True)), data

    def later(self, folder, text, prepared):
        (folder / "t.csv").write_text(text)
        return open_source(parse_data(ALL_TRAIN), folder).load_owners(["lab", "hospital"], prepared)

    def test_a_file_of_new_samples_alone_without_a_label(self, folder, prepared):
        kept, data = prepared
        found = self.later(folder, "id,weight,age,colour,glucose\nn1,60,30,red,5\nn2,,20,blue,6\n", kept)
        assert found.tasks == data.tasks
        assert found.labels.tolist() == [-1, -1]
        assert found.unscaled == ()
        assert torch.equal(found.inputs[0][0], data.inputs[0][data.keys.index("p3")])
        # A missing weight is the mean of the training samples.
        assert found.inputs[0][1].tolist() == [0, 1, 0]
        assert torch.equal(found.inputs[1][:, 0], data.inputs[1][[2, 5], 0])

    def test_labels_count_as_they_did(self, folder, prepared):
        found = self.later(folder, "id,weight,age,colour,ill\nn1,60,30,red,yes\n", prepared[0])
        assert found.tasks[0].classes == ("no", "yes")
        assert found.labels.tolist() == [1]

    def test_categories_keep_their_places(self, folder, prepared, caplog):
        kept, data = prepared
        text = "id,weight,age,colour,glucose\nn1,60,30,red,5\nn2,70,20,amber,6\n"
        found = self.later(folder, text, kept)
        assert torch.equal(found.inputs[0][0], data.inputs[0][data.keys.index("p3")])
        assert found.inputs[0][1, 1:].tolist() == [0, 0]
        assert "client 'lab': unknown when its model was trained, and counted as missing: colour=amber" in caplog.text

    def test_other_columns_are_refused(self, folder, prepared):
        with pytest.raises(DataError, match=r"'lab': .*\(weight\)"):
            self.later(folder, "id,weight,age,colour\nn1,heavy,30,red\nn2,light,20,red\n", prepared[0])
        with pytest.raises(DataError, match=r"'lab': .*\(colour"):
            self.later(folder, "id,weight,age,colour\nn1,60,30,1\nn2,70,20,2\n", prepared[0])
        with pytest.raises(DataError, match="'colour'"):
            self.later(folder, "id,weight,age\nn1,60,30\n", prepared[0])

    def test_it_is_kept_without_loss(self, prepared):
        for kept in prepared[0].values():
            again = Preparation.of(json.loads(json.dumps(kept.table())))
            assert again.table() == kept.table()
            assert torch.equal(again.centre, kept.centre)


def test_names_of_columns_are_exact(folder):
    source = open_source(parse_data({**TABLE, "owners": {"lab": ["weight"], "sugar": ["gl*"]}}), folder)
    with pytest.raises(DataError, match=r"no column 'gl\*'; its columns: id, .*glucose"):
        source.load_owners(["sugar"])
