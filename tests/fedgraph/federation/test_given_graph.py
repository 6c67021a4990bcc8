import pytest
import torch

from fedgraph.federation.federation import Federation
from fedgraph.federation.given_graph import given_graph
from fedgraph.graph import ClientGraph
from fedgraph.graph.settings import GraphTable
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError, GraphError
from fedgraph.support.settings import parse

NAMES = ("a", "b", "c")


def federation(labels=None, names=NAMES):
    counts = torch.ones(len(names), dtype=torch.int64)
    return Federation(
        names,
        {1: torch.arange(len(names))},
        TaskSpec("classification", (2,), (2,)),
        "x",
        dict.fromkeys(("train", "validation", "test"), counts),
        label_counts=None if labels is None else torch.tensor(labels),
    )


class Source:
    """A data set with a graph of its own, or without."""

    def __init__(self, graph=None):
        self.graph = graph

    def given_graph(self):
        return self.graph


def never():
    raise AssertionError("the data must be opened for source = data only")


def build(table, data_dir, who=None, source=never):
    return given_graph(parse(GraphTable, table, "[graph]"), who or federation(), source, data_dir)


def test_none_is_no_graph(tmp_path):
    assert build({}, tmp_path) is None


def test_complete(tmp_path):
    graph = build({"source": "complete"}, tmp_path)
    assert graph.names == NAMES
    assert graph.dense().tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_clients_that_share_a_main_class_are_linked(tmp_path):
    graph = build({"source": "labels"}, tmp_path, federation([[5, 1], [4, 0], [0, 9]]))
    assert graph.dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_labels_of_data_without_classes(tmp_path):
    with pytest.raises(GraphError, match=r'source = "labels" needs data with classes; this data has none'):
        build({"source": "labels"}, tmp_path)


def test_the_graph_of_the_data_is_cut_down_to_those_present(tmp_path):
    weights = torch.arange(16.0).reshape(4, 4)
    weights = weights + weights.T
    weights.fill_diagonal_(0)
    published = ClientGraph.from_dense(("c", "x", "a", "b"), weights, directed=False)
    graph = build({"source": "data"}, tmp_path, source=lambda: Source(published))
    assert graph.names == NAMES
    order = [2, 3, 0]
    assert torch.equal(graph.dense(), weights[order][:, order])


def test_data_without_a_graph(tmp_path):
    with pytest.raises(GraphError, match="this data set comes without a graph"):
        build({"source": "data"}, tmp_path, source=Source)


def test_a_client_that_the_graph_of_the_data_lacks(tmp_path):
    published = ClientGraph.complete(("a", "b"))
    with pytest.raises(GraphError, match="c"):
        build({"source": "data"}, tmp_path, source=lambda: Source(published))
    kept = build({"source": "data", "missing": "isolate"}, tmp_path, source=lambda: Source(published))
    assert kept.dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_file_from_the_current_folder_then_from_the_data_folder(tmp_path, monkeypatch):
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    data.mkdir()
    (data / "g.csv").write_text("from,to,weight\na,b,2\nb,c,2\n")
    monkeypatch.chdir(here)
    assert build({"source": "file", "path": "g.csv"}, data).dense()[0, 1] == 2
    (here / "g.csv").write_text("from,to,weight\na,b,3\nb,c,3\n")
    assert build({"source": "file", "path": "g.csv"}, data).dense()[0, 1] == 3
    assert build({"source": "file", "path": "g.csv", "binarise": True}, data).dense()[0, 1] == 1


def test_directed_file_made_symmetric(tmp_path):
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\nb,c,2\n")
    table = {"source": "file", "path": str(tmp_path / "g.csv"), "directed": True}
    assert not torch.equal(build(table, tmp_path).dense(), build(table, tmp_path).dense().T)
    symmetric = build({**table, "symmetrise": True}, tmp_path).dense()
    assert torch.equal(symmetric, symmetric.T)
    assert symmetric[2, 1] > 0


def test_missing_file_names_both_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphError, match=rf"no file 'g\.csv' from {tmp_path}, nor in the data folder {tmp_path}/data"):
        build({"source": "file", "path": "g.csv"}, tmp_path / "data")


def test_file_with_clients_that_do_not_take_part(tmp_path):
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\nb,c,1\nc,z,1\n")
    table = {"source": "file", "path": str(tmp_path / "g.csv")}
    with pytest.raises(GraphError, match="z"):
        build(table, tmp_path)
    assert build({**table, "extra": "drop"}, tmp_path).names == NAMES


def test_a_permuted_graph_has_the_same_links_between_other_clients(tmp_path):
    names = tuple("abcdefghij")
    weights = (
        torch.rand(10, 10, generator=torch.Generator().manual_seed(0))
        * torch.rand(10, 10, generator=torch.Generator().manual_seed(1)).round()
    )
    weights = (weights + weights.T).fill_diagonal_(0)
    weights[0, 0] = 2.0
    who, published = federation(names=names), ClientGraph.from_dense(names, weights, directed=False)
    true, one, again, other = (
        build({"source": "data", **seed}, tmp_path, who, lambda: Source(published))
        for seed in ({}, {"permute-seed": 1}, {"permute-seed": 1}, {"permute-seed": 2})
    )
    assert one == again
    assert one.names == names
    assert not torch.equal(one.dense(), true.dense())
    assert not torch.equal(one.dense(), other.dense())
    # Isomorphic: the same spectrum, and the self loop has moved with its client.
    for graph in (one, other):
        torch.testing.assert_close(torch.linalg.eigvalsh(graph.dense()), torch.linalg.eigvalsh(true.dense()))
        assert graph.dense().diagonal().sum() == 2.0


@pytest.mark.parametrize("source", ["none", "complete"])
def test_a_graph_that_is_the_same_for_all_is_not_permuted(source):
    with pytest.raises(ExperimentError, match=f'permute-seed changes nothing about source = "{source}"'):
        parse(GraphTable, {"source": source, "permute-seed": 1}, "[graph]")
