from __future__ import annotations

import gzip
import json
import os
import pickle
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgraph.graph import ClientGraph, read_graph, write_graph
from fedgraph.support.errors import GraphError

DATA = Path(os.environ.get("FEDGRAPH_DATA", Path(__file__).parents[4] / "shared" / "data"))

quick = settings(max_examples=30, derandomize=True)
names_of_clients = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=4),
    min_size=1,
    max_size=5,
    unique=True,
)


def published(*parts: str) -> Path:
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there: real data is looked for under FEDGRAPH_DATA")
    return path


def directed() -> ClientGraph:
    return ClientGraph.from_lists("abc", ["a", "b", "c"], ["b", "c", "c"], [0.1, 2, 0.25], directed=True)


def undirected() -> ClientGraph:
    return ClientGraph.from_lists("abcd", ["a", "b", "c"], ["b", "c", "c"], [0.1, 2, 1], directed=False)


# Our own files


@quick
@given(st.data(), names_of_clients, st.booleans())
def test_what_is_written_is_read_back(tmp_path_factory, data, names, is_directed):
    count = len(names)
    matrix = data.draw(arrays(np.float32, (count, count), elements=st.floats(-9, 9, width=32)))
    graph = ClientGraph.from_dense(names, matrix, directed=True, allow_negative=True)
    if not is_directed:
        graph = graph.symmetrised()
    folder = tmp_path_factory.mktemp("graph") / "new"
    write_graph(graph, folder / "graph.npz")
    assert read_graph(folder / "graph.npz") == graph
    assert read_graph(folder / "graph.json") == graph
    assert sorted(path.name for path in folder.iterdir()) == ["graph.json", "graph.npz"]


def test_written_files_hold_plain_arrays_and_readable_edges(tmp_path):
    write_graph(undirected(), tmp_path / "graph.npz")
    with np.load(tmp_path / "graph.npz", allow_pickle=False) as archive:
        assert sorted(archive.files) == ["directed", "edge_index", "names", "weights"]
        assert archive["weights"].dtype == np.float32
    table = json.loads((tmp_path / "graph.json").read_text())
    assert table["names"] == ["a", "b", "c", "d"]
    assert table["directed"] is False
    assert table["edges"] == [["a", "b"], ["b", "c"], ["c", "c"]], "each undirected edge once"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".TSV.gz"])
def test_lists_of_edges_are_text_of_any_separator(tmp_path, suffix):
    content = b"from\tto\tweight\na\tb\t0,5\n"
    (tmp_path / f"edges{suffix}").write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    found = read_graph(tmp_path / f"edges{suffix}")
    assert (found.names, found.weights.tolist()) == (("a", "b"), [0.5])


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    write_graph(directed(), tmp_path / "graph.npz")

    def full_disk(stream, **arrays):
        stream.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_graph(undirected(), tmp_path / "graph.npz")
    assert read_graph(tmp_path / "graph.npz") == directed()
    monkeypatch.undo()

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_graph(undirected(), tmp_path / "graph.npz")
    assert read_graph(tmp_path / "graph.npz") == read_graph(tmp_path / "graph.json") == directed()
    assert len(list(tmp_path.iterdir())) == 2


def test_only_npz_is_written(tmp_path):
    with pytest.raises(GraphError, match=r"graph\.csv: .*\.npz"):
        write_graph(directed(), tmp_path / "graph.csv")


# Matrices: direction, names


@pytest.mark.parametrize("keys", [("adj", "sensor_ids"), ("adj", "names"), ("weights", "names"), ("adj_mx", "ids")])
def test_npz_matrices(tmp_path, keys):
    matrix = np.array([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]], np.float32)
    np.savez(tmp_path / "a.npz", **{keys[0]: matrix, keys[1]: np.array([773869, 767541, 767542])})
    graph = read_graph(tmp_path / "a.npz")
    assert graph.names == ("773869", "767541", "767542")
    assert not graph.directed
    np.testing.assert_array_equal(graph.dense().numpy(), matrix)
    assert read_graph(tmp_path / "a.npz", names=["767541", "773869"]).dense().tolist() == [[1, 0.5], [0.5, 1]]
    assert read_graph(tmp_path / "a.npz", directed=True).directed


