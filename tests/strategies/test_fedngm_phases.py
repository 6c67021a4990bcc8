"""Runs of FedNGM: phases and their exchanges, what comes out, who is refused, and how a stopped run goes on."""

from __future__ import annotations

import json
import random
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from flwr.app import Array, Message
from safetensors.torch import load_file as load_safetensors
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import fedgraph.algorithms.fedngm as algorithm
import fedgraph.clients.engine.table_rows as table_rows
from fedgraph.algorithms.fedngm_messages import PhaseReply, PhaseRequest
from fedgraph.clients import fedngm
from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.node import forget_cohorts
from fedgraph.clients.engine.table_rows import TableRows
from fedgraph.commands import cli
from fedgraph.data import open_source
from fedgraph.data.encoding.values import read_values
from fedgraph.data.tables.client_tables import client_table_source
from fedgraph.data.tables.mixed import MixedTableSource
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.graph import read_graph
from fedgraph.graph.feature_graph import read_feature_graph
from fedgraph.graphical.learning import average
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.recovery import RecoverySettings
from fedgraph.graphical.recovery.summed import UnitSums, recover_from_sums
from fedgraph.messages import check_content, error_content
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import DataError, ExperimentError, IdentityError, RunError
from fedgraph.support.files import load_state

NAMES = ["east", "north", "west"]
COMMON = ("height", "weight", "ill", "ward", "stay")


class Listener:
    """A client that keeps what it is asked and answers, and may change an answer."""

    def __init__(self, change=lambda request, content: content):
        self.requests, self.replies, self.change = [], [], change

    def __call__(self, message, context):
        request = PhaseRequest.unpack(check_content(message.content))
        self.requests.append(request)
        reply = client_app(message, context)
        content = self.change(request, reply.content)
        self.replies.append(content)
        return Message(content, reply_to=message)


@pytest.mark.process
def test_phases_and_what_comes_out(table_tables, run_experiment):
    listener = Listener()
    table_tables["fedngm"] |= {"yardsticks": True, "sample-quality": True, "recovery": {}}
    folder = run_experiment(table_tables, nodes=1, client=listener)
    assert [request.phase for request in listener.requests] == ["schema", "graph", "fit", "finish"]
    summary = folder.summary()
    assert (summary["clients"], summary["exchanges"], summary["features"]) == (3, 4, 5)
    assert summary["private_features"] == {"east": ["ecg"], "west": ["dose"]}
    model = GraphicalModel.load(folder.path / "graphical-model.safetensors")
    assert model.encoding.schema.names == COMMON
    assert model.graph == read_feature_graph(folder.path / "feature-graph.json")
    assert {("height", "weight"), ("weight", "ill")} <= set(model.graph.edges)
    similar = read_graph(folder.path / "learned-graph.npz")
    assert similar.names == tuple(NAMES)
    assert bool(((similar.dense() > 0.3) == ~torch.eye(3, dtype=torch.bool)).all())
    pairs = [line.split(",")[:2] for line in (folder.path / "dependencies.csv").read_text().splitlines()[1:]]
    assert {frozenset(pair) for pair in pairs} == set(map(frozenset, model.graph.edges))
    assert ["weight", "height"] in pairs[:4]
    test, public = summary["metrics"]["test"], summary["metrics"]["public"]
    for split in (test, public):
        assert {"weight-mae", "weight-mae-local", "weight-mae-personal", "ill-auc", "ward-macro-recall"} <= set(split)
        assert {"weight-mae-trees", "ill-auc-linear"} <= set(split)
        assert split["samples-marginal-distance"]["mean"] < 0.2
        assert split["samples-correlation-difference"]["mean"] < 0.2
        assert 0.4 < split["samples-told-apart"]["mean"] <= 1
        # Far better than the mean of everybody, which is off by 8.
        assert split["weight-mae"]["mean"] < 6
        assert split["ill-auc"]["mean"] > 0.8
    per_client = summary["per_client"]["test"]
    assert per_client["ecg-mae-personal"]["east"] is not None
    assert per_client["ecg-mae-personal"]["north"] is None
    assert per_client["weight-mae-personal"]["north"] is None, "nothing of its own, so that the global model is its own"
    assert "validation/weight-r2-local" not in per_client


@pytest.fixture
def counted(monkeypatch):
    """How often tables are loaded and read, schemas inferred, and graphs recovered, by client where that is told."""
    found = {"rows": 0, "loaded": [], "inferred": 0, "read": 0, "recovered": []}

    def count(owner, name, note):
        original = getattr(owner, name)

        def noted(*given, **named):
            note(*given)
            return original(*given, **named)

        monkeypatch.setattr(owner, name, noted)

    def more(key, entries=()):
        found[key] = found[key] + (list(entries) if isinstance(found[key], list) else 1)

    count(TableRows, "__init__", lambda *given: more("rows"))
    count(MixedTableSource, "load_table", lambda source, name: more("loaded", [name]))
    count(table_rows, "infer_schema", lambda *given: more("inferred"))
    count(table_rows, "read_values", lambda *given: more("read"))
    count(fedngm, "recover", lambda settings, tables, *given: more("recovered", [table.client for table in tables]))
    return found


