"""Requests of a server that differ from the experiment that a site has agreed to, put to the real ClientApp."""

import json
import sys

import pytest
import tomli_w
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedgraph.clients.app import app
from fedgraph.clients.engine.agreement import Agreement, changed_keys, keys_of
from fedgraph.clients.engine.node import Node
from fedgraph.experiment import load_experiment, parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.messages import CLIENT_KEY, EXPERIMENT_KEY, EmbedRequest, WorkRequest, read_error
from fedgraph.support.errors import ExperimentError, IdentityError

ROWS = 60
SFL = "fedgraph.clients.sfl:SFLClient"


@pytest.fixture
def patients(tmp_path, write_patients):
    return write_patients(tmp_path / "mercy.csv", ROWS)


def stays(**tables):
    """The experiment that the site agrees to, and with other tables what a server asks for."""
    base = {
        "experiment": {"name": "stays", "method": "sfl", "rounds": 5},
        "data": {
            "set": "table", "label": "long", "features": ["age", "salary"], "categories": {"long": ["no", "yes"]},
            "shares": [0.6, 0.2, 0.2],
        },
        "clients": {"expect": ["mercy"]},
        "model": {"name": "mlp", "hidden": [2]},
        "graph": {"source": "complete"},
    }  # fmt: skip
    return base | {
        name: {**base.get(name, {}), **table} if isinstance(table, dict) else table for name, table in tables.items()
    }


class Site:
    """A node with ``mercy.csv`` that has agreed to an experiment."""

    def __init__(self, folder, tables=None, **config):
        self.folder, self.file = folder, folder / "agreed.toml"
        if tables is not None:
            self.file.write_text(tomli_w.dumps(tables))
            config["agreement"] = str(self.file)
        config = {"clients": "mercy", "data": str(folder / "mercy.csv"), "state-dir": str(folder / "state"), **config}
        self.grid = LocalGrid(app, [config])
        self.node = Node.of(Context(1, 1, config, RecordDict(), {}))

    def ask(self, request, kind="train"):
        """Return the reply to a request, or the text of its refusal."""
        (reply,) = self.grid.send_and_receive([Message(request.pack(), 1000, kind)])
        return read_error(reply) or reply.content

    def train(self, tables, client=SFL, run="run", number=1, start=0.0, **fields):
        """Ask for a training with the experiment ``tables``."""
        experiment = parse_experiment(tables)
        part = experiment.client_part(experiment.method_settings.as_table(nulls=True))
        width = self.width(tables)
        models = {"parameters": torch.full((1, width), float(start))}
        return self.ask(
            WorkRequest(("mercy",), number, models, client=client, experiment=part, run=run, **fields),
            "train" if fields.get("train", True) else "evaluate",
        )

    def identify(self, tables, label_counts=False):
        experiment = parse_experiment(tables)
        part = experiment.client_part(experiment.method_settings.as_table(nulls=True))
        config = ConfigRecord({CLIENT_KEY: SFL, EXPERIMENT_KEY: part, "label-counts": label_counts})
        (reply,) = self.grid.send_and_receive([Message(RecordDict({"config": config}), 1000, "query.identify")])
        return read_error(reply)

    def width(self, tables):
        hidden = tables["model"].get("hidden", [2])
        (first,) = hidden or (2,)
        return len(stays()["data"]["features"]) * first + first + first * 2 + 2


def test_what_is_agreed_is_answered(tmp_path, patients):
    site = Site(tmp_path, stays())
    assert site.identify(stays()) is None
    reply = site.train(stays(), evaluate=("validation", "test"))
    assert reply.array_records["stacked"]
    assert site.train(stays(experiment={"name": "another"}), run="another").array_records["stacked"]


HOSTILE = [
    ("data.label", {"data": {"label": "hiv", "categories": {"hiv": ["negative", "positive"]}}}),
    ("data.label", {"data": {"label": "patient", "categories": {"patient": ["P0001", "P0002"]}}}),
    ("data.features", {"data": {"features": ["age", "hiv"]}}),
    ("data.shares", {"data": {"shares": [0.02, 0.0, 0.98]}}),
    ("data.partition-seed", {"data": {"partition-seed": 7}}),
    ("data.scaling", {"data": {"scaling": "none"}}),
    ("data.set", {"data": {"set": "os:system"}}),
    ("model.name", {"model": {"name": "os:system"}}),
    ("model.hidden", {"model": {"hidden": [3]}}),
    ("train.function", {"train": {"function": "os:system"}}),
    ("train.batch-size", {"train": {"batch-size": 1}}),
    ("train.learning-rate", {"train": {"learning-rate": 1e-6}}),
    ("experiment.seed", {"experiment": {"seed": 1}}),
    ("clients.expect", {"clients": {"expect": ["mercy", "mallory"]}}),
    ("sfl.lambda-global", {"sfl": {"lambda-global": 0.5}}),
    ("evaluation.unseen-classes", {"evaluation": {"unseen-classes": True}}),
    ("evaluation.horizons", {"evaluation": {"horizons": [1]}}),
]


