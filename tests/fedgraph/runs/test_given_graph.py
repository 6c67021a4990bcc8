import logging
from importlib import import_module

import pytest
import torch

from fedgraph.experiment import load_experiment, parse_experiment
from fedgraph.federation.federation import Federation
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.graph.settings import GraphTable
from fedgraph.models.base import TaskSpec
from fedgraph.runs import RunFolder, client_coordinates, given_graph
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


@pytest.fixture
def published(monkeypatch):
    """``published(graph)``: the data set comes with this graph; otherwise it must not be opened."""

    def publish(graph):
        source = type("Source", (), {"given_graph": lambda self: graph})()
        monkeypatch.setattr(module, "open_source", lambda settings, data_dir: source)

    module = import_module("fedgraph.runs.given_graph")
    monkeypatch.setattr(module, "open_source", None)
    return publish


def experiment(graph, **data):
    return parse_experiment(
        {
            "experiment": {"name": "small", "method": "sfl"},
            "data": {"set": "digits", **data},
            "model": {"name": "mlp"},
            "graph": graph,
        }
    )


@pytest.fixture
def build(published):
    def build(graph, data_dir, who=None, **data):
        return given_graph(experiment(graph, **data), who or federation(), data_dir)

    return build


def test_none_is_no_graph(build, tmp_path):
    assert build({}, tmp_path) is None


def test_complete(build, tmp_path):
    graph = build({"source": "complete"}, tmp_path)
    assert graph.names == NAMES
    assert graph.dense().tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_clients_that_share_a_main_class_are_linked(build, tmp_path):
    graph = build({"source": "labels"}, tmp_path, federation([[5, 1], [4, 0], [0, 9]]))
    assert graph.dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_labels_of_data_without_classes(build, tmp_path):
    with pytest.raises(GraphError, match='source = "labels" needs data with classes'):
        build({"source": "labels"}, tmp_path)


def test_the_graph_of_the_data_is_cut_down_to_those_present(build, published, tmp_path):
    weights = torch.arange(16.0).reshape(4, 4)
    weights = weights + weights.T
    weights.fill_diagonal_(0)
    published(ClientGraph.from_dense(("c", "x", "a", "b"), weights, directed=False))
    graph = build({"source": "data"}, tmp_path)
    assert graph.names == NAMES
    order = [2, 3, 0]
    assert torch.equal(graph.dense(), weights[order][:, order])


def test_data_without_a_graph(build, published, tmp_path):
    published(None)
    with pytest.raises(GraphError, match="the data set has no graph"):
        build({"source": "data"}, tmp_path)


def test_a_client_that_the_graph_of_the_data_lacks(build, published, tmp_path):
    published(ClientGraph.complete(("a", "b")))
    with pytest.raises(GraphError, match="c"):
        build({"source": "data"}, tmp_path)
    kept = build({"source": "data", "missing": "isolate"}, tmp_path)
    assert kept.dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_file_from_the_current_folder_then_from_the_data_folder(build, tmp_path, monkeypatch):
    here, data = tmp_path / "here", tmp_path / "data"
    here.mkdir()
    data.mkdir()
    (data / "g.csv").write_text("from,to,weight\na,b,2\nb,c,2\n")
    monkeypatch.chdir(here)
    assert build({"source": "file", "path": "g.csv"}, data).dense()[0, 1] == 2
    (here / "g.csv").write_text("from,to,weight\na,b,3\nb,c,3\n")
    assert build({"source": "file", "path": "g.csv"}, data).dense()[0, 1] == 3
    assert build({"source": "file", "path": "g.csv", "binarise": True}, data).dense()[0, 1] == 1


def test_directed_file_made_symmetric(build, tmp_path):
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\nb,c,2\n")
    table = {"source": "file", "path": str(tmp_path / "g.csv"), "directed": True}
    assert not torch.equal(build(table, tmp_path).dense(), build(table, tmp_path).dense().T)
    symmetric = build({**table, "symmetrise": True}, tmp_path).dense()
    assert torch.equal(symmetric, symmetric.T)
    assert symmetric[2, 1] > 0