@pytest.mark.process
def test_tables_are_read_and_graphs_recovered_once_for_every_client(table_tables, run_experiment, counted):
    """In a process: of all features, and of the common ones; of those the public rows too, for each of two nodes."""
    folder = run_experiment(table_tables, nodes=2)
    assert folder.summary()["private_features"] == {"east": ["ecg"], "west": ["dose"]}
    assert counted["rows"] == 2
    assert sorted(counted["loaded"]) == NAMES
    assert counted["inferred"] == 3
    assert counted["read"] == 3 + 2 + 2
    assert sorted(counted["recovered"]) == NAMES
    run_experiment(table_tables, nodes=2)
    assert counted["rows"] == 4, "another run reads them anew"


@pytest.mark.process
def test_graphs_are_recovered_once_where_every_message_reaches_another_process(table_tables, run_experiment, counted):
    def forgetful(message, context):
        forget_cohorts()
        return client_app(message, context)

    with_memory = load_safetensors(run_experiment(table_tables).path / "graphical-model.safetensors")
    first = sorted(counted["recovered"])
    folder = run_experiment(table_tables, client=forgetful)
    assert sorted(counted["recovered"]) == sorted([*first, *NAMES])
    without = load_safetensors(folder.path / "graphical-model.safetensors")
    assert with_memory.keys() == without.keys()
    assert all(torch.equal(value, without[name]) for name, value in with_memory.items())


def test_a_graph_of_other_rows_is_not_taken_for_that_of_these(table_tables, run_experiment, counted):
    """The file of a client in the state folder is of a phase that was asked of other rows, or is broken."""

    def tampering(message, context):
        request = PhaseRequest.unpack(message.content)
        if request.phase == "finish":
            for path in Path(context.node_config["state-dir"]).rglob("feature-graphs/*.json"):
                told = json.dumps({"of": "other rows", "graph": {"names": [], "edges": []}})
                path.write_text(told if path.stem == "east" else "{")
        return client_app(message, context)

    run_experiment(table_tables, client=tampering)
    assert sorted(counted["recovered"]) == sorted([*NAMES, "east", "west"])


@pytest.mark.slow
def test_embeddings_are_features_like_others(table_tables, run_experiment):
    """One that all clients have, and one that a client has alone."""
    path = Path(table_tables["data"]["path"])
    header, *rows = path.read_text().splitlines()
    random = np.random.default_rng(1)
    header += "".join(f",{name}.{place}" for name in ("scan", "plan") for place in range(6))
    for place, row in enumerate(rows):
        ill, stay = row.split(",")[2] == "y", float(row.split(",")[4])
        numbers = [*(random.normal(size=6) + 2 * ill), *(random.normal(size=6) / 2 + stay)]
        rows[place] = ",".join([row, *(f"{number:.3f}" for number in numbers)])
    path.write_text("\n".join([header, *rows]) + "\n")
    table_tables["data"]["table-schema"] = {"kinds": {"scan": "embedding", "plan": "embedding"}}
    table_tables["data"]["private"]["west"] = ["plan"]
    table_tables["fedngm"] |= {"targets": ["ill", "scan", "stay"], "yardsticks": True, "sample-quality": True}
    table_tables["fedngm"]["ngm"]["epochs"] = 50
    folder = run_experiment(table_tables, nodes=1)
    summary = folder.summary()
    assert summary["private_features"] == {"east": ["ecg"], "west": ["plan"]}
    model = GraphicalModel.load(folder.path / "graphical-model.safetensors")
    assert model.encoding.schema["scan"].size == 6
    assert ("ill", "scan") in model.graph.edges or ("scan", "ill") in model.graph.edges
    test, per_client = summary["metrics"]["test"], summary["per_client"]["test"]
    assert test["ill-auc"]["mean"] > 0.95
    assert test["scan-rmse"]["mean"] < 1.3, "1 is its noise, 1.4 with illness unknown"
    assert "scan-rmse-trees" not in test
    assert test["ill-auc-trees"]["mean"] > 0.95
    assert per_client["plan-rmse-personal"]["west"] < 1
    assert per_client["stay-mae-personal"]["west"] < per_client["stay-mae"]["west"] - 0.1
    assert model.sample(3).names[-6:] == [f"scan.{place}" for place in range(6)]


@pytest.mark.parametrize("keys", [{}, {"model": "ngr", "scaling": {"source": "own"}}])
def test_every_client_keeps_a_model_that_can_be_asked(table_tables, run_experiment, tmp_path, keys):
    table_tables["fedngm"] |= keys
    models = {"model-dir": str(tmp_path / "models")}
    configs = [{"partition-id": place, "num-partitions": 2, **models} for place in range(2)]
    folder = run_experiment(table_tables, node_configs=configs)
    source = client_table_source(open_source(parse_experiment(table_tables).data, tmp_path), "fedngm")
    scores = folder.summary()["per_client"]["test"]
    for name, private in (("east", "ecg"), ("north", None), ("west", "dose")):
        model = GraphicalModel.load(tmp_path / "models" / "graphical" / folder.run / f"{name}.safetensors")
        held = source.load_table(name)
        rows = held.part("test")
        suffix = "-personal" if private else ""
        for target in ("weight", private) if private else ("weight",):
            error = np.abs(model.predict(rows, target) - rows.numbers(target)).mean()
            assert error == pytest.approx(scores[f"{target}-mae{suffix}"][name], rel=1e-5)
        ill = np.array(rows.column("ill").to_pylist()) == "y"
        auc = roc_auc_score(ill, model.predict_proba(rows, "ill")[:, 1])
        assert auc == pytest.approx(scores[f"ill-auc{suffix}"][name], abs=1e-6)


