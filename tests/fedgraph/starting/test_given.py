"""Data frames, graphs and classes in Python where an experiment file has paths."""

import json

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData

import fedgraph
from fedgraph.data import DataSet, name_given_files
from fedgraph.data.columns import from_frame
from fedgraph.graph import read_graph
from fedgraph.models import TaskSpec
from fedgraph.starting.given import in_words
from fedgraph.support.errors import DataError, ExperimentError, FedgraphError, GraphError, IdentityError
from fedgraph.support.settings import Settings


def frame_of(count=90):
    random = np.random.default_rng(0)
    age, ward = random.normal(50, 10, count), random.choice(["a", "b"], count)
    return pd.DataFrame(
        {"age": age, "ward": ward, "ill": age + 5 * (ward == "a") + random.normal(0, 2, count) > 51,
         "site": np.resize(["x", "y", "z"], count)}
    )  # fmt: skip


def tables(**data):
    return {
        "experiment": {"name": "given", "method": "sfl", "rounds": 1},
        "data": data,
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"learning-rate": 0.1},
        "graph": {"source": "complete"},
    }


def ran(given, tmp_path, **named):
    return fedgraph.run(given, out=tmp_path / "runs", progress=False, **named)


def test_a_data_frame_is_read_as_its_file_is(tmp_path):
    frame = frame_of()
    frame.to_csv(tmp_path / "frame.csv", index=False)
    data = {"set": "table", "label": "ill", "client-column": "site"}
    own = ran(tables(**data, path=frame), tmp_path)
    of_file = ran(tables(**data), tmp_path, set={"data.path": str(tmp_path / "frame.csv")})
    by_key = ran(tables(**data), tmp_path, set={"data.path": frame})
    assert own.summary["weights_sha256"] == of_file.summary["weights_sha256"] == by_key.summary["weights_sha256"]
    assert own.summary["task"]["classes"] == ["False", "True"]
    assert own.summary["data"].startswith("the data given as data.path, 90 rows, ")
    # Found again by whoever resumes the run, and kept once.
    assert len(list((tmp_path / "runs" / ".given").iterdir())) == 1
    assert fedgraph.load_run(own.path).experiment.data.path == by_key.experiment.data.path
    assert len(own.predict(frame)) == 90
    with pytest.raises(ExperimentError, match=r"data\.path .*data frame"):
        ran(tables(**data, path=np.zeros((3, 4))), tmp_path)


@pytest.mark.parametrize("faulty", ["data.path", "graph"])
def test_errors_name_the_key_that_was_given_an_object_and_no_hidden_file(faulty, tmp_path):
    given = tables(set="table", label="ill", path=frame_of(), **{"client-column": "site"})
    if faulty == "graph":
        given["graph"] = fedgraph.ClientGraph.from_edges([("x", "q")])
    else:
        given["data"]["label"] = "well"
    with pytest.raises(FedgraphError, match=rf"the data given as {faulty}\b") as caught:
        ran(given, tmp_path)
    assert ".given" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda frame: frame.set_axis(pd.MultiIndex.from_product([["x"], frame.columns]), axis=1), "2 levels"),
        (lambda frame: pd.concat([frame, frame[["age"]]], axis=1), "age.* name of its own"),
        (lambda frame: frame.assign(age=["old", *frame["age"][1:]]), "numbers, texts or times alone"),
    ],
)
def test_data_frames_that_are_no_table_are_refused(changed, message, tmp_path):
    data = {"set": "table", "label": "ill", "client-column": "site"}
    with pytest.raises(DataError, match=rf"^the data given as data\.path .*{message}"):
        ran(tables(**data, path=changed(frame_of())), tmp_path)
    with pytest.raises(ValueError, match=message):
        fedgraph.NeuralGraphicalModel().fit(changed(frame_of()))