@pytest.mark.parametrize(("key", "change"), HOSTILE)
def test_anything_else_is_refused_by_the_name_of_the_key(tmp_path, patients, caplog, key, change):
    site = Site(tmp_path, stays())
    asked = json.loads(part_of(stays()))
    for table, keys in change.items():
        place = {"experiment": asked, "evaluation": asked, "clients": asked, "sfl": asked["method"]}.get(table)
        (asked[table] if place is None else place).update(keys)
    request = WorkRequest(
        ("mercy",), 1, {"parameters": torch.zeros(1, 12)}, client=SFL, experiment=json.dumps(asked), run="run"
    )
    said = site.ask(request)
    assert "this site has agreed to another experiment" in said
    assert f"{key} is " in said
    assert key in caplog.text, "on the node's own log too"
    assert not (tmp_path / "state" / "runs").exists()


def part_of(tables):
    experiment = parse_experiment(tables)
    return experiment.client_part(experiment.method_settings.as_table(nulls=True))


def test_another_client_class_is_refused_before_it_is_imported(tmp_path, patients, monkeypatch):
    (tmp_path / "never_imported.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    said = Site(tmp_path, stays()).train(stays(), client="never_imported:Client")
    assert "experiment.client is" in said
    assert "never_imported" not in sys.modules


def test_nothing_is_built_from_names_in_a_request(tmp_path, patients):
    agreed = {
        "experiment": {"name": "x", "method": "f3"},
        "data": {
            "set": "table-columns", "label": "long", "key-column": "patient", "owners": {"mercy": ["age", "salary"]},
            "categories": {"long": ["no", "yes"]}, "shares": [0.6, 0.2, 0.2],
        },
        "clients": {"expect": ["mercy"]},
        "model": {"name": "mlp", "hidden": [3]},
    }  # fmt: skip
    site = Site(tmp_path, agreed)
    mark = tmp_path / "ran"
    asked = json.loads(part_of(agreed))
    asked["model"] = {
        "name": "scikit-learn", "estimator": "subprocess:Popen",
        "estimator-options": {"args": f"touch {mark}", "shell": True},
    }  # fmt: skip
    client = "fedgraph.clients.f3:F3Client"
    said = site.ask(EmbedRequest(client=client, experiment=json.dumps(asked), run="run"), EmbedRequest.message_type)
    assert 'model.estimator is unset, and the run asks for "subprocess:Popen"' in said
    assert not mark.exists()
    agreed_request = EmbedRequest(client=client, experiment=part_of(agreed), run="run")
    assert site.ask(agreed_request, EmbedRequest.message_type).array_records["stacked"]
    other = EmbedRequest(("test",), client=client, experiment=part_of(agreed), run="run")
    assert "embeddings once in a run" in site.ask(other, EmbedRequest.message_type)
    new = EmbedRequest(("new",), client=client, experiment=part_of(agreed), run="other")
    assert "new samples" in site.ask(new, EmbedRequest.message_type)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"predict": True, "train": False}, "evaluation.compare-peers"),
        ({"evaluate": ("train",)}, "evaluation.splits"),
        ({"number": 6}, "experiment.rounds"),
        ({"number": 6, "train": False, "evaluate": ("test",)}, "experiment.rounds"),
    ],
)
def test_only_messages_of_the_experiment_are_answered(tmp_path, patients, fields, key):
    assert f"{key} is" in Site(tmp_path, stays()).train(stays(), **fields)