def test_with_ranges_of_clients_the_model_tells_all_but_those_numbers(table_tables, run_experiment):
    table_tables["fedngm"] |= {"scaling": {"source": "own", "ranges": {"stay": [0, 10]}}}
    folder = run_experiment(table_tables, nodes=1)
    summary = folder.summary()
    (note,) = summary["notes"]
    assert "has no range of height, weight, as each client" in note
    path = folder.path / summary["model_file"]
    model = GraphicalModel.load(path)
    few, many = (model.predict_proba({"stay": stay}, "ward")[0] for stay in (2, 7))
    assert few[0] > 0.5 > many[0], "two days are a stay in ward a"
    assert 0 < model.predict({"ward": "a"}, "stay")[0] < 5
    for ask in (lambda: model.predict({"ill": "y"}, "weight"), lambda: model.predict_proba({"height": 180}, "ill")):
        with pytest.raises(DataError, match=r"load\(path, ranges.*shared-ranges"):
            ask()
    drawn = model.sample(20)
    assert drawn.column("weight").null_count == 20
    assert drawn.column("stay").null_count == 0
    model = GraphicalModel.load(path, ranges={"height": (145, 195), "weight": (40, 100)})
    assert 60 < model.predict({"ill": "y", "height": 170}, "weight")[0] < 90


@pytest.mark.process
def test_targets_without_a_neighbour_are_named_and_can_be_given_some(table_tables, run_experiment):
    table_tables["fedngm"] |= {
        "ngm": {"epochs": 2, "hidden": 4},
        "recovery": {"threshold": 0.9, "target-neighbours": 0},
    }
    (note,) = run_experiment(table_tables, nodes=1).summary()["notes"]
    assert "the consensus graph has no edges, so every feature is predicted by its mean" in note
    table_tables["fedngm"]["recovery"] = {"threshold": 0.73, "target-neighbours": 0}
    (note,) = run_experiment(table_tables, nodes=1).summary()["notes"]
    assert note.startswith("ill, ward have no neighbour in the consensus graph")
    table_tables["fedngm"]["recovery"] |= {"target-neighbours": 1}
    folder = run_experiment(table_tables, nodes=1)
    assert folder.summary()["notes"] == []
    edges = read_feature_graph(folder.path / "feature-graph.json").edges
    assert ("ill", "ward") in edges


@pytest.mark.process
def test_what_is_no_common_feature_is_noted_with_why(table_tables, run_experiment, caplog):
    path = Path(table_tables["data"]["path"])
    head, *rows = path.read_text().splitlines()
    rng = random.Random(0)
    hospitals = [rng.choice(["mercy", "olav", "ucla"]) for _ in rows]
    more = [f"{at},,{'' if at == 'mercy' else ['x', 'y'][n % 2]},7,P{n}" for n, at in enumerate(hospitals)]
    path.write_text("\n".join([f"{head},at,nothing,some,same,id", *map(",".join, zip(rows, more, strict=True))]) + "\n")
    table_tables["data"] = {"set": "mixed-table", "path": str(path), "client-column": "at"}
    table_tables["fedngm"] = {
        "ngm": {"epochs": 1, "hidden": 4}, "distillation": {"samples": 50}, "recovery": {"penalty": 0.02},
    }  # fmt: skip
    notes = run_experiment(table_tables).summary()["notes"]
    assert notes[0] == (
        "not among the common features: 'same' (constant); 'some' (only at 'olav', 'ucla', without a value at "
        "'mercy'); "
        "'nothing' (without a value); 'id' (no value occurs in least-rows rows or more ([data.table-schema]))"
    )
    assert "is no feature" not in caplog.text
    assert 'as to "shared-ranges"' in notes[-1]
    # The names of such columns do not leave a node whose errors are not told in full, either: its log has them.
    configs = [{"partition-id": place, "num-partitions": 2, "full-errors": False} for place in range(2)]
    notes = run_experiment(table_tables, node_configs=configs).summary()["notes"]
    assert notes[0] == "not among the common features: 'same' (constant); 'some' (only at 'olav', 'ucla')"
    assert caplog.text.count("column 'id' of") == 2


def test_rare_and_similar_categories_are_noted(table_tables, run_experiment, caplog):
    path = Path(table_tables["data"]["path"])
    head, *rows = path.read_text().splitlines()
    towns = ["Oslo" if n % 3 else "oslo" for n in range(len(rows))]
    at = ["ucla" if n > 100 else "mercy" if n % 3 else "olav" for n in range(len(rows))]
    towns[1:5:3] = ["Bergen"] * 2
    lines = map(",".join, zip(rows, towns, at, strict=True))
    path.write_text("\n".join([f"{head},town,at", *lines]) + "\n")
    table_tables["data"] = {"set": "mixed-table", "path": str(path), "client-column": "at"}
    table_tables["fedngm"] = {
        "ngm": {"epochs": 1, "hidden": 4}, "distillation": {"samples": 50}, "recovery": {"penalty": 0.02},
    }  # fmt: skip
    notes = run_experiment(table_tables).summary()["notes"]
    assert "'town' at 'mercy'. To keep them, list all categories under kinds" in notes[0]
    assert "'Oslo' and 'oslo' of 'town' are two categories" in notes
    assert "Bergen" not in str(notes)  # a rare value may identify a person
    hidden = [{"partition-id": place, "num-partitions": 2, "full-errors": False} for place in range(2)]
    notes = run_experiment(table_tables, node_configs=hidden).summary()["notes"]
    assert not any("'mercy'" in note for note in notes)
    assert "column 'town' of 'mercy' has values in fewer than least-rows rows" in caplog.text