@pytest.mark.parametrize("method", ["sfl", "fedngm"])
def test_predictions_have_the_index_of_the_data_frame(method, tmp_path):
    frame = frame_of()
    frame.index = [f"p{number}" for number in range(len(frame))]
    given = tables(set="table", label="ill", path=frame.reset_index(drop=True), **{"client-column": "site"})
    if method == "fedngm":
        small = {"epochs": 1, "hidden": 2}
        given = {
            "experiment": {"name": "given", "method": "fedngm"},
            "data": {"set": "mixed-table", "path": given["data"]["path"], "client-column": "site"},
            "fedngm": {"ngm": small, "ngr": small, "distillation": {"samples": 60}},
        }
    run = ran(given, tmp_path)
    asked = frame[frame["age"] > 50].drop(columns="ill").iloc[::-1]
    found = fedgraph.predict(run, asked, target="ill" if method == "fedngm" else None)
    assert list(found.index) == list(asked.index)
    assert list(found["client"]) == list(asked["site"])


def test_series_with_their_times_as_the_index(tmp_path):
    random = np.random.default_rng(1)
    index = pd.date_range("2024-01-01", periods=300, freq="h")
    frame = pd.DataFrame({"a": random.normal(5, 1, 300), "b": random.normal(50, 5, 300)}, index=index)
    given = tables(set="series", path=frame, **{"covariates": ["time-of-day"], "input-steps": 4, "output-steps": 2})
    given["model"] = {"name": "gru", "hidden": 4}
    run = ran(given, tmp_path)
    assert list(run.clients.index) == ["a", "b"]
    assert run.summary["task"]["step_minutes"] == 60
    found = run.predict(frame.iloc[-10:])
    assert found["time"].iloc[-1] == "2024-01-13T13:00:00"


def test_periods_are_times_and_durations_are_numbers(tmp_path):
    hours = pd.date_range("2024-03-01", periods=90, freq="h")
    values = np.random.default_rng(0).normal(size=(90, 2)).cumsum(0)
    sets = [pd.DataFrame(values, columns=["a", "b"], index=index) for index in (hours, hours.to_period("h"))]
    runs = [
        ran(
            {
                "experiment": {"name": "hours", "method": "fedavg", "rounds": 1},
                "data": {"set": "series", "path": frame, "input-steps": 4, "output-steps": 2},
                "model": {"name": "mlp", "hidden": [4]},
            },
            tmp_path,
        )
        for frame in sets
    ]
    assert "90 hourly steps" in runs[1].summary["data"]
    assert runs[0].summary["weights_sha256"] == runs[1].summary["weights_sha256"]
    waits = frame_of().assign(age=pd.to_timedelta(np.arange(90) % 7, unit="min"))
    table = from_frame(waits)
    assert table.numbers("age").tolist() == (np.arange(90) % 7 * 60.0).tolist()


@pytest.mark.parametrize("kind", ["networkx", "pyg", "edges", "client graph", "table"])
def test_graphs_of_other_libraries(kind, tmp_path):
    edges = [("x", "y"), ("y", "z")]
    graph = fedgraph.ClientGraph.from_edges(edges)
    given = {
        "networkx": nx.Graph(edges), "pyg": graph.to_pyg(), "client graph": graph, "table": graph,
        "edges": pd.DataFrame(edges, columns=["from", "to"]),
    }[kind]  # fmt: skip
    experiment = tables(set="table", label="ill", path=frame_of(), **{"client-column": "site"})
    experiment["graph"] = given if kind == "table" else {"source": "file", "path": given}
    run = ran(experiment, tmp_path)
    pairs = {tuple(sorted((run.graph.names[a], run.graph.names[b]))) for a, b in run.graph.edge_index.T.tolist()}
    assert {pair for pair in pairs if pair[0] != pair[1]} == set(edges)


@pytest.mark.parametrize("data", [HeteroData(), torch.utils.data.Subset([Data()], [0])], ids=["hetero", "subset"])
def test_what_is_no_data_of_clients_is_named(data, tmp_path):
    with pytest.raises(ExperimentError, match=rf"data\.path\.a is a {type(data).__name__}, and cannot be read: .*list"):
        in_words({"data": {"set": "graphs", "path": {"a": data}}}, {}, {}, tmp_path)