def test_missing_file_names_both_places(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GraphError, match=rf"no file 'g\.csv' in {tmp_path} or the data folder {tmp_path}/data"):
        build({"source": "file", "path": "g.csv"}, tmp_path / "data")


def test_file_with_clients_that_do_not_take_part(build, tmp_path):
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\nb,c,1\nc,z,1\n")
    table = {"source": "file", "path": str(tmp_path / "g.csv")}
    with pytest.raises(GraphError, match=r"g\.csv: .*'z'"):
        build(table, tmp_path)
    assert build({**table, "extra": "drop"}, tmp_path).names == NAMES
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\nb,cc,1\n")
    with pytest.raises(GraphError, match=r"g\.csv: the graph has no client 'c' \(it has 'cc'\)"):
        build(table, tmp_path)


def test_a_permuted_graph_has_the_same_links_between_other_clients(build, published, tmp_path):
    names = tuple("abcdefghij")
    weights = (
        torch.rand(10, 10, generator=torch.Generator().manual_seed(0))
        * torch.rand(10, 10, generator=torch.Generator().manual_seed(1)).round()
    )
    weights = (weights + weights.T).fill_diagonal_(0)
    weights[0, 0] = 2.0
    who = federation(names=names)
    published(ClientGraph.from_dense(names, weights, directed=False))
    true, one, again, other = (
        build({"source": "data", **seed}, tmp_path, who)
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
@pytest.mark.parametrize("key", ["permute-seed", "neighbours"])
def test_a_graph_that_is_the_same_for_all_is_not_changed(source, key):
    with pytest.raises(ExperimentError, match=f'{key} means nothing with source = "{source}"'):
        parse(GraphTable, {"source": source, key: 1}, "[graph]")


def test_the_strongest_neighbours_before_weights_are_changed(build, tmp_path):
    (tmp_path / "g.csv").write_text("from,to,weight\na,b,1\na,c,2\nb,c,3\nc,a,4\nc,z,9\nc,b,5\n")
    table = {"source": "file", "path": str(tmp_path / "g.csv"), "neighbours": 1, "extra": "drop"}
    assert build(table, tmp_path).dense().tolist() == [[0, 0, 2], [0, 0, 3], [0, 5, 0]]
    assert build({**table, "binarise": True, "symmetrise": True}, tmp_path).dense().tolist() == [
        [0, 0, 1], [0, 0, 1], [1, 1, 0],
    ]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Folder of a finished run, which was given one graph and has learned another."""
    folder = RunFolder.create(experiment({}), tmp_path / "runs")
    write_graph(ClientGraph.complete(("c", "b", "a")), folder.path / "graph.npz")
    matrix = torch.tensor([[0.5, 0.0, 2.0], [0.0, 0.0, 0.0], [3.0, 4.0, 0.0]])
    write_graph(ClientGraph.from_dense(("c", "b", "a"), matrix, directed=True), folder.path / "learned-graph.npz")
    folder.write_summary({})
    return folder


def of_run(folder, **keys):
    return {"source": "run", "path": str(folder.path), **keys}


def test_the_graph_that_a_run_has_learned_or_was_given(build, run, tmp_path):
    assert build(of_run(run), tmp_path).dense().tolist() == [[0, 4, 3], [0, 0, 0], [2, 0, 0.5]]
    assert build(of_run(run, neighbours=1), tmp_path).dense().tolist() == [[0, 4, 0], [0, 0, 0], [2, 0, 0.5]]
    assert build(of_run(run, symmetrise=True, binarise=True), tmp_path).dense().tolist() == [
        [0, 1, 1], [1, 0, 0], [1, 0, 1],
    ]  # fmt: skip
    with pytest.raises(GraphError, match="d"):
        build(of_run(run), tmp_path, federation(names=("a", "b", "d")))
    apart = build(of_run(run, missing="isolate", extra="drop"), tmp_path, federation(names=("a", "b", "d")))
    assert apart.dense().tolist() == [[0, 4, 0], [0, 0, 0], [0, 0, 0]]
    (run.path / "learned-graph.npz").unlink()
    assert build(of_run(run), tmp_path) == ClientGraph.complete(NAMES)


def test_a_run_without_a_graph_that_can_be_used(build, run, tmp_path):
    for name in ("learned-graph.npz", "graph.npz"):
        (run.path / name).unlink()
    with pytest.raises(GraphError, match="no client graph: use a run with a"):
        build(of_run(run), tmp_path)
    (run.path / "summary.json").unlink()
    with pytest.raises(GraphError, match=r"is not finished: finish it to use its graph \(fedgraph run --resume"):
        build(of_run(run), tmp_path)
    with pytest.raises(GraphError, match=r"\[graph\] path: .* is not a run folder"):
        build({"source": "run", "path": str(tmp_path)}, tmp_path)
    with pytest.raises(ExperimentError, match='source = "run" needs a path'):
        experiment({"source": "run"})


def test_a_run_is_looked_for_beside_the_experiment_then_from_here(build, run, tmp_path, monkeypatch):
    file = tmp_path / "elsewhere" / "second.toml"
    file.parent.mkdir()
    file.write_text(experiment({"source": "run", "path": f"runs/{run.name}"}).as_toml())
    monkeypatch.chdir(tmp_path)
    assert load_experiment(file).graph.path == str(run.path)
    beside = run.path.rename(file.parent / run.name)
    assert load_experiment(file, [f"graph.path={run.name}"]).graph.path == str(beside)


def test_a_run_with_other_data_may_have_other_clients_of_the_same_names(build, run, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "fedgraph"):
        build(of_run(run), tmp_path)
        assert not caplog.records
        build(of_run(run), tmp_path, **{"partition-seed": 5})
    differing = f"partition-seed is 0 in {run.name} and 5 in this experiment"
    assert f"has other [data] ({differing}); its clients are matched by name" in caplog.text


COORDINATES = {"b": (50.5, 8.25), "a": (50.0, 8.0)}


def with_coordinates(path):
    return parse_experiment(
        {
            "experiment": {"method": "local"},
            "data": {"set": "digits"},
            "model": {"name": "mlp"},
            "graph": {"coordinates": str(path)} if path else {},
        }
    )


@pytest.mark.parametrize(
    "text",
    [
        "index,sensor_id,latitude,longitude\n0,a,50,8\n1,b,50.5,8.25\n2,z,1,1\n",
        "Lng,Lat,Name\n8,50,a\n8.25,50.5,b\n",
        "a,50,8\nb,50.5,8.25\n",
    ],
)
def test_places_of_clients(text, tmp_path, monkeypatch):
    (tmp_path / "places.csv").write_text(text)
    assert client_coordinates(with_coordinates(tmp_path / "places.csv"), NAMES, tmp_path) == COORDINATES
    # By the data folder, and as the file that comes with a data set.
    assert client_coordinates(with_coordinates("places.csv"), NAMES, tmp_path) == COORDINATES
    source = type("Source", (), {"coordinates": tmp_path / "places.csv"})()
    monkeypatch.setattr(import_module("fedgraph.runs.given_graph"), "open_source", lambda settings, data_dir: source)
    assert client_coordinates(with_coordinates(None), NAMES, tmp_path) == COORDINATES


def test_places_that_cannot_be_read(tmp_path):
    assert client_coordinates(with_coordinates(None), NAMES, tmp_path) == {}
    with pytest.raises(GraphError, match="coordinates: no file 'none.csv'"):
        client_coordinates(with_coordinates("none.csv"), NAMES, tmp_path)
    for text, message in (
        ("name,latitude\na,1\n", "needs columns name, latitude and longitude; got name, latitude"),
        ("a,north,8\n", "each line must be name, latitude, longitude"),
    ):
        (tmp_path / "places.csv").write_text(text)
        with pytest.raises(GraphError, match=message):
            client_coordinates(with_coordinates(tmp_path / "places.csv"), NAMES, tmp_path)


def test_the_places_of_metr_la(data_dir, tmp_path, run_experiment):
    if not (data_dir / "metr-la" / "graph_sensor_locations.csv").exists():
        pytest.skip("needs METR-LA")
    tables = {
        "experiment": {"name": "places", "method": "local", "rounds": 1},
        "data": {"set": "metr-la", "part": "29", "first-steps": 600},
        "model": {"name": "mlp", "hidden": [2]},
        "train": {"local-steps": 1, "batch-size": 8},
        "evaluation": {"splits": ["test"]},
    }
    places = run_experiment(tables).coordinates()
    assert len(places) == 29
    assert all(33 < latitude < 35 and -119 < longitude < -117 for latitude, longitude in places.values())


def test_the_kernel_of_a_list_of_distances_is_chosen_and_told(tmp_path):
    (tmp_path / "d.csv").write_text("from,to,distance\na,b,1\nb,c,9\n")
    table = {"source": "file", "path": str(tmp_path / "d.csv"), "sigma": 2.0, "directed": False}
    notes = []
    graph = given_graph(experiment(table), federation(), tmp_path, notes)
    assert graph.num_edges == 1
    assert notes[0].startswith("the client graph has 1 of the 2 edges of its list of distances")
    assert notes[1:] == ["1 of 3 clients is isolated in the client graph (no edges)"]
    notes.clear()
    assert given_graph(experiment({**table, "cut": 0}), federation(), tmp_path, notes).num_edges == 2
    assert notes == []


def test_a_list_that_is_made_symmetric_is_not_said_to_be_directed(tmp_path):
    (tmp_path / "w.csv").write_text("from,to,weight\na,b,1\nb,c,2\n")
    table, notes = {"source": "file", "path": str(tmp_path / "w.csv")}, []
    given_graph(experiment(table), federation(), tmp_path, notes)
    assert "read as directed" in notes[0]
    notes.clear()
    graph = given_graph(experiment({**table, "symmetrise": True}), federation(), tmp_path, notes)
    assert torch.equal(graph.dense(), graph.dense().T)
    assert notes == []


@pytest.mark.parametrize("keys", [{"sigma": 2.0}, {"cut": 0.5}])
def test_the_kernel_is_that_of_a_file(keys):
    with pytest.raises(ExperimentError, match=f'{next(iter(keys))} is about a list of distances, source = "file"'):
        experiment({"source": "complete", **keys})


def test_notes_about_the_graph_reach_the_summary(digits_tables, run_experiment, tmp_path):
    (tmp_path / "d.csv").write_text(
        "from,to,distance\nclient-0,client-1,1\nclient-1,client-2,90\nclient-0,client-2,1\n"
    )
    path = str(tmp_path / "d.csv")
    digits_tables["graph"] = {"source": "file", "path": path, "sigma": 2.0, "missing": "isolate"}
    notes = run_experiment(digits_tables).summary()["notes"]
    assert notes[0].startswith("the client graph has 2 of the 3 edges")
    assert "read as directed" in notes[1]
    assert notes[2].startswith("3 of 6 clients are isolated")


def test_hints_are_keys_of_the_experiment(tmp_path):
    (tmp_path / "w.csv").write_text("from,to,weight\na,b,1\nb,x,1\n")
    table = {"source": "file", "path": str(tmp_path / "w.csv")}
    with pytest.raises(GraphError, match=r'\[graph\] missing = "isolate"'):
        given_graph(experiment(table), federation(), tmp_path)
    with pytest.raises(GraphError, match=r'\[graph\] extra = "drop"'):
        given_graph(experiment({**table, "missing": "isolate"}), federation(), tmp_path)
    with pytest.raises(GraphError, match=r"\[graph\] directed = true, .* symmetrise = true"):
        given_graph(experiment({**table, "path": _asymmetric(tmp_path), "directed": False}), federation(), tmp_path)


def _asymmetric(folder):
    (folder / "m.csv").write_text("a,b,c\n0,1,0\n2,0,0\n0,0,0\n")
    return str(folder / "m.csv")