def test_clients_can_search_for_bayesian_networks(table_tables, run_experiment):
    table_tables["fedngm"] |= {"ngm": {"epochs": 2, "hidden": 4}, "recovery": {"method": "ges"}}
    folder = run_experiment(table_tables, nodes=2)
    edges = read_feature_graph(folder.path / "feature-graph.json").edges
    assert ("height", "weight") in edges
    alone = [note for note in folder.summary()["notes"] if "no neighbour" in note]
    assert all('use method = "graphical-lasso"' in note for note in alone)


@pytest.mark.usefixtures("leave_no_trace")
def test_a_run_says_where_its_model_lies(table_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    table_tables["fedngm"] |= {"scaling": {"source": "own"}, "ngm": {"epochs": 2, "hidden": 4}}
    (tmp_path / "tables.toml").write_text(tomli_w.dumps(table_tables))
    result = CliRunner().invoke(cli.app, ["run", str(tmp_path / "tables.toml"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "out").glob("*/graphical-model.safetensors")
    assert f"Model: {path}" in result.output
    assert "Note: the model file has no range of height, weight, stay" in result.output
    assert GraphicalModel.load(path).encoding.schema.names == COMMON


def test_categories_alone_need_no_ranges(run_experiment):
    tables = tomllib.loads((Path(__file__).parents[2] / "simulations/fedngm/asia.toml").read_text())
    tables["data"]["rows"] = 500
    tables["fedngm"] = {"ngm": {"epochs": 60}, "distillation": {"samples": 2000}, "sampling": {"sweeps": 5}}
    folder = run_experiment(tables)
    summary = folder.summary()
    assert not any("no range" in note for note in summary["notes"])
    assert summary["graph_score"]["f1"] > 0.5
    assert any(f"F1 {summary['graph_score']['f1']:.2f}" in note for note in summary["notes"])
    assert next(iter(summary["metrics"]["test"])) == "mean-auc"
    model = GraphicalModel.load(folder.path / summary["model_file"])
    breathless, other = (model.predict_proba({"dysp": answer}, "bronc") for answer in ("yes", "no"))
    yes = model.encoding.schema["bronc"].categories.index("yes")
    assert breathless[0, yes] > other[0, yes] + 0.1


def test_results_do_not_depend_on_packing(table_tables, run_experiment):
    # Rounding grows as training goes on.
    table_tables["fedngm"] |= {"ngm": {"epochs": 5, "hidden": 8, "batch-size": 64}}
    together, apart = (run_experiment(table_tables, nodes=nodes).summary() for nodes in (1, 3))
    for split in ("test", "public"):
        for name, values in together["per_client"][split].items():
            for client, value in values.items():
                found = apart["per_client"][split][name][client]
                assert found == (value if value is None else pytest.approx(value, rel=1e-3, abs=1e-4)), name


def test_messages_tell_names_and_types_alone(table_tables, run_experiment):
    """Every byte that leaves a node, and all that reaches it: no value of any row but categories that five rows of a
    client hold, no range, no count but that of rows."""
    _put_into(table_tables, "ward", ["rare-one", *["rare-four"] * 4], ["common-nine"] * 9)
    listener = Listener()
    run_experiment(table_tables, nodes=3, client=listener)
    said = [
        (request.phase, PhaseReply.unpack(content, content.array_records["stacked"]["parameters"].shape[1]))
        for request, content in zip(listener.requests, listener.replies, strict=True)
    ]
    for phase, reply in said:
        text = json.loads(reply.texts[0])
        if phase == "schema":
            assert all(set(feature) == {"name", "kind", "categories"} for feature in text)
            assert [feature["categories"] for feature in text if feature["name"] in ("height", "weight")] == [[], []]
        elif phase == "graph":
            assert set(text) == {"names", "edges"}
            assert set(text["names"]) == set(COMMON), "what is private is told in no graph"
        else:
            assert all(re.fullmatch(r"(validation|test|public)/[a-z]+-[a-z0-9-]+", name) for name in text)
    sent = [request.pack() for request in listener.requests]
    everything = b"".join(map(_bytes_of, [*listener.replies, *sent]))
    rows = Path(table_tables["data"]["path"]).read_text().splitlines()[1:]
    for row in rows:
        height, weight = row.split(",")[:2]
        assert not re.search(rf"\b{re.escape(height)}\b.{{0,20}}\b{re.escape(weight)}\b".encode(), everything)
    assert b"rare-" not in everything
    assert b"common-nine" in everything


def _bytes_of(content):
    """All that a message carries."""
    arrays = b"".join(array.data for record in content.array_records.values() for array in record.values())
    config = {key: value for record in content.config_records.values() for key, value in record.items()}
    return arrays + repr(config).encode()


def _put_into(tables, column, of_east, of_west=()):
    """Values of single rows of clients, in place of what is there."""
    source = client_table_source(open_source(parse_experiment(tables).data, Path()), "fedngm")
    path = Path(tables["data"]["path"])
    header, *rows = path.read_text().splitlines()
    place = header.split(",").index(column)
    number = {row.rsplit(",", 2)[0]: at for at, row in enumerate(rows)}
    for client, values in (("east", of_east), ("west", of_west)):
        table = source.load_table(client).table
        held = zip(*(table.column(name).to_pylist() for name in ("height", "weight")), strict=True)
        for value, (height, weight) in zip(values, held, strict=False):
            at = next(at for text, at in number.items() if text.startswith(f"{height},{weight},"))
            cells = rows[at].split(",")
            cells[place] = value
            rows[at] = ",".join(cells)
    path.write_text("\n".join([header, *rows]) + "\n")


@pytest.mark.parametrize("model", ["ngm", "ngr"])
def test_below_min_clients_nobody_is_told_of_anybody(table_tables, run_experiment, model):
    """Two clients where three are wanted, one of them with a value of its own: neither hears of the other."""
    table_tables["experiment"]["min-clients"] = 1
    table_tables["data"] |= {"clients": ["east", "west"], "public-share": 0.0, "private": {}}
    _put_into(table_tables, "ward", ["isolated"] * 6)
    table_tables["fedngm"] |= {"model": model, "scaling": {"source": "shared-ranges"}, "merge": {"min-clients": 3}}
    listener = Listener()
    with pytest.raises(RunError, match="2 of .*3 clients .*min-clients"):
        run_experiment(table_tables, nodes=2, client=listener)
    assert {request.phase for request in listener.requests} == {"schema"}, "nothing of one has gone to the other"
    assert b"isolated" in b"".join(map(_bytes_of, listener.replies))
    assert all(request.common is None for request in listener.requests)


@pytest.mark.parametrize("phase", ["statistics", "graph", "fit"])
def test_clients_that_are_lost_on_the_way_count_no_more(table_tables, run_experiment, phase):

    def fail(request, content):
        lost = request.phase == phase and content.config_records["config"]["clients"] == ["west"]
        return error_content("the disk is full") if lost else content

    table_tables["experiment"] |= {"on-missing": "skip", "min-clients": 1}
    table_tables["fedngm"] |= {"scaling": {"source": "shared-ranges"}, "merge": {"min-clients": 3}}
    listener = Listener(fail)
    with pytest.raises(RunError, match="2 of at least 3"):
        run_experiment(table_tables, nodes=3, client=listener)
    assert listener.requests[-1].phase == phase, "the next question has not been asked"


def test_a_client_that_fails_is_left_out_if_that_is_tolerated(table_tables, run_experiment):
    def fail(request, content):
        reply = PhaseReply.unpack(content, content.array_records["stacked"]["parameters"].shape[1])
        return error_content("the disk is full") if request.phase == "fit" and reply.clients == ("west",) else content

    table_tables["fedngm"]["global-model"] = "average"
    with pytest.raises(RunError, match="west: the disk is full.*on-missing"):
        run_experiment(table_tables, nodes=3, client=Listener(fail))
    table_tables["experiment"] |= {"on-missing": "skip", "min-clients": 2}
    summary = run_experiment(table_tables, nodes=3, client=Listener(fail)).summary()
    assert list(summary["per_client"]["test"]["weight-mae"]) == ["east", "north"]
    table_tables["fedngm"]["merge"] = {"min-clients": 3}
    with pytest.raises(RunError, match="2 of at least 3"):
        run_experiment(table_tables, nodes=3, client=Listener(fail))


@pytest.mark.parametrize(
    ("phase", "text", "message"),
    [
        ("schema", "[]", "the schema of client 'east' cannot be used: a schema needs 1 to"),
        ("graph", '{"names": ["height"], "edges": []}', "not over the common features"),
        ("graph", "{", "the feature graph is malformed"),
        ("finish", '{"test/a": "b"}', "are not numbers by name"),
    ],
)
def test_nonsense_is_refused_with_the_name_of_its_client(table_tables, run_experiment, phase, text, message):
    def change(request, content):
        if request.phase == phase:
            content.config_records["config"]["texts"] = [text, *content.config_records["config"]["texts"][1:]]
        return content

    with pytest.raises(RunError, match=f"(?s)east: .*{message}"):
        run_experiment(table_tables, nodes=1, client=Listener(change))


@pytest.mark.process
def test_a_stopped_run_goes_on_after_its_last_whole_phase(table_tables, run_experiment, tmp_path):
    whole = run_experiment(table_tables, nodes=1).summary()

    def stop(request, content):
        return error_content("stop") if request.phase == "finish" else content

    with pytest.raises(RunError, match="stop"):
        run_experiment(table_tables, nodes=1, client=Listener(stop))
    (folder,) = (path.parent for path in tmp_path.glob("runs/*/checkpoint.safetensors") if not _ended(path.parent))
    listener = Listener()
    resumed = run_experiment(table_tables, nodes=1, client=listener, folder=RunFolder.open(folder)).summary()
    assert [request.phase for request in listener.requests] == ["schema", "finish"]
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["per_client"] == whole["per_client"]
    assert resumed["exchanges"] == whole["exchanges"] + 1
    assert "global" in load_state(folder / "checkpoint.safetensors")


def _ended(folder):
    return (folder / "summary.json").exists()


def test_a_resumed_run_does_not_begin_again_with_fewer_clients(table_tables, run_experiment, tmp_path):
    """Such as when the nodes of some are not connected again yet."""
    table_tables["experiment"]["min-clients"] = 2
    table_tables["fedngm"] |= {"ngm": {"epochs": 2, "hidden": 4}, "merge": {"min-clients": 2}}
    nodes = nodes_with_states(tmp_path)
    with pytest.raises(RunError, match="stop"):
        run_experiment(
            table_tables, node_configs=nodes,
            client=Listener(lambda asked, content: error_content("stop") if asked.phase == "finish" else content),
        )  # fmt: skip
    (path,) = (tmp_path / "runs").iterdir()
    folder = RunFolder.open(path)
    assert folder.clients_before() == tuple(NAMES)
    with pytest.raises(IdentityError, match="clients that took part before the run was stopped, nobody hosts west"):
        run_experiment(table_tables, node_configs=nodes[:2], folder=folder)
    assert run_experiment(table_tables, node_configs=nodes, folder=folder).summary()["clients"] == 3


def test_a_resumed_run_that_begins_again_with_fewer_clients_says_so(table_tables, run_experiment, tmp_path):
    table_tables["experiment"] |= {"min-clients": 2, "on-missing": "skip", "wait": 0.0}
    table_tables["fedngm"] |= {"ngm": {"epochs": 2, "hidden": 4}, "merge": {"min-clients": 2}}
    nodes = nodes_with_states(tmp_path)
    with pytest.raises(RunError):
        run_experiment(
            table_tables, node_configs=nodes,
            client=Listener(lambda asked, content: error_content("stop") if asked.phase == "finish" else content),
        )  # fmt: skip
    (path,) = (tmp_path / "runs").iterdir()
    summary = run_experiment(table_tables, node_configs=nodes[:2], folder=RunFolder.open(path)).summary()
    assert summary["clients"] == 2
    again = "clients, or what they are asked for, had changed since the run was stopped: it began again"
    assert again in summary["notes"]


def test_average_and_rounds(table_tables, run_experiment):
    table_tables["fedngm"] |= {"global-model": "average", "rounds": 3, "personal": "fine-tuned"}
    listener = Listener()
    summary = run_experiment(table_tables, nodes=1, client=listener).summary()
    assert [request.phase for request in listener.requests] == ["schema", "graph", "fit", "fit", "fit", "finish"]
    starts = [request.parameters for request in listener.requests if request.phase == "fit"]
    assert starts[0] is None
    assert not torch.equal(starts[1], starts[2])
    assert summary["rounds"] == 3
    assert summary["metrics"]["test"]["weight-mae"]["mean"] < 6
    assert all(value is not None for value in summary["per_client"]["test"]["weight-mae-personal"].values())


def test_pooled_is_one_model_of_everybody(table_tables, run_experiment):
    table_tables["fedngm"]["global-model"] = "pooled"
    summary = run_experiment(table_tables, nodes=1).summary()
    for name in ("weight-mae", "ill-auc"):
        assert summary["per_client"]["test"][name] == summary["per_client"]["test"][f"{name}-local"]
    with pytest.raises(Exception, match="pooled.*one node"):
        run_experiment(table_tables, nodes=3)


def test_revealers_find_their_graphs(table_tables, run_experiment):
    table_tables["fedngm"] |= {"model": "ngr"}
    listener = Listener()
    folder = run_experiment(table_tables, nodes=1, client=listener)
    assert [request.phase for request in listener.requests] == ["schema", "fit", "finish"]
    graph = read_feature_graph(folder.path / "feature-graph.json")
    assert ("height", "weight") in graph.edges
    assert len(graph.edges) < 10
    assert folder.summary()["metrics"]["test"]["weight-mae"]["mean"] < 7


def test_what_settings_refuse(table_tables, run_experiment):
    table_tables["fedngm"]["targets"] = ["weight", "hight"]
    with pytest.raises(ExperimentError, match="targets names hight"):
        run_experiment(table_tables)
    table_tables["fedngm"]["targets"] = []
    table_tables["data"]["public-share"] = 0.0
    with pytest.raises(ExperimentError, match="source = 'public'"):
        run_experiment(table_tables)
    table_tables["model"] = {"name": "mlp"}
    with pytest.raises(ExperimentError, match="leave out .model."):
        run_experiment(table_tables)


def test_ranges_go_where_they_are_asked_for(table_tables, run_experiment):
    table_tables["fedngm"]["scaling"] = {"source": "shared-ranges"}
    table_tables["data"]["public-share"] = 0.0
    listener = Listener()
    run_experiment(table_tables, nodes=1, client=listener)
    assert [request.phase for request in listener.requests][:2] == ["schema", "statistics"]
    ranges = listener.requests[2].scaling.ranges
    assert set(ranges) == {"height", "weight", "stay"}
    low, high = ranges["height"]
    assert 140 < low < 160 < 180 < high < 200


def test_other_data_is_refused(table_tables, run_experiment):
    table_tables["data"] = {"set": "digits", "clients": 3}
    table_tables["fedngm"].pop("scaling")
    with pytest.raises((DataError, ExperimentError, Exception), match="needs clients with tables of their own"):
        run_experiment(table_tables)


@pytest.fixture
def summed(table_tables):
    """An experiment that recovers one graph from sums."""
    table_tables["fedngm"] |= {"recovery": {"source": "summed-statistics"}, "ngm": {"epochs": 2, "hidden": 4}}
    return table_tables


@pytest.mark.process
def test_a_graph_from_sums_is_that_of_pooled_rows(summed, run_experiment, tmp_path):
    plain, hidden = Listener(), Listener()
    folder = run_experiment(summed, nodes=2, client=plain)
    assert [request.phase for request in plain.requests][::2] == ["schema", "sums", "fit", "finish"]
    graph = read_feature_graph(folder.path / "feature-graph.json")
    assert {("height", "weight"), ("weight", "ill")} <= set(graph.edges)
    assert not (folder.path / "learned-graph.npz").exists(), "the server has seen no client's graph"
    source = client_table_source(open_source(parse_experiment(summed).data, tmp_path), "fedngm")
    model = GraphicalModel.load(folder.path / "graphical-model.safetensors")
    common = model.encoding.schema
    tables = [source.load_table(name) for name in NAMES]
    rows = np.concatenate([read_values(held.part("train"), common) for held in tables])
    pooled = UnitSums.of(model.encoding.encode(rows), common)
    settings = RecoverySettings(target_neighbours=4)
    assert recover_from_sums(settings, common, pooled, ["weight", "ill", "ward"]).graph == graph
    summed["fedngm"]["recovery"]["masks"] = True
    assert read_feature_graph(run_experiment(summed, nodes=3, client=hidden).path / "feature-graph.json") == graph
    assert [request.phase for request in hidden.requests][::3] == ["schema", "keys", "sums", "fit", "finish"]
    told = [content.array_records["stacked"]["sums"].numpy() for content in hidden.replies[6:9]]
    assert all((np.abs(each.astype(float)) > 2**53).mean() > 0.95 for each in told), "no client's own sums are seen"
    exact = UnitSums.from_flat(torch.from_numpy(np.concatenate(told)).sum(0), common)
    assert torch.equal(exact.counts, pooled.counts)
    assert torch.equal(exact.products, pooled.products)


def test_sums_have_the_noise_that_is_asked_for(summed, run_experiment):
    summed["fedngm"]["statistics"] = {"noise": {"mechanism": "gaussian", "epsilon": 2.0}}
    listener = Listener()
    run_experiment(summed, nodes=1, client=listener)
    told = listener.replies[1].array_records["stacked"]["sums"].numpy()
    assert (told < 0).any(), "there is noise on what is nothing"


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_epsilons_of_ranges_and_sums_add_up_to_that_of_the_run(summed, run_experiment, mechanism):
    bounds = {name: [-100, 100] for name in ("height", "weight", "stay", "dose", "ecg")}
    summed["fedngm"] |= {
        "scaling": {"source": "shared-ranges"},
        "statistics": {"bounds": bounds, "noise": {"mechanism": mechanism, "epsilon": 50.0}},
    }
    found = run_experiment(summed, nodes=1).summary()["privacy"]
    delta = 2e-6 if mechanism == "gaussian" else 0.0
    assert found == {
        "epsilon": 100.0, "delta": delta, "epsilon_of_each_release": 50.0, "delta_of_each_release": delta / 2,
        "mechanism": mechanism, "releases": 2, "covers": ["ranges", "sums"],
    }  # fmt: skip


@pytest.mark.parametrize("spoilt", [np.int64(-1), np.int64(2**40)])
def test_sums_that_none_have_are_refused_with_the_name_of_their_client(summed, run_experiment, spoilt):
    def change(request, content):
        if request.phase == "sums":
            stacked = content.array_records["stacked"]
            sums = stacked["sums"].numpy().copy()
            sums[1, 3] = spoilt
            stacked["sums"] = Array(sums)
        return content

    with pytest.raises(RunError, match="north: the sums .*168 rows"):
        run_experiment(summed, nodes=1, client=Listener(change))
    summed["experiment"] |= {"on-missing": "skip", "min-clients": 2}
    summary = run_experiment(summed, nodes=1, client=Listener(change)).summary()
    assert list(summary["per_client"]["test"]["weight-mae"]) == ["east", "west"]


def test_a_client_that_has_other_rows_than_it_says_is_left_out(summed, run_experiment):
    def change(request, content):
        config = content.config_records["config"]
        if request.phase == "schema" and "east" in config["clients"]:
            config["num-rows"] = [9]
        return content

    configs = [{"clients": name} for name in NAMES]
    with pytest.raises(RunError, match="east: the sums .*9"):
        run_experiment(summed, node_configs=configs, client=Listener(change))
    summed["experiment"] |= {"on-missing": "skip", "min-clients": 2}
    summary = run_experiment(summed, node_configs=configs, client=Listener(change)).summary()
    assert list(summary["per_client"]["test"]["weight-mae"]) == ["north", "west"]


@pytest.mark.parametrize("source", ["summed-statistics", "own-rows"])
def test_rows_that_a_client_only_claims_are_bounded(summed, run_experiment, monkeypatch, source):
    """It sends sums of as many rows as it claims, so that they fit each other."""
    seen = []
    monkeypatch.setattr(
        algorithm, "recover_from_sums", lambda settings, common, sums, targets: seen.append(sums.counts.max().item())
        or recover_from_sums(settings, common, sums, targets),
    )  # fmt: skip
    monkeypatch.setattr(
        algorithm, "average", lambda network, models, rows: seen.append(rows) or average(network, models, rows)
    )

    def change(request, content):
        config = content.config_records["config"]
        if "east" in config.get("clients", ()):
            if request.phase == "schema":
                config["num-rows"] = [168 * 10**6]
            elif request.phase == "sums":
                stacked = content.array_records["stacked"]
                stacked["sums"] = Array(stacked["sums"].numpy() * 10**6)
        return content

    summed["fedngm"] |= {"global-model": "average"}
    summed["fedngm"]["recovery"]["source"] = source
    configs = [{"clients": name} for name in NAMES]
    summary = run_experiment(summed, node_configs=configs, client=Listener(change)).summary()
    assert seen == [*([5 * 168] if source == "summed-statistics" else []), (3 * 168, 168, 168)]
    assert any("'east' counted as 504 examples each" in note for note in summary["notes"])


def test_who_is_lost_takes_its_masks_with_it_and_the_others_begin_again(summed, run_experiment):
    def fail(request, content):
        lost = request.phase == "sums" and content.config_records["config"]["clients"] == ["west"]
        return error_content("the disk is full") if lost else content

    summed["experiment"] |= {"on-missing": "skip", "min-clients": 2}
    summed["fedngm"]["recovery"]["masks"] = True
    listener = Listener(fail)
    folder = run_experiment(summed, nodes=3, client=listener)
    asked = [request for request in listener.requests if request.phase in ("keys", "sums")]
    assert [request.phase for request in asked] == ["keys"] * 3 + ["sums"] * 3 + ["keys"] * 2 + ["sums"] * 2
    assert set(asked[-1].keys) == {"east", "north"}
    assert not set(asked[-1].keys.values()) & set(asked[3].keys.values()), "keys are used once"
    assert ("height", "weight") in read_feature_graph(folder.path / "feature-graph.json").edges


class LosesState(Listener):
    """Clients whose node, before it is asked in a phase, gets the state folder that it had when asked in another."""

    def __init__(self, phase, before=None):
        super().__init__()
        self.phase, self.before, self.backup = phase, before, None

    def __call__(self, message, context):
        request = PhaseRequest.unpack(check_content(message.content))
        state = Path(context.node_config["state-dir"])
        if context.node_config["clients"] == "west":
            if (request.phase, request.round) == self.before:
                self.backup = shutil.copytree(state, state.with_name("backup"))
            if request.phase == self.phase:
                shutil.rmtree(state)
                if self.backup is not None:
                    shutil.copytree(self.backup, state)
        return super().__call__(message, context)


def nodes_with_states(tmp_path):
    return [{"clients": name, "state-dir": str(tmp_path / "state" / name)} for name in NAMES]


def test_keys_of_masks_that_are_gone_are_said_to_be(summed, run_experiment, tmp_path):
    summed["fedngm"]["recovery"]["masks"] = True
    with pytest.raises(RunError, match="west: the node no longer has the keys of masks of 'west'"):
        run_experiment(summed, node_configs=nodes_with_states(tmp_path), client=LosesState("sums"))
    summed["experiment"] |= {"on-missing": "skip", "min-clients": 2}
    client = LosesState("sums")
    folder = run_experiment(summed, node_configs=nodes_with_states(tmp_path), client=client)
    assert set(client.requests[-1].graph.names) <= set(COMMON)
    assert list(folder.summary()["per_client"]["test"]["weight-mae"]) == ["east", "north"]


@pytest.mark.parametrize("before", [None, ("fit", 2)])
def test_own_models_that_are_gone_or_older_have_no_scores(table_tables, run_experiment, tmp_path, before):
    """All else is as if they were there, which a note says."""
    table_tables["fedngm"] |= {"ngm": {"epochs": 2, "hidden": 4}, "global-model": "average", "rounds": 2}
    known = run_experiment(table_tables, node_configs=nodes_with_states(tmp_path / "known")).summary()
    assert not [note for note in known.get("notes", ()) if "own model" in note]
    nodes = nodes_with_states(tmp_path)
    found = run_experiment(table_tables, node_configs=nodes, client=LosesState("finish", before)).summary()
    (note,) = [note for note in found["notes"] if "own model" in note]
    assert note.startswith("no scores of the own models (-local) of 'west': their nodes no longer had these models")
    for name, values in known["per_client"]["test"].items():
        own = found["per_client"]["test"][name]
        assert own["east"] == values["east"]
        assert own.get("west") == (None if name.endswith("-local") else values["west"])


@pytest.mark.slow
def test_questions_with_half_of_the_values_hidden_are_alike_for_all_models(table_tables, run_experiment):
    table_tables["fedngm"] |= {"hidden": 0.5, "yardsticks": True, "targets": ["weight", "ill"]}
    test = run_experiment(table_tables, nodes=1).summary()["metrics"]["test"]
    for model in ("", "-local", "-trees", "-linear"):
        assert test[f"weight-mae{model}"]["mean"] < test[f"hidden-weight-mae{model}"]["mean"]
        assert 0.5 < test[f"hidden-ill-auc{model}"]["mean"] < test[f"ill-auc{model}"]["mean"] + 0.05
    assert test["hidden-weight-mae"]["mean"] < 8, "better than the mean of everybody"