def test_a_hidden_file_between_brackets_leaves_both_brackets():
    message = "client 'a' (/home/me/runs/.given/data.path-0123456789abcdef.pt) has no x"
    assert name_given_files(message) == "client 'a' (the data given as data.path) has no x"


@pytest.mark.parametrize("key", ["graph", "graph.path"])
@pytest.mark.parametrize("names", [["5", "7", "9", "11"], [5, 7, 9, 11]], ids=["texts", "numbers"])
def test_rows_of_a_matrix_go_by_label(key, names, tmp_path):
    matrix = pd.DataFrame([[0, 1, 0, 0], [0, 0, 2, 0], [3, 0, 0, 0], [0, 0, 0, 4.0]], names, names)
    for frame in (matrix, matrix.iloc[[2, 0, 3, 1]]):
        _, keys, _ = in_words({}, {key: frame}, {}, tmp_path)
        place = keys[key]["path"] if key == "graph" else keys[key]
        graph = read_graph(place, ["5", "7", "9", "11"])
        assert graph.dense().tolist() == matrix.to_numpy().tolist()
    with pytest.raises(GraphError, match="the data given as graph: the columns .* must be the same clients"):
        in_words({}, {"graph": matrix.set_axis(["a", "b", "c", "d"], axis=0)}, {}, tmp_path)


def test_edges_by_pair_are_not_the_keys_of_a_table(tmp_path):
    with pytest.raises(ExperimentError, match=r"graph has the key \('a', 'b'\).*ClientGraph.from_edges"):
        in_words({"graph": {("a", "b"): 1.0}}, {}, {}, tmp_path)


def test_an_edge_list_as_long_as_wide_is_no_matrix(tmp_path):
    edges = pd.DataFrame({"from": ["a", "b", "c"], "to": ["b", "c", "a"], "weight": [1.0, 2.0, 3.0]}, ["x", "y", "z"])
    _, keys, _ = in_words({}, {"graph": edges}, {}, tmp_path)
    assert read_graph(keys["graph"]["path"]).dense().tolist() == [[0, 1, 0], [0, 0, 2], [3, 0, 0]]


class WardSettings(Settings):
    """``[data]``.

    Attributes
    ----------
    shift : added to what is predicted.
    """

    shift: float = 0.0


class Wards(DataSet[WardSettings]):
    """Three wards, whose stays are in days, and scaled for training."""

    def client_names(self):
        return ["east", "north", "west"]

    def task(self):
        return TaskSpec("regression", (2,), (1,), unit="days", features=("age", "dose"))

    def examples(self, client):
        random = np.random.default_rng(len(client) + ord(client[0]))
        inputs = torch.from_numpy(random.normal(0, 1, (60, 2)))
        targets = 100 + 10 * inputs[:, 0] - 3 * inputs[:, 1] + self.settings.shift
        return {"train": (inputs[:40], targets[:40]), "test": (inputs[40:], targets[40:])}

    def target_scale(self, client):
        targets = self.examples(client)["train"][1]
        return float(targets.mean()), float(targets.std())


class Net(nn.Module):
    """A module of a script, which no other process finds."""

    def __init__(self, input_shape, output_shape):
        super().__init__()
        self.layer = nn.Linear(input_shape[0], output_shape[0])

    def forward(self, inputs):
        return self.layer(inputs)


