"""Requests of a server that differ from the experiment that a site has agreed to, put to the real ClientApp."""

import json
import sys
from dataclasses import replace

import pytest
import tomli_w
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedgraph.algorithms.fedngm_messages import PhaseRequest
from fedgraph.clients.app import app
from fedgraph.clients.engine.agreement import Agreement, changed_keys, keys_of
from fedgraph.clients.engine.node import Node
from fedgraph.data.encoding import Scaling
from fedgraph.data.schema import Schema, schema_from_json
from fedgraph.experiment import load_experiment, parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.graphical.recovery import UnitSums
from fedgraph.messages import (
    CLIENT_KEY,
    EXPERIMENT_KEY,
    EmbedRequest,
    WorkRequest,
    check_content,
    from_record,
    read_error,
)
from fedgraph.runs import RunFolder
from fedgraph.support.errors import ExperimentError, IdentityError, RunError

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

    def identify(self, tables, label_counts=False, client=SFL):
        experiment = parse_experiment(tables)
        part = experiment.client_part(experiment.method_settings.as_table(nulls=True))
        config = ConfigRecord({CLIENT_KEY: client, EXPERIMENT_KEY: part, "label-counts": label_counts})
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
        assert f"the request is for round {number}, and rounds begin at 1" in site.train(stays(), number=number)
    assert "the request is for round -1, and rounds begin at 0" in site.train(
        stays(), number=-1, train=False, evaluate=("test",)
    )
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


def trained(reply):
    """The models of a reply, or the text of a refusal."""
    return reply if isinstance(reply, str) else reply.array_records["stacked"]["parameters"].data


def test_a_client_trains_as_often_as_rounds_are_agreed_over_all_runs(tmp_path, patients):
    site = Site(tmp_path, stays(experiment={"rounds": 2}))
    first = trained(site.train(stays(), start=0.1))
    for run in ("run", "another"):
        assert trained(site.train(stays(), start=0.1, run=run)) == first, "a repeated request has the same answer"
    assert site.train(stays(), start=0.2).array_records["stacked"], "as of a resumed run that has lost a client"
    for run, number in (("run", 1), ("run", 2), ("a third", 1)):
        refused = site.train(stays(), start=0.3, run=run, number=number)
        assert "training 2 times over all runs" in refused
        assert '[agreement] open = ["experiment.rounds <= ..."]' in refused
    assert trained(site.train(stays(), start=0.1, run="a fourth")) == first
    site.file.write_text(tomli_w.dumps({**stays(), "agreement": {"open": ["experiment.rounds <= 3"]}}))
    assert site.train(stays(), start=0.3).array_records["stacked"], "the site has agreed to one more"
    site.file.write_text(tomli_w.dumps({**stays(), "agreement": {"open": ["experiment"]}}))
    assert site.train(stays(), start=0.4).array_records["stacked"]


def test_models_are_measured_as_often_as_rounds_need_it_over_all_runs(tmp_path, patients):
    site = Site(tmp_path, stays(experiment={"rounds": 1}))
    said = [site.train(stays(), start=start, run=f"run-{start}", train=False, evaluate=("test",)) for start in range(6)]
    assert [isinstance(each, str) for each in said] == [False] * 5 + [True]
    assert "evaluation 5 times over all runs" in said[-1]


@pytest.mark.parametrize("method", ["scaffold", "ditto", "adam"])
def test_a_repeated_request_is_not_answered_from_another_state(tmp_path, patients, method):
    tables = stays(experiment={"method": "sfl" if method == "adam" else method, "rounds": 2})
    tables.pop("graph")
    if method == "adam":
        tables |= {"train": {"optimizer": "adam", "keep-optimizer": True}, "graph": {"source": "complete"}}
    site, client = Site(tmp_path, tables), client_of(tables)
    control = {"control": torch.full((12,), 0.1)} if method == "scaffold" else {}
    models = {"parameters": torch.full((1, 12), 0.1)}
    shared = {"parameters": models["parameters"][0], **control}

    def train(number, attempts, keep_from=0, run="run"):
        stacked, rest = (models, {}) if method == "adam" else ({}, shared)
        request = WorkRequest(
            ("mercy",), number, stacked, rest, keep_from=keep_from, attempts=attempts, client=client,
            experiment=part_of(tables), run=run,
        )  # fmt: skip
        return trained(site.ask(request))

    first, last = {"aaaaaaaa": 9}, {"aaaaaaaa": 1, "bbbbbbbb": 9}
    answers = train(1, first), train(2, first)
    assert not any(isinstance(answer, str) for answer in answers)
    assert train(2, last) == answers[1], "resumed from a checkpoint after round 1"
    assert train(2, {**last, "cccccccc": 9}) == answers[1]
    assert train(1, {**last, "cccccccc": 9}) == answers[0], "from the beginning"
    refused = "training 2 times over all runs"
    assert refused in train(2, {"dddddddd": 9}), "as if nothing had been kept"
    assert refused in train(2, first, run="another")
    assert train(1, first, run="another") == answers[0]
    assert train(2, first, run="another") == answers[1]


