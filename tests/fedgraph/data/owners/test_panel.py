"""Windows of many series with common labels."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.data.owners.panel import interpolated
from fedgraph.data.owners.samples import SAMPLE_SPLITS
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.support.errors import DataError


def panel(samples=40, owners=3, steps=6, features=2):
    random = np.random.default_rng(0)
    values = random.normal(60.0, 2.0, (samples, owners, steps, features))
    values[random.random(values.shape) < 0.2] = np.nan
    values[7, 1] = np.nan
    labels = random.integers(4, size=samples)
    labels[[3, 9]] = -1
    return {"values": values, "labels": labels}


def source_of(folder, arrays, **keys):
    np.savez(folder / "panel.npz", **arrays)
    return open_source(parse_data({"set": "panel", "path": "panel.npz", **keys}), folder)


def test_gaps_are_interpolated_as_numpy_does():
    values = panel()["values"].astype(np.float32)
    values[0, 0, :, 1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = interpolated(values)
    assert found.dtype == np.float32
    for index in np.ndindex(40, 3, 2):
        series = values[index[0], index[1], :, index[2]]
        there = np.flatnonzero(np.isfinite(series))
        expected = np.interp(np.arange(6), there, series[there]) if len(there) else series
        np.testing.assert_allclose(found[index[0], index[1], :, index[2]], expected, rtol=1e-6)


def test_windows_labels_and_what_lacks(tmp_path):
    arrays = panel()
    source = source_of(tmp_path, arrays, scaling="none")
    assert source.client_names() == ["owner-000", "owner-001", "owner-002"]
    data = source.load_owners(["owner-001", "owner-000"])
    assert data.tasks[0].input_shape == (6, 2)
    assert (~data.present).nonzero().tolist() == [[0, 7]]
    assert data.labels.tolist() == arrays["labels"].tolist()
    assert [SAMPLE_SPLITS[split] for split in data.split[[3, 9]].tolist()] == ["new", "new"]
    expected = interpolated(arrays["values"].astype(np.float32))[:, 1]
    expected[7] = 0.0
    np.testing.assert_array_equal(data.inputs[0], expected)
    assert data.tasks[0].classes == ("0", "1", "2", "3")
    assert source.given_graph() is None
    assert source.describe() == "panel.npz, 3 clients, 40 samples of 4 classes"


def test_names_and_a_file_at_each_node(tmp_path):
    arrays = panel()
    keys = np.array([f"event-{39 - number:02d}" for number in range(40)])
    texts = {"keys": keys, "classes": np.array(["line", "load", "fault", "none", "other"])}
    whole = source_of(tmp_path, {**arrays, **texts, "owners": np.array(["a", "b", "c"])})
    (tmp_path / "node").mkdir()
    seen = np.arange(0, 40, 2)
    part = {"values": arrays["values"][seen][:, [1]], "labels": arrays["labels"][seen], "keys": keys[seen]}
    node = source_of(tmp_path / "node", {**part, "classes": texts["classes"], "owners": np.array(["b"])})
    here, there = node.load_owners(["b"]), whole.load_owners(["b", "c"])
    assert there.keys == tuple(sorted(keys.tolist()))
    place = [there.keys.index(key) for key in here.keys]
    assert torch.equal(here.split, there.split[place])
    assert torch.equal(here.labels, there.labels[place])
    assert here.tasks[0] == there.tasks[0]
    assert here.tasks[0].classes == ("line", "load", "fault", "none", "other")


def test_the_graph_of_the_settings(tmp_path):
    graph = ClientGraph.from_lists(
        ["owner-002", "owner-000", "owner-001"], ["owner-000"], ["owner-002"], [0.5], directed=False
    )
    write_graph(graph, tmp_path / "graph.npz")
    source = source_of(tmp_path, panel(), graph="graph.npz", clients=["owner-002", "owner-000"])
    given = source.given_graph()
    assert given.names == ("owner-002", "owner-000")
    assert given.dense().tolist() == [[0.0, 0.5], [0.5, 0.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "has no array 'labels'; it holds: values"),
        ({"values": np.zeros((40, 3, 6))}, r"values .*\[samples, owners, steps, features\]"),
        ({"labels": np.zeros(39, dtype=int)}, "labels must be 40 whole numbers"),
        ({"labels": np.zeros(40)}, "labels must be 40 whole numbers"),
        ({"labels": np.full(40, -2)}, "labels must be 40 whole numbers"),
        ({"owners": np.array(["a", "a", "b"])}, "owners .*3 texts"),
        ({"keys": np.array(["a"])}, "keys must be 40 texts"),
        ({"classes": np.array(["a", "b"])}, "labels up to 3 for 2 classes"),
    ],
)
def test_files_that_cannot_be(tmp_path, changes, message):
    arrays = {name: array for name, array in {**panel(), **changes}.items() if array is not None}
    with pytest.raises(DataError, match=message):
        source_of(tmp_path, arrays).load_owners([])


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no")
    for name, message in (
        ("none.npz", "a relative .data. path is looked for beside the experiment file"),
        ("broken.npz", "cannot be read as an .npz file"),
    ):
        with pytest.raises(DataError, match=message):
            open_source(parse_data({"set": "panel", "path": name}), tmp_path).client_names()


def test_an_infinite_reading_is_not_missing(tmp_path):
    arrays = panel()
    arrays["values"][5, 2, 4, 0] = np.inf
    with pytest.raises(DataError, match=r"values\[5, 2, 4\] is infinite"):
        source_of(tmp_path, arrays).client_names()