def test_graphs_at_clients_and_the_graph_of_clients(tmp_path):
    draws = torch.Generator().manual_seed(0)
    graphs = {
        name: Data(
            x=torch.randn(20, 3, generator=draws), edge_index=torch.randint(20, (2, 60), generator=draws),
            y=torch.arange(20) % 2,
        )
        for name in ("st/mercy", "county", "north")
    }  # fmt: skip
    given = tables(set="graphs", path=graphs)
    given["model"] = {"name": "gcn", "hidden": 4}
    given["graph"] = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3, names=list(graphs))
    run = ran(given, tmp_path)
    assert list(run.clients.index) == sorted(graphs)
    assert run.graph.neighbours("county") == ("st/mercy",)
    (tmp_path / "graphs").mkdir()
    for name in ("county", "north"):
        torch.save(graphs[name], tmp_path / "graphs" / f"{name}.pt")
    part = tables(set="graphs", path=str(tmp_path / "graphs"))
    part["model"] = given["model"]
    two = ran(part, tmp_path)
    same = ran(part, tmp_path, set={"data.path": {name: graphs[name] for name in ("county", "north")}})
    assert same.summary["weights_sha256"] == two.summary["weights_sha256"]
    sites = {name: graphs[name] for name in ("county", "north")}
    part["data"] = {"set": "graphs", "classes": 2}
    assert ran(part, tmp_path, sites=sites).summary["weights_sha256"] == two.summary["weights_sha256"]


def test_a_class_of_a_data_set_and_one_of_a_model(tmp_path):
    given = tables(set=Wards, shift=5.0)
    given["model"] = {"name": Net}
    given["experiment"]["rounds"] = 5
    run = ran(given, tmp_path)
    assert run.summary["task"]["features"] == ["age", "dose"]
    assert list(run.clients.index) == ["east", "north", "west"]
    # In days, and not on the scale of training.
    errors = run.clients["test/mae"]
    assert 0.05 < errors.mean() < 8
    inputs, targets = Wards(WardSettings(shift=5.0), tmp_path).examples("north")["test"]
    found = run.predict(inputs.numpy().astype("float32"), client="north")["predicted"].to_numpy()
    assert np.abs(found - targets.numpy()).mean() == pytest.approx(errors["north"], rel=1e-4)
    assert run.module("north")(inputs.float())[:, 0].tolist() == pytest.approx(found.tolist(), rel=1e-4)
    np.savez(tmp_path / "new.npz", inputs=inputs.numpy(), targets=targets.numpy())
    assert run.score(tmp_path / "new.npz", client="north").loc["north", "mae"] == pytest.approx(errors["north"])
    path = json.loads((run.path / "summary.json").read_text())
    assert path["data"] == "Wards, 3 clients"
    with pytest.raises(ExperimentError, match=r"Wards\) .*'shfit'; .*shift"):
        ran(tables(set=Wards, shfit=5.0), tmp_path)


def test_a_class_that_was_defined_anew_is_the_new_one(tmp_path):
    def made(size):
        class Again(Wards):
            def client_names(self):
                return [f"ward-{number}" for number in range(size)]

        return Again

    counts = [len(ran(tables(set=made(size)), tmp_path).clients) for size in (2, 4)]
    assert counts == [2, 4]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": (torch.zeros(5, 3), torch.zeros(5))}, r"'east', train: .*\[5, 3\]"),
        ({"train": (torch.zeros(5, 2), torch.zeros(4))}, r"client 'east', train: 5 inputs have 4 targets"),
        ({"test": (torch.zeros(5, 2), torch.zeros(5))}, r"\['test'\]; .*inputs and targets"),
        ({"train": (torch.zeros(5, 2), torch.full((5,), torch.inf))}, "'east', train: .*infinite"),
        ({"train": (torch.full((5, 2), torch.inf), torch.zeros(5))}, "'east', train: an input is infinite"),
    ],
)
def test_examples_that_do_not_fit_are_named(wrong, message, tmp_path):
    class Wrong(Wards):
        def examples(self, client):
            return wrong

        def target_scale(self, client):
            return 0.0, 1.0

    with pytest.raises(DataError, match=message):
        Wrong(WardSettings(), tmp_path).load(["east"])
    assert Wards(WardSettings(), tmp_path).load(["east"]).splits["train"].num_examples.tolist() == [40]
    with pytest.raises(DataError, match="'south'; .*east, north, west"):
        Wards(WardSettings(), tmp_path).load(["south"])


