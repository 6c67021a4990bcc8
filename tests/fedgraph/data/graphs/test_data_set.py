"""What a data set of graphs loads: classes, splits, and clients that do not fit each other."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from fedgraph.data import OwnData, open_source, parse_data
from fedgraph.support.errors import DataError, ExperimentError


def data(nodes=20, features=3, classes=2, **more):
    node = torch.arange(nodes)
    given = {"y": node % classes, **more}
    return Data(
        x=torch.randn(nodes, features, generator=torch.Generator().manual_seed(nodes)),
        edge_index=torch.cat([torch.stack([node, node.roll(1)]), torch.stack([node.roll(1), node])], 1),
        **given,
    )


def source(folder, clients, own=None, **keys):
    for name, graphs in clients.items():
        torch.save(graphs, folder / f"{name}.pt")
    return open_source(parse_data({"set": "graphs", "path": str(folder), **keys}), folder, own)


def rows(loaded, split):
    table = loaded.splits[split].rows
    return [own[own >= 0].tolist() for own in table]


def test_nodes_are_split_by_seed_and_name(tmp_path):
    clients = {"mercy": data(20), "county": data(30)}
    found = source(tmp_path, clients)
    both, alone = found.load(["mercy", "county"]), source(tmp_path, clients).load(["county"])
    counts = {split: each.num_examples.tolist() for split, each in both.splits.items()}
    assert counts == {"train": [14, 21], "validation": [2, 3], "test": [4, 6]}
    assert [place - 20 for place in rows(both, "test")[1]] == rows(alone, "test")[0]
    other = source(tmp_path, clients, **{"split-seed": 1}).load(["county"])
    assert rows(other, "test") != rows(alone, "test")
    every = sorted(place for split in both.splits for place in rows(both, split)[0])
    assert every == list(range(20)), "each node is in one split"
    assert both.label_counts.sum(1).tolist() == [14, 21]
    assert (both.task.positive, both.task.level, both.task.input_shape) == (1, "node", (3,))


def test_masks_of_the_data_and_nodes_without_a_class(tmp_path):
    node = torch.arange(20)
    masks = {"train_mask": node < 5, "val_mask": node == 5, "test_mask": node > 15}
    graph = data(20, **masks)
    graph.y[0], graph.y[19] = -1, -1
    found = source(tmp_path, {"mercy": graph})
    loaded = found.load(["mercy"])
    assert rows(loaded, "train") == [[1, 2, 3, 4]]
    assert (rows(loaded, "validation"), rows(loaded, "test")) == ([[5]], [[16, 17, 18]])
    drawn = source(tmp_path, {"mercy": graph}, masks="drawn").load(["mercy"])
    assert sum(len(rows(drawn, split)[0]) for split in drawn.splits) == 18
    graph.y[:5] = -1
    with pytest.raises(DataError, match=r"mercy\.pt\): .*train_mask"):
        source(tmp_path, {"mercy": graph}).load(["mercy"])


def test_whole_graphs_are_examples(tmp_path):
    graphs = [data(4 + place, y=None) for place in range(10)]
    for place, graph in enumerate(graphs):
        graph.y = torch.tensor([place % 3])
    found = source(tmp_path, {"mercy": graphs}, level="graph", classes=["low", "middle", "high"])
    loaded = found.load(["mercy"])
    assert loaded.splits["train"].num_examples.tolist() == [7]
    assert loaded.task.classes == ("low", "middle", "high")
    assert found.describe() == f"{tmp_path.name}, 1 client with 10 graphs with 85 nodes in all, classes of whole graphs"


@pytest.mark.parametrize(
    ("clients", "keys", "message"),
    [
        ({"a": data(), "b": data(features=4)}, {}, r"/b\.pt. has 4 .*'a' .*3"),
        ({"a": data(), "b": data(y=None)}, {}, r"/b\.pt. .*y is missing"),
        ({"a": data(classes=3)}, {"classes": 2}, r"/a\.pt. .*class 2"),
        ({"a": data(classes=1)}, {}, "only one class"),
        ({"a": data(2)}, {}, r"/a\.pt. .*too few"),
        ({"a": data()}, {"level": "graph"}, "20 classes, .*level = .node."),
    ],
)  # fmt: skip
def test_clients_that_do_not_fit(tmp_path, clients, keys, message):
    found = source(tmp_path, clients, **keys)
    with pytest.raises(DataError, match=message):
        found.load(list(clients))


def test_strangers_and_what_people_should_know(tmp_path):
    one_way = data(20, edge_attr=torch.ones(40, 2))
    one_way.edge_index = one_way.edge_index[:, :20]
    lonely = data(30)
    lonely.edge_index = lonely.edge_index[:, :0]
    found = source(tmp_path, {"mercy": one_way, "county": lonely})
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=f"{tmp_path.name} has no client 'west'; its clients: county, mercy"):
        found.load(["west"])
    told = open_source(found.settings, tmp_path).describe()
    assert told.startswith(
        f"{tmp_path.name}, 2 clients with a graph of 20 to 30 nodes each, classes of nodes; 1 other files"
    )
    for note in ("not given edge_attr", "edges of 1 client lead one way only", "1 client has no edges"):
        assert note in told


@pytest.mark.parametrize(("unknown", "told"), [(-1, False), (255, True)])
def test_classes_that_no_node_has_are_said(tmp_path, unknown, told):
    graph = data(20)
    graph.y[:4] = unknown
    found = source(tmp_path, {"mercy": graph, "county": data(30)})
    assert ("253 of 256 classes have no node, the first is 2:" in found.describe()) is told
    assert "have no node" not in source(tmp_path, {}, classes=256).describe()


def test_a_node_with_a_file_of_its_own(tmp_path):
    torch.save(data(), tmp_path / "own.pt")
    own = OwnData(tmp_path / "own.pt", ("mercy",))
    settings = parse_data({"set": "graphs", "classes": 2})
    found = open_source(settings, tmp_path, own)
    assert found.client_names() == ["mercy"]
    assert found.load(["mercy"]).splits["train"].num_examples.tolist() == [14]
    assert found.describe().startswith("own data, 1 client with a graph of 20 nodes, ")
    with pytest.raises(DataError, match=r"\[data\] classes"):
        open_source(parse_data({"set": "graphs"}), tmp_path, own).load(["mercy"])
    several = open_source(settings, tmp_path, OwnData(tmp_path / "{client}.pt", ("own",)))
    assert several.load(["own"]).names == ("own",)
    folder = open_source(settings, tmp_path, OwnData(tmp_path, ("mercy",)))
    assert folder.load(["mercy"]).names == ("mercy",), "a folder of graphs of one client"


def test_the_form_reads_new_graphs_and_refuses_others(tmp_path):
    form = source(tmp_path, {"mercy": data()}).load(["mercy"]).preprocessing.form
    new = data(6, y=None)
    torch.save(new, tmp_path / "new.pt")
    found = form.read(tmp_path / "new.pt", "mercy")
    loaded = found.cohort({})
    assert loaded.splits["test"].num_examples.tolist() == [6]
    assert found.known(loaded) is None
    table = found.answers(loaded, torch.tensor([[[0.0, 1.0]] * 6]))
    assert list(table.columns) == ["client", "graph", "node", "predicted", "probability 0", "probability 1"]
    assert table["node"].tolist() == list(range(6))
    assert isinstance(table, pd.DataFrame)
    assert np.allclose(table["probability 1"], 1 / (1 + np.exp(-1)))
    for bad, message in ((data(features=5), "has 5 features of a node, and those of training had 3"),
                         (data(classes=4), "has the class 3, and there were 2 in training")):  # fmt: skip
        torch.save(bad, tmp_path / "new.pt")
        with pytest.raises(DataError, match=message):
            form.read(tmp_path / "new.pt", None)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("classes", 1, "at least two classes"),
        ("classes", ["a", "b", "a"], "must differ"),
        ("lable", "y", r"\[data\] \(set graphs\) .*'lable'"),
    ],
)
def test_settings_that_cannot_be(key, value, message):
    with pytest.raises(ExperimentError, match=message):
        parse_data({"set": "graphs", key: value})