def test_direction_is_read_from_the_weights(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, adj=np.array([[0, 0.5, 0], [0.25, 0, 1], [0, 1, 0]]), names=list("abc"))
    assert read_graph(path).directed
    with pytest.raises(GraphError, match=r"a\.npz: .*'a' to 'b' .*symmetrise"):
        read_graph(path, directed=False)
    mean = read_graph(path, symmetrise="mean")
    assert not mean.directed
    assert mean.dense().tolist() == [[0, 0.375, 0], [0.375, 0, 1], [0, 1, 0]]
    assert read_graph(path, symmetrise="mean", directed=False) == mean


def test_a_bare_matrix_needs_names(tmp_path):
    np.savez(tmp_path / "a.npz", adj=np.ones((2, 2)))
    assert read_graph(tmp_path / "a.npz", names=["x", "y"]).names == ("x", "y")
    with pytest.raises(GraphError, match="`names`, .*header row"):
        read_graph(tmp_path / "a.npz")
    with pytest.raises(GraphError, match="2 rows but 3 client names"):
        read_graph(tmp_path / "a.npz", names=["x", "y", "z"])


def test_negative_weights_are_refused_unless_meant(tmp_path):
    np.savez(tmp_path / "a.npz", adj=-np.ones((2, 2)), names=["x", "y"])
    with pytest.raises(GraphError, match=r"a\.npz: .*allow_negative=True"):
        read_graph(tmp_path / "a.npz")
    assert read_graph(tmp_path / "a.npz", allow_negative=True).dense().tolist() == [[-1, -1], [-1, -1]]