def test_readings_that_are_missing_have_no_weight(tmp_path):
    class Readings(DataSet):
        def client_names(self):
            return ["a"]

        def task(self):
            return TaskSpec("forecast", (3, 1), (2,))

        def examples(self, client):
            targets = torch.ones(4, 2)
            targets[1, 0] = torch.nan
            return {"train": (torch.zeros(4, 3, 1), targets)}

    batch = Readings(Settings(), tmp_path).load(["a"]).splits["train"].batch(torch.arange(4)[None])
    assert batch.weights[0].tolist() == [[1, 1], [0, 1], [1, 1], [1, 1]]
    assert torch.isfinite(batch.targets).all()


def test_what_is_no_data_set_is_refused(tmp_path):
    with pytest.raises(ExperimentError, match="client_names.*: derive it"):
        ran(tables(set=Net), tmp_path)
    with pytest.raises(ExperimentError, match=r"\[data\] set = 'nowhere:Data'"):
        ran(tables(set="nowhere:Data"), tmp_path)


def test_a_data_frame_of_edges_is_the_client_graph(digits_tables, tmp_path):
    names = [f"client-{number}" for number in range(digits_tables["data"]["clients"])]
    edges = pd.DataFrame({"from": names[:-1], "to": names[1:], "weight": 1.0})
    graph = fedgraph.ClientGraph.complete(names)
    for given in (edges, {"source": "file", "path": edges}):
        run = fedgraph.run({**digits_tables, "graph": given}, out=tmp_path, progress=False)
        assert 0 < run.folder.client_graph().num_edges < graph.num_edges
    with pytest.raises(ExperimentError, match=r"'graph' must be a table, not 'complete'.*in Python a dict"):
        fedgraph.run({**digits_tables, "graph": "complete"}, out=tmp_path, progress=False)


class WithGaps(Wards):
    """Wards of which some stays are not known."""

    def examples(self, client):
        inputs, targets = super().examples(client)["train"]
        missing = torch.arange(len(targets)) % 5 == 0
        return {"train": (inputs, targets.masked_fill(missing, torch.nan)), "test": (inputs, targets)}

    def target_scale(self, client):
        return 100.0, 10.0


class WithoutThem(WithGaps):
    """The same without these examples."""

    def examples(self, client):
        inputs, targets = Wards.examples(self, client)["train"]
        known = torch.arange(len(targets)) % 5 != 0
        return {"train": (inputs[known], targets[known]), "test": (inputs, targets)}


@pytest.mark.parametrize("loss", ["mae", "mse", "huber"])
@pytest.mark.parametrize("compiled", ["auto", False])
def test_missing_targets_have_no_weight(loss, compiled, tmp_path):
    given = tables(set=WithGaps)
    # All examples in one minibatch, so that the missing ones change no other minibatch.
    given["train"] = {"learning-rate": 0.05, "batch-size": 64, "local-epochs": 5, "loss": loss, "compile": compiled}
    found = ran(given, tmp_path)
    without = ran({**given, "data": {"set": WithoutThem}}, tmp_path)
    np.testing.assert_allclose(found.clients["test/mae"], without.clients["test/mae"], rtol=1e-4)


@pytest.mark.parametrize("scale", [(0.0, 0.0), (float("nan"), 1.0)])
def test_scales_of_targets_that_cannot_be_are_refused(scale, tmp_path):
    class Scaled(WithGaps):
        def target_scale(self, client):
            return scale

    with pytest.raises(IdentityError, match=r"target_scale\('east'\) returned .*a mean and a deviation above 0"):
        ran(tables(set=Scaled), tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["east", 2], r"Named\.client_names\(\) must return texts; it returned 2"),
        (["east", "west", "east"], r"Named\.client_names\(\) returned these twice: 'east'"),
    ],
)
def test_names_of_clients_that_cannot_be_are_refused(names, message, tmp_path):
    class Named(Wards):
        def client_names(self):
            return names

    with pytest.raises(IdentityError, match=message):
        ran(tables(set=Named), tmp_path)