@pytest.mark.parametrize("entries", [[], ["experiment.rounds <= 9"], ["experiment.rounds"]])
def test_there_are_no_rounds_before_the_first(tmp_path, patients, entries):
    site = Site(tmp_path, {**stays(), "agreement": {"open": entries}})
    for number in (0, -1, -(2**60)):
        assert f"round {number} of the request is none" in site.train(stays(), number=number)
    assert "round -1 of the request is none" in site.train(stays(), number=-1, train=False, evaluate=("test",))
    assert site.train(stays(), number=0, train=False, evaluate=("test",)).metric_records["metrics"]


def test_requests_of_a_method_of_phases_have_one_round():
    tables = {"experiment": {"name": "x", "method": "simple-forecast"}, "data": {"set": "metr-la"}}
    agreement = Agreement.of(parse_experiment({**tables, "model": {"name": "gru"}}))
    agreement.check_message(WorkRequest(("773869",), 1, {}, train=False, evaluate=("test",)).pack())
    with pytest.raises(ExperimentError, match="experiment.rounds is 1, and the run asks for 2"):
        agreement.check_message(WorkRequest(("773869",), 2, {}, train=False, evaluate=("test",)).pack())


def test_label_counts_leave_only_for_the_graph_that_needs_them(tmp_path, patients):
    assert "graph.source is" in Site(tmp_path, stays()).identify(stays(), label_counts=True)
    agreed = stays(graph={"source": "labels"})
    assert Site(tmp_path, agreed).identify(agreed, label_counts=True) is None
    rare = stays(graph={"source": "labels"}, data={"label": "hiv", "categories": {"hiv": ["negative", "positive"]}})
    assert "rows of class 1, and its site answers about 10" in Site(tmp_path, rare).identify(rare, label_counts=True)


def test_a_client_trains_once_in_a_round(tmp_path, patients):
    site = Site(tmp_path, stays())
    first = site.train(stays(), start=0.1)
    again = site.train(stays(), start=0.1)
    for name, array in first.array_records["stacked"].items():
        assert array.data == again.array_records["stacked"][name].data, "a repeated request has the same answer"
    assert "training in round 1 once in a run" in site.train(stays(), start=0.2)
    assert site.train(stays(), start=0.2, number=2).array_records["stacked"]


@pytest.mark.parametrize(
    ("entries", "changes", "key"),
    [
        (["train.learning-rate"], {"train": {"learning-rate": 3.0}}, None),
        (["train"], {"train": {"learning-rate": 3.0, "batch-size": 7}}, None),
        (["train.learning-rate <= 0.5"], {"train": {"learning-rate": 0.5}}, None),
        (["train"], {"train": {"function": "their_training:train"}}, "train.function"),
        (["train.learning-rate <= 0.5"], {"train": {"learning-rate": 0.6}}, "train.learning-rate"),
        (["train.batch-size >= 16"], {"train": {"batch-size": 8}}, "train.batch-size"),
        (["train.learning-rate"], {"train": {"batch-size": 8}}, "train.batch-size"),
        (["experiment.seed"], {"experiment": {"seed": 3}}, None),
    ],
)
def test_what_is_open_may_change(tmp_path, patients, entries, changes, key):
    site = Site(tmp_path, {**stays(), "agreement": {"open": entries}})
    said = site.train(stays(**changes))
    assert f"{key} is" in said if key else said.array_records["stacked"]


def test_an_open_number_of_rounds_has_a_bound(tmp_path, patients):
    site = Site(tmp_path, {**stays(), "agreement": {"open": ["experiment.rounds <= 200"]}})
    assert site.train(stays(), number=200).array_records["stacked"]
    assert "experiment.rounds is" in site.train(stays(), number=201)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("train.learning_rate", "no key 'train.learning_rate'; did you mean 'train.learning-rate'"),
        ("train.learning-rate < 3", "is not a key such as"),
        ("train.learning-rate <= much", "'much', which is not a number"),
    ],
)
def test_an_entry_that_opens_nothing_is_an_error(entry, message):
    with pytest.raises(ExperimentError, match=message):
        Agreement.of(parse_experiment({**stays(), "agreement": {"open": [entry]}}))


def test_few_rows_are_not_answered_about(tmp_path, patients):
    few = stays(data={"shares": [0.7, 0.1, 0.2]})
    said = Site(tmp_path, few).identify(few)
    assert "'mercy' has 6 validation rows, and its site answers about 10 at least" in said
    assert "6 validation rows" in Site(tmp_path, few).train(few)
    assert Site(tmp_path, {**few, "agreement": {"least-rows": 6}}).identify(few) is None
    without = {**few, "evaluation": {"splits": ["test"]}}
    assert Site(tmp_path, without).identify(without) is None