def client_of(tables):
    return parse_experiment(tables).method.client_class


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


@pytest.mark.parametrize("named", [{"x": "subprocess:Popen"}, ["os:system"], [{"x": ["os:system"]}]])
def test_code_within_an_open_table_is_not_open(named):
    agreement = Agreement.of(parse_experiment({**stays(), "agreement": {"open": ["model"]}}))
    asked = json.loads(part_of(stays()))
    asked["model"]["estimator-options"] = named
    with pytest.raises(ExperimentError, match=r"model\.estimator-options is"):
        agreement.agreed(SFL, json.dumps(asked))


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


@pytest.mark.parametrize("kind", ["table", "table-columns"])
def test_names_of_values_that_few_rows_have_do_not_leave(tmp_path, patients, kind):
    table = patients.assign(long=["Ann Smith", *patients["long"][1:]])
    owners = {"key-column": "patient", "owners": {"mercy": ["age", "salary"]}} if kind == "table-columns" else {}
    features = {} if owners else {"features": ["age", "salary"], "client-column": "ward"}
    table.assign(ward="mercy").to_csv(tmp_path / "all.csv", index=False)
    data = {"set": kind, "path": "all.csv", "label": "long", "shares": [0.6, 0.2, 0.2], **owners, **features}
    agreed = stays(data=data) | {"data": data}
    config = {"clients": "mercy", "data": "", "data-dir": str(tmp_path)}
    said = Site(tmp_path, agreed, **config).identify(agreed)
    assert "names of values in fewer than 10 rows do not leave this node" in said
    assert "[data.categories] long = [...]" in said
    assert "Ann" not in said
    assert Site(tmp_path, {**agreed, "agreement": {"least-rows": 1}}, **config).identify(agreed) is None
    patients.assign(ward="mercy").to_csv(tmp_path / "more.csv", index=False)
    agreed["data"] = {**data, "path": "more.csv"}
    assert Site(tmp_path, agreed, **config).identify(agreed) is None, "all have enough rows"


@pytest.mark.parametrize(
    ("method", "tables", "remedy"),
    [
        ("sfl", {}, "use a method that has noise"),
        ("ipa", {}, "set the table `privacy` of the method"),
        ("ipa", {"ipa": {"privacy": {"clip-norm": 1.0, "noise-multiplier": 10.0, "releases": 5}}}, None),
        ("fedngm", {"fedngm": {"statistics": {"noise": {"epsilon": 1.0}}}}, "use a method that has noise"),
    ],
)
def test_a_site_with_an_epsilon_answers_only_methods_with_noise(tmp_path, patients, method, tables, remedy):
    agreed = stays(experiment={"method": method}, **tables)
    if method == "fedngm":
        agreed = {key: agreed[key] for key in ("experiment", "clients", "fedngm")} | {"data": {"set": "mixed-table"}}
    client = client_of(agreed)
    site = Site(tmp_path, {**agreed, "agreement": {"epsilon": 5.0}})
    if method == "fedngm":
        request = PhaseRequest("schema", client=client, experiment=part_of(agreed), run="run")
        said = [site.ask(request, "query")]
    else:
        shared = {"others": torch.zeros(1, 12), "weights": torch.zeros(1), "there": torch.ones(1)}
        request = WorkRequest(
            ("mercy",), 1, {"parameters": torch.zeros(1, 12)}, shared if method == "ipa" else {}, client=client,
            experiment=part_of(agreed), run="run",
        )  # fmt: skip
        said = [site.identify(agreed, client=client), site.ask(request)]
    if remedy is None:
        assert said[0] is None
        assert said[1].array_records["stacked"]
    else:
        for each in said:
            assert "an epsilon of 5 ([agreement] epsilon), and the run releases without noise" in each
            assert remedy in each


CLIENT = "fedgraph.clients.fedngm:FedNGMClient"