def test_clients_that_the_file_lacks(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("from,to,weight\na,b,2\n")
    with pytest.raises(GraphError, match=r"a\.csv: .*'z'"):
        read_graph(path, names=["a", "z"])
    graph = read_graph(path, names=["z", "b", "a"], missing="isolate")
    assert graph.dense().tolist() == [[0, 0, 0], [0, 0, 0], [0, 2, 0]]


# Tables


def test_notes_about_a_list(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("from,to,cost\na,b,1\nb,c,2\nc,d,9\nd,d,0\n")
    notes: list[str] = []
    assert read_graph(path, sigma=2.0, notes=notes).without_self_loops().num_edges == 2
    kept, direction = notes
    assert kept.startswith("the client graph has 2 of the 3 edges of its list of distances: ")
    assert "a weight below 0.1 ([graph] cut and sigma)" in kept
    assert "each pair once and is read as directed" in direction
    notes.clear()
    assert read_graph(path, sigma=2.0, directed=False, notes=notes).without_self_loops().num_edges == 2
    assert [note[:36] for note in notes] == ["the client graph has 2 of the 3 edge"]
    notes.clear()
    assert read_graph(path, cut=0, directed=False, notes=notes).without_self_loops().num_edges == 3
    path.write_text("from,to,weight\na,b,1\nb,a,1\n")
    assert not read_graph(path, notes=notes).directed
    assert notes == []


def test_a_list_that_becomes_symmetric_is_not_noted_as_directed(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text("from,to,weight\na,b,1\nb,c,2\n")
    notes: list[str] = []
    assert not read_graph(path, symmetrise="maximum", notes=notes).directed
    assert notes == []


def test_a_list_without_a_header_is_noted_as_distances(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,b,1\nb,a,1\nb,c,2\nc,b,2\n")
    notes: list[str] = []
    assert read_graph(path, cut=0, notes=notes).num_edges == 2
    assert len(notes) == 1
    assert "no header, so its third column was taken for distances; the header from,to,weight would" in notes[0]


def test_text_in_another_encoding_is_noted(tmp_path):
    for text in ("from,to,weight\nZürich,Genève,1\nGenève,Zürich,1\n", ",Zürich,Genève\nZürich,0,1\nGenève,1,0\n"):
        (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
        notes: list[str] = []
        assert read_graph(tmp_path / "a.csv", notes=notes).names == ("Zürich", "Genève")
        assert notes == ["the text of the client graph is not UTF-8 and was read as Windows-1252"]


def test_the_kernel_is_about_distances(tmp_path):
    (tmp_path / "w.csv").write_text("from,to,weight\na,b,1\n")
    np.savez(tmp_path / "m.npz", adj=np.ones((2, 2)), names=["x", "y"])
    for name in ("w.csv", "m.npz"):
        with pytest.raises(GraphError, match="sigma and cut"):
            read_graph(tmp_path / name, sigma=2.0)


def test_lists_of_distances_and_of_weights(tmp_path):
    distances, weights = tmp_path / "d.csv", tmp_path / "w.csv"
    distances.write_text("from,to,cost\na,b,1\nb,a,1\nb,c,2\nz,a,50\n")
    weights.write_text("from,to,weight\na,b,1\nb,a,1\nb,c,2\n")
    expected = ClientGraph.from_distance_list("abb", "bac", [1.0, 1.0, 2.0], names="abc", cut=0, directed=True)
    assert expected.num_edges == 3
    assert read_graph(distances, names="abc", cut=0) == expected
    assert read_graph(distances, names="abc", sigma=2.0, cut=0.5).dense()[0, 1] == pytest.approx(np.exp(-0.25))
    assert read_graph(weights).dense().tolist() == [[0, 1, 0], [1, 0, 2], [0, 0, 0]]
    assert read_graph(weights).directed
    assert read_graph(weights, directed=False).dense().tolist() == [[0, 1, 0], [1, 0, 2], [0, 2, 0]]
    with pytest.raises(GraphError, match=r"d\.csv: .*'y'"):
        read_graph(distances, names="abcy", cut=0)


def test_distances_of_which_the_kernel_leaves_nothing(tmp_path):
    for name, head in (("bare.csv", ""), ("named.csv", "from,to,distance\n")):
        (tmp_path / name).write_text(f"{head}north,east,100\neast,south,50\nsouth,west,100\nwest,north,100\n")
        with pytest.raises(GraphError, match="4 distances.*from,to,weight"):
            read_graph(tmp_path / name)


def villages(tmp_path, apart):
    """Pairs of places, each pair close together, and these pairs far apart at all distances."""
    names = [f"p{number}" for number in range(12)]
    places = np.array([[40.0 * (number // 2) ** 2 + apart[number % 2 and number // 2], 0] for number in range(12)])
    lines = ["from,to,distance"]
    for one, first in zip(names, places, strict=True):
        lines += [
            f"{one},{other},{np.abs(first - second).sum():g}"
            for other, second in zip(names, places, strict=True)
            if one != other
        ]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "d.csv"


def test_a_kernel_that_isolates_most_clients_is_an_error_with_two_ways_out(tmp_path):
    path = villages(tmp_path, [1, 10, 12, 14, 16, 18])
    with pytest.raises(GraphError, match="sigma = 2 .*10 of 12") as caught:
        read_graph(path, sigma=2)
    message = str(caught.value)
    assert "or a lower cut than 0.1" in message
    wider = float(re.search(r"such as ([\d.]+),", message)[1])
    assert len(read_graph(path, sigma=wider).isolated) <= 2
    assert len(read_graph(path, sigma=2, cut=1e-40).isolated) == 0


def test_the_usual_kernel_never_isolates_most_clients(tmp_path):
    rows = [
        ("a", "b", 100.0),
        ("c", "d", 99.0),
        *((f"p{n}", f"q{n}", 100.0 + n / 50) for n in range(12)),
        ("a", "c", 1.0),
    ]
    lines = [f"{one},{other},{distance}" for one, other, distance in rows]
    (tmp_path / "d.csv").write_text("from,to,distance\n" + "\n".join(lines) + "\n")
    notes: list[str] = []
    graph = read_graph(tmp_path / "d.csv", directed=False, notes=notes)
    assert len(graph.isolated) <= 2
    assert notes[0].startswith("the usual sigma, the deviation of distances, leaves")
    assert "sigma is" in notes[0]


def test_square_tables(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b",a,b\na,0,2\nb,2,0\n"))
    assert read_graph(path) == ClientGraph.from_lists("ab", ["a"], ["b"], [2], directed=False)


# Other people's formats


@pytest.mark.parametrize("graph", [directed(), undirected()])
@pytest.mark.parametrize("edges", ["links", "edges"])
def test_networkx_files(tmp_path, graph, edges):
    found = graph.to_networkx()
    table = nx.node_link_data(found, edges=edges)
    (tmp_path / "a.json").write_text(json.dumps(table))
    nx.write_graphml(found, tmp_path / "a.graphml")
    nx.write_gml(found, tmp_path / "a.gml")
    for name in ("a.json", "a.graphml", "a.gml"):
        assert read_graph(tmp_path / name) == graph
    assert set(read_graph(tmp_path / "a.json", weight="nothing").weights.tolist()) == {1.0}


def test_names_of_other_formats_are_text_and_not_missing(tmp_path):
    np.savez(tmp_path / "a.npz", adj=np.eye(2), names=[0.0, 1.0])
    assert read_graph(tmp_path / "a.npz").names == ("0", "1")
    (tmp_path / "a.json").write_text('{"nodes": [{"id": null}, {"id": 1}], "links": [{"source": null, "target": 1}]}')
    with pytest.raises(GraphError, match=r"a\.json: the nodes: the name of a client is missing \(None\)"):
        read_graph(tmp_path / "a.json")
    np.savez(tmp_path / "b.npz", adj=np.eye(2) * 1j, names=["a", "b"])
    with pytest.raises(GraphError, match=r"b\.npz: .* must be real numbers"):
        read_graph(tmp_path / "b.npz")


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_dcrnn_pickle(tmp_path, protocol):
    matrix = np.array([[1, 0.5], [0, 1]], np.float32)
    content = [["773869", "767541"], {"773869": 0, "767541": 1}, matrix]
    (tmp_path / "adj_mx.pkl").write_bytes(pickle.dumps(content, protocol))
    graph = read_graph(tmp_path / "adj_mx.pkl")
    assert graph.names == ("773869", "767541")
    assert graph.directed
    np.testing.assert_array_equal(graph.dense().numpy(), matrix)
    (tmp_path / "bare.pickle").write_bytes(pickle.dumps(matrix, protocol))
    assert read_graph(tmp_path / "bare.pickle", names=["773869", "767541"]) == graph


class Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_pickle_that_runs_a_command_is_refused_and_not_run(tmp_path):
    path = tmp_path / "adj_mx.pkl"
    path.write_bytes(pickle.dumps([["a"], {}, Runs(f"touch {tmp_path / 'ran'}")]))
    with pytest.raises(GraphError, match=rf"adj_mx\.pkl: it asks to load '{os.system.__module__}\.system'"):
        read_graph(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "unknown kind of graph file; known formats: .*DCRNN"),
        ("a.npz", b"nonsense", "is not a graph file.*known formats"),
        ("a.npz", b"PK\x03\x04broken", "is not a graph file.*known formats"),
        ("a.csv.gz", b"nonsense", "cannot be read.*known formats"),
        ("a.csv", b"\xff\xfe\x00", "is not a graph file"),
        ("a.json", b"{", "is not a graph file.*JSONDecodeError"),
        ("a.json", b"[1]", "unknown kind of JSON"),
        ("a.json", b'{"format": "fedgraph client graph"}', "is not a graph file.*KeyError"),
        ("a.graphml", b"<", "is not a graph file"),
        ("a.gml", b"nonsense", "is not a graph file"),
        ("a.pkl", b"nonsense", "not a pickle of plain values"),
        ("a.pkl", pickle.dumps("text"), r"\[sensor_ids, .*str"),
        ("a.pkl", pickle.dumps({"speed": 1}), "adj, .*speed"),
    ],
)
def test_unreadable_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GraphError, match=message) as error:
        read_graph(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name))


def test_an_absent_file_and_object_arrays(tmp_path):
    with pytest.raises(GraphError, match=r"graph\.npz: cannot be read"):
        read_graph(tmp_path / "graph.npz")
    np.savez(tmp_path / "a.npz", adj=np.array([[None]]), names=["a"], allow_pickle=True)
    with pytest.raises(GraphError, match=r"a\.npz: is not a graph file"):
        read_graph(tmp_path / "a.npz")


# The published files


def test_metr_la_graph():
    graph = read_graph(published("metr-la", "adj_mx.npz"))
    assert (graph.num_clients, graph.num_edges, graph.directed) == (207, 1722, True)
    assert graph.names[0] == "773869"
    mixed = graph.propagate(torch.ones(207, 3), 4, "random-walk")
    torch.testing.assert_close(mixed, torch.ones(207, 3))
    some = graph.names[100:70:-1]
    matrix = graph.dense()
    picked = torch.tensor([graph.names.index(name) for name in some])
    assert torch.equal(read_graph(published("metr-la", "adj_mx.npz"), some).dense(), matrix[picked][:, picked])


def test_the_kernel_over_pems_bay_road_distances_is_the_published_graph():
    expected = read_graph(published("pems-bay", "adj_mx_bay.npz"))
    result = read_graph(published("pems-bay", "distances_bay_2017.csv.gz"), expected.names)
    assert (result.num_clients, result.num_edges, result.directed) == (325, 2694, True)
    torch.testing.assert_close(result.dense(), expected.dense(), rtol=1e-5, atol=1e-6)