@pytest.mark.parametrize(("least", "told"), [(None, False), (4, True)])
def test_few_rows_of_unseen_classes_are_not_told_of(tmp_path, patients, least, told):
    tested = patients.head(12).assign(long=["new"] * 4 + ["no"] * 8)
    tested.to_csv(tmp_path / "tested.csv", index=False)
    data = {"categories": {"long": ["no", "yes", "new"]}, "test": "shared", "test-path": "tested.csv"}
    agreed = stays(data=data, evaluation={"unseen-classes": True, "splits": ["test"]})
    agreed["data"]["shares"] = [0.8, 0.2, 0.0]
    limits = {"agreement": {"least-rows": least}} if least else {}
    site = Site(tmp_path, {**agreed, **limits}, **{"data-dir": str(tmp_path)})
    models = {"parameters": torch.zeros(1, 2 * 2 + 2 + 2 * 3 + 3)}
    request = WorkRequest(
        ("mercy",), 1, models, {}, ("test",), False, client=SFL, experiment=part_of(agreed), run="run"
    )
    (accuracy,) = site.ask(request, "evaluate").metric_records["metrics"]["test/accuracy-unseen"]
    assert (accuracy == accuracy) == told


def test_a_node_reads_its_own_files_whatever_a_request_names(tmp_path, patients):
    (tmp_path / "secret.csv").write_text("age,salary,long\n" + "1,2,yes\n3,4,no\n" * 30)
    agreed = stays(data={"path": str(tmp_path / "mercy.csv"), "client-column": "long"})
    asked = stays(data={"path": str(tmp_path / "secret.csv"), "client-column": "long"})
    site = Site(tmp_path, agreed)
    assert json.loads(site.node.agreement.agreed(SFL, part_of(asked)))["data"]["path"] == str(tmp_path / "mercy.csv")


def test_a_deployed_node_without_an_agreement_answers_nothing(tmp_path, patients, monkeypatch):
    assert Site(tmp_path).identify(stays()) is None, "in a simulation there is nothing to agree to"
    monkeypatch.setattr("fedgraph.clients.engine.agreement.is_simulated", lambda: False)
    said = Site(tmp_path).identify(stays())
    assert "has agreed to no experiment: start it with `fedgraph node EXPERIMENT.toml`" in said
    assert "has agreed to no experiment" in Site(tmp_path).train(stays())
    assert Site(tmp_path, agreement="any").identify(stays()) is None
    assert Site(tmp_path, stays()).identify(stays()) is None
    with pytest.raises(IdentityError, match="cannot read"):
        Site(tmp_path, agreement=str(tmp_path / "gone.toml")).node.agreement  # noqa: B018


def test_a_changed_file_is_another_agreement(tmp_path, patients):
    site = Site(tmp_path, stays())
    asked = stays(train={"batch-size": 8})
    assert "train.batch-size" in site.train(asked)
    site.file.write_text(tomli_w.dumps(asked))
    assert site.train(asked).array_records["stacked"]


def test_what_has_changed_since_is_told_key_by_key(tmp_path):
    before, now = (keys_of(parse_experiment(tables)) for tables in (
        stays(), {**stays(data={"label": "hiv"}), "agreement": {"open": ["train"]}}
    ))  # fmt: skip
    assert changed_keys(before, now) == [
        'agreement.open: [], now ["train"]',
        'data.label: "long", now "hiv"',
    ]
    assert changed_keys(before, before) == []


@pytest.mark.parametrize("name", ["sfl", "fedavg", "ipa", "f3", "fedper", "scaffold", "ditto"])
def test_a_run_over_sites_that_agree_is_the_run_without(request, run_experiment, tmp_path, name):
    tables = request.getfixturevalue("patches_tables" if name == "f3" else "digits_tables")
    tables["experiment"] |= {"method": name}
    usual = run_experiment(tables)
    agreed = tmp_path / "agreed.toml"
    agreed.write_text(load_experiment(usual.path / "experiment.toml").as_toml() + "\n[agreement]\nleast-rows = 1\n")
    sites = run_experiment(
        tables, node_configs=[{"partition-id": i, "num-partitions": 2, "agreement": str(agreed)} for i in range(2)]
    )
    assert sites.summary()["weights_sha256"] == usual.summary()["weights_sha256"]