def fedngm(folder, patients, **agreement):
    """A site with a rare ward and a name, its experiment, and a function that asks it for a phase."""
    wards = ["surgery"] * 30 + ["heart"] * 22 + ["hiv"] * 7 + ["ANN"]
    patients.assign(ward=wards, name=["Ann"] * 30 + ["ANN"] + ["Eve"] * 29).drop(columns="patient").to_csv(
        folder / "mercy.csv", index=False
    )
    agreed = {
        "experiment": {"name": "x", "method": "fedngm"}, "clients": {"expect": ["mercy"]},
        "data": {"set": "mixed-table", "shares": [0.6, 0.2, 0.2], "table-schema": {"least-rows": 2}},
        "fedngm": {"recovery": {"source": "summed-statistics"}},
    }  # fmt: skip
    site = Site(folder, {**agreed, "agreement": agreement})

    def ask(phase, **known):
        request = PhaseRequest(phase, **known, client=CLIENT, experiment=part_of(agreed), run="run")
        reply = site.ask(request, "query")
        return reply if isinstance(reply, str) else check_content(reply)

    return ask


@pytest.mark.parametrize(("least", "wards"), [(None, ["surgery", "heart"]), (7, ["surgery", "heart", "hiv"])])
def test_names_of_categories_need_the_rows_that_the_site_requires(tmp_path, patients, least, wards):
    reply = fedngm(tmp_path, patients, **({"least-rows": least} if least else {}))("schema")
    schema = schema_from_json(reply.config_records["config"]["texts"][0])
    assert set(schema.select(["ward"]).features[0].categories) == set(wards)
    assert reply.config_records["config"]["data"] == "own data, 60 rows, 1 client", "notes on the file quote cells"


def test_rows_of_categories_that_a_server_makes_up_are_missing(tmp_path, patients):
    ask = fedngm(tmp_path, patients)
    (ward,) = schema_from_json(ask("schema").config_records["config"]["texts"][0]).select(["ward"]).features
    made_up = Schema((replace(ward, kind="categorical", categories=(*ward.categories, "hiv")),))
    flat = from_record(ask("sums", common=made_up).array_records["stacked"])["sums"][0]
    sums = UnitSums.from_flat(flat, made_up).sums[:, 0]
    assert (sums > 0).tolist() == [True, True, False]


def test_ranges_that_a_server_makes_up_single_out_no_rows(tmp_path, patients):
    ask = fedngm(tmp_path, patients)
    schema = schema_from_json(ask("schema").config_records["config"]["texts"][0]).select(["age", "salary"])
    richest = patients["salary"].nlargest(6).iloc[-1]

    def said(low, high):
        scaling = Scaling({"age": (0.0, 100.0), "salary": (float(low), float(high))})
        return ask("sums", common=schema, scaling=scaling)

    assert "rows above the low end of a range, and its site answers about 10" in said(richest, richest + 1)
    assert "rows below the high end of a range" in said(-1, patients["salary"].nsmallest(6).iloc[-1])
    assert said(0, 100_000).array_records["stacked"]


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


class Crashing(LocalGrid):
    """A grid whose server is gone once the nodes have trained a third time."""

    trainings = 0

    def send_and_receive(self, messages, **known):
        messages = list(messages)
        replies = super().send_and_receive(messages, **known)
        Crashing.trainings += any(message.metadata.message_type == "train" for message in messages)
        if Crashing.trainings == 3:
            raise RunError("the server is gone")
        return replies


@pytest.mark.parametrize("method", ["scaffold", "ditto"])
def test_a_run_that_is_resumed_or_repeated_exactly_costs_no_trainings(run_experiment, tmp_path, digits_tables, method):
    digits_tables["experiment"] |= {"method": method, "rounds": 4}
    whole, agreed = run_experiment(digits_tables), tmp_path / "agreed.toml"
    agreed.write_text((whole.path / "experiment.toml").read_text() + "\n[agreement]\nleast-rows = 1\n")
    site = {"num-partitions": 2, "agreement": str(agreed), "state-dir": str(tmp_path / "state")}
    sites = [{"partition-id": i, **site} for i in range(2)]
    Crashing.trainings = 0
    folder = RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")
    with pytest.raises(RunError, match="the server is gone"):
        run_experiment(None, node_configs=sites, folder=folder, grid=Crashing)
    run_experiment(None, node_configs=sites, folder=folder)
    again = run_experiment(digits_tables, node_configs=sites)
    weights = {each.summary()["weights_sha256"] for each in (whole, folder, again)}
    assert len(weights) == 1
