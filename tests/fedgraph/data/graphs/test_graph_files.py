"""Files with graphs: what PyTorch Geometric saves, arrays, folders, and files that are not to be trusted."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from fedgraph.data.graphs import are_graphs, save_graphs
from fedgraph.data.graphs.graph_files import GraphFiles
from fedgraph.support.errors import DataError

RING = torch.tensor([[0, 1, 2], [1, 2, 0]])


def data(seed=0):
    return Data(x=torch.full((3, 2), float(seed)), edge_index=RING, y=torch.tensor([0, 1, 0]))


def test_a_folder_has_a_file_or_a_folder_for_each_client(tmp_path):
    torch.save(data(1), tmp_path / "mercy.pt")
    np.savez(tmp_path / "county.npz", x=np.ones((3, 2)), edge_index=RING.numpy(), y=[0, 1, 1])
    (tmp_path / "north").mkdir()
    torch.save(data(2), tmp_path / "north" / "b.pt")
    torch.save([data(3), data(4)], tmp_path / "north" / "a.pt")
    (tmp_path / "README.txt").write_text("what these are")
    (tmp_path / ".hidden.pt").write_text("")
    files = GraphFiles(tmp_path)
    assert (files.names, files.ignored) == (["county", "mercy", "north"], 1)
    assert [float(each["x"][0, 0]) for each in files.read("north")] == [3, 4, 2]
    assert files.read("county")[0]["y"].tolist() == [0, 1, 1]
    assert files.where("mercy") == f"client 'mercy' ({tmp_path}/mercy.pt)"
    torch.save(data(), tmp_path / "mercy.pth")
    with pytest.raises(DataError, match=r"mercy\.pt and mercy\.pth"):
        GraphFiles(tmp_path)


def test_one_file_of_all_clients(tmp_path):
    torch.save({"mercy": data(1), "county": [data(2), data(3)]}, tmp_path / "all.pt")
    files = GraphFiles(tmp_path / "all.pt")
    assert files.names == ["mercy", "county"]
    assert len(files.read("county")) == 2
    with pytest.raises(DataError, match=r"all\.pt .*'west'"):
        files.read("west")
    torch.save(data(), tmp_path / "one.pt")
    with pytest.raises(DataError, match="a file for each client"):
        GraphFiles(tmp_path / "one.pt")
    assert GraphFiles(tmp_path / "one.pt", ["mercy"]).names == ["mercy"]
    assert GraphFiles(Path(f"{tmp_path}/{{client}}.pt"), ["one"]).names == ["one"]


def test_several_graphs_as_arrays(tmp_path):
    np.savez(
        tmp_path / "two.npz", x=np.arange(10).reshape(5, 2), edge_index=[[0, 1, 4], [1, 2, 3]], batch=[0, 0, 0, 1, 1],
        y=[1, 0], edge_weight=[1.0, 2.0, 3.0], train_mask=[True, False],
    )  # fmt: skip
    one, two = GraphFiles(tmp_path / "two.npz", ["mercy"]).read("mercy")
    assert one["edge_index"].tolist() == [[0, 1], [1, 2]]
    assert two["edge_index"].tolist() == [[1], [0]]
    assert two["x"].tolist() == [[6, 7], [8, 9]]
    assert (one["y"].tolist(), two["y"].tolist(), two["edge_weight"].tolist()) == ([1], [0], [3.0])
    assert (one["train_mask"].tolist(), two["train_mask"].tolist()) == ([True], [False])
    np.savez(tmp_path / "two.npz", x=np.ones((3, 1)), edge_index=[[0], [2]], batch=[0, 0, 1])
    with pytest.raises(DataError, match="one graph to another"):
        GraphFiles(tmp_path / "two.npz", ["mercy"])
    np.savez(tmp_path / "two.npz", x=np.ones((3, 1)), edge_index=[[0], [2]], batch=[1, 0, 1])
    with pytest.raises(DataError, match="batch .*3 nodes"):
        GraphFiles(tmp_path / "two.npz", ["mercy"])


class Trap:
    def __reduce__(self):
        return Path.touch, (Path(self.place),)


def test_nothing_in_a_file_is_executed(tmp_path):
    trap = Trap()
    trap.place = str(tmp_path / "sprung")
    torch.save({"x": trap, "edge_index": RING}, tmp_path / "mercy.pt")
    with pytest.raises(DataError, match=r"mercy\.pt .*safety"):
        GraphFiles(tmp_path).read("mercy")
    (tmp_path / "mercy.pt").unlink()
    np.savez(tmp_path / "mercy.npz", x=np.array([trap], dtype=object), edge_index=RING.numpy())
    with pytest.raises(DataError, match=r"mercy\.npz cannot be read"):
        GraphFiles(tmp_path).read("mercy")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.ones(3), "a Tensor where a graph is expected: save a torch_geometric.data.Data"),
        ([data(), 3], "a int where a graph is expected"),
        ({"mercy": {"county": data()}}, "a dict that does not map clients to graphs"),
        ({}, "a dict that does not map clients to graphs"),
    ],
)
def test_files_with_anything_else(tmp_path, content, message):
    torch.save(content, tmp_path / "all.pt")
    with pytest.raises(DataError, match=f"all.pt has {message}"):
        GraphFiles(tmp_path / "all.pt", ["mercy"])


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "mercy.pt").write_bytes(pickle.dumps([1])[:-1] + b"\x00")
    with pytest.raises(DataError, match=r"mercy.pt (cannot be read by torch.load|holds objects other than graphs)"):
        GraphFiles(tmp_path).read("mercy")
    with pytest.raises(DataError, match=r"nowhere: .*\[data\] path"):
        GraphFiles(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty .*NAME\.pt"):
        GraphFiles(tmp_path / "empty")


def test_the_same_graphs_are_the_same_bytes(tmp_path):
    graphs = {"mercy/east": data(1), "county": [data(2)]}
    assert are_graphs(graphs)
    for name in ("one.pt", "two.pt"):
        save_graphs(graphs, tmp_path / name)
    assert (tmp_path / "one.pt").read_bytes() == (tmp_path / "two.pt").read_bytes()
    assert GraphFiles(tmp_path / "one.pt").names == ["mercy/east", "county"]
    assert not are_graphs({"mercy": 3})
    assert not are_graphs([])
    assert not are_graphs({"path": {"mercy": data()}}), "tables of an experiment are no clients"


def test_numbers_and_arrays_of_a_graph_in_memory_are_kept(tmp_path):
    graph = Data(x=np.ones((3, 2)), edge_index=RING, y=1, train_mask=True, name="ring", number=7)
    save_graphs(graph, tmp_path / "one.pt")
    (found,) = GraphFiles(tmp_path / "one.pt", ["mercy"]).read("mercy")
    assert {key: np.asarray(value).tolist() for key, value in found.items()} == {
        "x": [[1, 1]] * 3, "edge_index": RING.tolist(), "y": 1, "train_mask": True,
    }  # fmt: skip
