import json
import logging
import re
from dataclasses import replace

import pytest
import torch
from disturbances.experiments import prepared
from disturbances.in_process import InProcess
from disturbances.scenario import Scenario
from disturbances.trial import undisturbed_run
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, message_size_mod

from fedgraph.algorithms.fedngm_messages import PhaseRequest
from fedgraph.clients.app import app, client_app
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.disclosure import check_covered
from fedgraph.clients.engine.node import Node
from fedgraph.clients.ipa import IPAClient
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.federation.identity import check_proof, read_public_keys
from fedgraph.messages import (
    CHALLENGE_KEY,
    CLIENT_KEY,
    EXPERIMENT_KEY,
    EmbedRequest,
    Identity,
    WorkReply,
    WorkRequest,
    check_content,
    read_error,
    read_proof,
)
from fedgraph.support.errors import ExperimentError, FedgraphError, IdentityError
from fedgraph.support.status import STATUS_FILE, StatusFile

COHORT_CLIENT = "fedgraph.clients.engine.base:CohortClient"
IPA_CLIENT = "fedgraph.clients.ipa:IPAClient"


@pytest.fixture
def part(digits_tables):
    return parse_experiment(digits_tables).client_part({})


FULL = {"full-errors": True}


def identify(part, node_config, label_counts=False, challenge=None, client=COHORT_CLIENT):
    grid = LocalGrid(app, [node_config])
    config = ConfigRecord({CLIENT_KEY: client, EXPERIMENT_KEY: part, "label-counts": label_counts})
    if challenge is not None:
        config[CHALLENGE_KEY] = challenge
    (reply,) = grid.send_and_receive([Message(RecordDict({"config": config}), 1000, "query.identify")])
    check_content(reply.content)
    return reply


def work(part, client=COHORT_CLIENT, clients=("client-0",), kind="evaluate", **config):
    grid = LocalGrid(app, [{"clients": "client-0", **config}])
    models = torch.zeros(1, 64 * 16 + 16 + 16 * 10 + 10)
    request = WorkRequest(
        clients, 1, {"parameters": models}, evaluate=("test",), train=kind == "train",
        client=client, experiment=part, run="run",
    )  # fmt: skip
    (reply,) = grid.send_and_receive([Message(request.pack(), 1000, kind)])
    return reply


def test_identity_of_named_clients(part):
    identity = Identity.unpack(identify(part, {"clients": "client-4, client-1"}).content)
    assert identity.clients == ("client-1", "client-4")
    assert identity.partition is None
    assert identity.label_counts is None
    assert (identity.num_examples["train"] > 0).all()
    assert identity.task.kind == "classification"
    assert "digits" in identity.data


def test_identity_of_a_partition_with_label_counts(part):
    identity = Identity.unpack(identify(part, {"partition-id": 2, "num-partitions": 3}, label_counts=True).content)
    assert identity.clients == ("client-4", "client-5")
    assert identity.partition == (2, 3)
    assert identity.label_counts.shape == (2, 10)
    assert torch.equal(identity.label_counts.sum(dim=1), identity.num_examples["train"])
    assert ((identity.label_counts > 0).sum(dim=1) < 10).all()


def test_a_node_without_clients_says_so(part):
    identity = Identity.unpack(identify(part, {"partition-id": 8, "num-partitions": 9}).content)
    assert identity.clients == ()
    assert identity.task is None


def test_errors_for_people_come_back_as_their_message(part):
    assert read_error(identify(part, {})).startswith("this node does not know which clients it hosts")
    assert read_error(work(part, clients=("client-3",))) == "this node hosts client-0, not client-3"
    assert "cannot import 'nowhere'" in read_error(work(part, client="nowhere:Client"))


def test_values_that_an_error_quotes_stay_with_their_node(part, tmp_path, monkeypatch, caplog):
    (tmp_path / "quotes_here.py").write_text(
        "from fedgraph.support.errors import DataError\n"
        "class Client:\n    @classmethod\n    def handle(cls, message, node):\n"
        "        raise DataError(\"column 'x' holds 'Jane Doe', which is no category\", quoted=\"'Jane Doe'\")\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    said = read_error(work(part, "quotes_here:Client"))
    assert said == "column 'x' holds (its node's log says which), which is no category"
    assert "Jane Doe" in caplog.text
    assert "Jane Doe" in read_error(work(part, "quotes_here:Client", **FULL))


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_every_kind_of_message_reaches_the_client_class(part, kind):
    reply = work(part, kind=kind)
    assert read_error(reply) is None
    shapes = {"parameters": (64 * 16 + 16 + 16 * 10 + 10,)} if kind == "train" else {}
    unpacked = WorkReply.unpack(reply.content, ["client-0"], shapes)
    assert unpacked.metrics["test/loss"].item() == pytest.approx(2.302585, abs=1e-4)


def test_a_plug_in_that_breaks_is_an_error_reply(part, tmp_path, monkeypatch, caplog):
    (tmp_path / "breaks_here.py").write_text(
        "class Client:\n    @classmethod\n    def handle(cls, message, node):\n        return 1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    where = "ZeroDivisionError in breaks_here.py, line 4"
    assert read_error(work(part, "breaks_here:Client", **FULL)) == f"{where}: division by zero"
    assert read_error(work(part, "breaks_here:Client")) == f"{where}: details are in the log of the node"
    assert "division by zero" in caplog.text


@pytest.mark.parametrize("kind", ["RuntimeError", "fedgraph.support.errors.DataError"])
def test_places_of_a_node_and_values_that_it_met_stay_with_it(part, tmp_path, monkeypatch, kind):
    """Neither in the words of an error that this project raises, nor in those of any other."""
    own = tmp_path / "own" / "patients.csv"
    module = f"speaks_of_{kind.rpartition('.')[2]}"
    (tmp_path / f"{module}.py").write_text(
        "import fedgraph.support.errors\nclass Client:\n    @classmethod\n    def handle(cls, message, node):\n"
        f"        raise {kind}('cannot read {own}, {tmp_path}/data/x.csv, /srv/secret/y.csv and ~/z')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    places = {"data": str(own), "data-dir": str(tmp_path / "data"), "state-dir": str(tmp_path)}
    said = read_error(work(part, f"{module}:Client", **places))
    for hidden in (str(tmp_path), "srv", "patients", "~"):
        assert hidden not in said
    if "Data" in kind:
        assert said == "cannot read <data>, <data-dir>/x.csv, <path> and <path>"
    assert f"cannot read {own}" in read_error(work(part, f"{module}:Client", **places, **FULL))


# ---- who may host a client


def test_only_expected_clients_of_a_node_take_part(digits_tables):
    digits_tables["clients"] = {"expect": ["client-1", "client-5"]}
    part = parse_experiment(digits_tables).client_part({})
    for config, hosted in (
        ({"clients": "client-0, client-1"}, ("client-1",)),
        ({"clients": "client-0"}, ()),
        ({"partition-id": 1, "num-partitions": 2}, ("client-5",)),
    ):
        assert Identity.unpack(identify(part, config).content).clients == hosted


def test_a_node_signs_whom_it_hosts_where_it_is_asked_to(part, tmp_path, write_key):
    write_key(tmp_path / "key")
    keys = dict.fromkeys(("client-1", "client-4"), read_public_keys(tmp_path)["key"])
    config = {"clients": "client-4, client-1", "private-key": str(tmp_path / "key")}
    content = identify(part, config, challenge="of this run").content
    assert Identity.unpack(content).clients == ("client-1", "client-4")
    check_proof(keys, read_proof(content), "of this run", 1000, ["client-1", "client-4"])
    with pytest.raises(IdentityError, match="private key of 'client-1'"):
        check_proof(keys, read_proof(content), "of this run", 1000, ["client-1"])
    assert read_proof(identify(part, config).content) is None
    assert "set the node config key 'private-key'" in read_error(
        identify(part, {"clients": "client-1"}, challenge="of this run")
    )


@pytest.mark.parametrize("content", [None, b"no key"])
def test_a_private_key_that_cannot_be_read_is_told_without_its_place(part, tmp_path, content):
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    config = {"clients": "client-1", "private-key": str(tmp_path / "key")}
    said = read_error(identify(part, config, challenge="of this run"))
    assert said.startswith("node config 'private-key': cannot read <private-key>")
    assert str(tmp_path) not in said


def test_a_partition_that_is_no_number_is_named(part):
    assert "partition-id" in read_error(identify(part, {"partition-id": "one", "num-partitions": 3}))


def test_statistics_of_data_do_not_leave_beside_noise_that_covers_all(part):
    noisy = json.dumps({**json.loads(part), "method": {"privacy": {"clip-norm": 1.0, "epsilon": 1.0}}})
    told = identify(noisy, {"clients": "client-0", **FULL}, label_counts=True, client=IPA_CLIENT)
    assert re.search(r"is to cover all .* does not cover the numbers of their labels, for \[graph\]", read_error(told))
    assert read_error(identify(noisy, {"clients": "client-0"}, client=IPA_CLIENT)) is None
    plain = json.dumps({**json.loads(part), "method": {}})
    assert read_error(identify(plain, {"clients": "client-0"}, label_counts=True, client=IPA_CLIENT)) is None
    check_covered(IPAClient, Assignment.of(plain), True, True, ("test",))
    with pytest.raises(ExperimentError, match="means and deviations of their readings, for common scales"):
        check_covered(IPAClient, Assignment.of(noisy), False, True)
    with pytest.raises(ExperimentError, match="set .evaluation. unseen-classes = false"):
        check_covered(IPAClient, replace(Assignment.of(noisy), unseen_classes=True), False, False)


LABEL = {"label": "long", "categories": {"long": ["no", "yes"]}}
SITE = {
    "sfl": {"set": "table", "features": ["age"], **LABEL},
    "f3": {"set": "table-columns", "key-column": "patient", "owners": {"mercy": ["age"]}, **LABEL},
    "fedngm": {"set": "mixed-table"},
}


@pytest.mark.parametrize("config", [{}, FULL])
@pytest.mark.parametrize("method", SITE)
def test_notes_on_columns_stay_with_their_node(write_patients, tmp_path, method, config):
    patients = write_patients(tmp_path / "mercy.csv", 60)
    patients.loc[:1, "patient"], patients.loc[:3, "age"] = ["Ada", "ADA"], -999
    patients.to_csv(tmp_path / "mercy.csv", index=False)
    tables = {"experiment": {"name": "stays", "method": method}, "data": SITE[method]}
    experiment = parse_experiment(tables if method == "fedngm" else {**tables, "model": {"name": "mlp"}})
    part = experiment.client_part(experiment.method_settings.as_table(nulls=True))
    client = experiment.method.client_class
    requests = {
        "sfl": RecordDict({"config": ConfigRecord({CLIENT_KEY: client, EXPERIMENT_KEY: part})}),
        "fedngm": PhaseRequest("schema", client=client, experiment=part, run="run").pack(),
        "f3": EmbedRequest(client=client, experiment=part, run="run").pack(),
    }
    kind = {"sfl": "query.identify", "fedngm": "query", "f3": EmbedRequest.message_type}[method]
    own = {"clients": "mercy", "data": str(tmp_path / "mercy.csv"), "state-dir": str(tmp_path / "state"), **config}
    (reply,) = LocalGrid(app, [own]).send_and_receive([Message(requests[method], 1000, kind)])
    said = str(reply.content.config_records["config"]["data"])
    assert "60 " in said
    assert ("'age' holds -999" in said) == bool(config)
    assert ("'ADA' and 'Ada' of 'patient' are two categories" in said) == (bool(config) and method == "fedngm")


@pytest.mark.parametrize(
    ("fields", "shared", "refused"),
    [
        ({"evaluate": ("validation",)}, True, True),
        ({"evaluate": ("test",)}, False, True),
        ({"predict": True, "train": False}, False, True),
        ({"evaluate": ("test",), "train": False}, True, False),
        ({"predict": True, "train": False}, True, False),
    ],
)
def test_metrics_of_own_data_do_not_leave_beside_noise_that_covers_all(digits_tables, fields, shared, refused):
    digits_tables["experiment"]["method"] = "ipa"
    digits_tables["ipa"] = {"privacy": {"clip-norm": 1.0, "noise-multiplier": 10.0}}
    if shared:
        digits_tables["data"]["test"] = "shared"
    experiment, hosted = parse_experiment(digits_tables), ("client-0",)
    part = experiment.client_part(experiment.method_settings.as_table(nulls=True))
    layout = Node.of(Context(0, 0, {}, RecordDict(), {})).cohort(part, hosted).model.layout
    models = {"parameters": torch.zeros(1, layout.num_parameters)}
    request = WorkRequest(hosted, 1, models, **fields, client=IPA_CLIENT, experiment=part, run="run")
    grid = LocalGrid(app, [{"clients": "client-0", **FULL}])
    (reply,) = grid.send_and_receive([Message(request.pack(), 1000, "train")])
    error = read_error(reply)
    assert "does not cover metrics of clients' own data" in error if refused else error is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"least_noise": 1}, "'least-noise' has no effect"),
        ({"agrement": "any"}, "'agrement', which limits nothing; did you mean 'agreement'"),
        ({"own-key": 1}, None),
    ],
)
def test_a_limit_of_a_node_that_would_not_hold_is_an_error(part, config, message):
    for found in (work(part, **config, **FULL), identify(part, {"clients": "client-0", **config, **FULL})):
        assert (message or "") in (read_error(found) or "")
        assert (read_error(found) is None) == (message is None)


OWN_ANSWERS = ("sfl", "ipa", "adam", "f3", "f3-forecast", "f3-forecast-inference", "cnfgnn", "simple-forecast")
DID = re.compile(
    r"""answered\ the\ roll\ call\ as\ .*\ \(.*\ s\)
  | (evaluated|trained|forecast|sent|received)\ .*(\d\ rows|\d\ windows|round\ \d|test).*\ \(.*\ s\)""",
    re.VERBOSE,
)
THE_SERVER_DID = re.compile(r"round \d of \d: |exchange \d: |run folder")


@pytest.fixture
def told(tmp_path, monkeypatch):
    """``told()``: the lines that processes told the screen; afterwards this process tells nobody."""
    log = logging.getLogger("fedgraph")
    monkeypatch.setenv(STATUS_FILE, str(tmp_path / "told"))
    monkeypatch.setattr(log, "handlers", log.handlers.copy())
    return lambda: [line.text for line in StatusFile(tmp_path / "told").new_lines()]


@pytest.mark.parametrize("name", [*OWN_ANSWERS, "joint-forecast"])
def test_a_node_says_what_it_did_for_each_message(name, tmp_path, told):
    tables, configs = prepared(Scenario(title=name, experiment=name), tmp_path)
    undisturbed_run(InProcess(tmp_path, tables=tables, configs=configs, data_dir=tmp_path / "no-data"))
    by_nodes = [text for text in told() if not THE_SERVER_DID.match(text)]
    assert len(by_nodes) >= len(configs)
    assert [text for text in by_nodes if not DID.fullmatch(text)] == []


@pytest.mark.process
@pytest.mark.parametrize("method", ["sfl", "fedavg", "f3", "fedngm"])
def test_mods_that_count_work_around_every_message(request, run_experiment, method):
    """Flower's count bytes of every entry of a record, and cannot of empty ones."""
    tables = request.getfixturevalue({"f3": "patches_tables", "fedngm": "table_tables"}.get(method, "digits_tables"))
    tables["experiment"] |= {"method": method}
    counted = []

    def counting(message, context, call_next):
        counted.append(message.metadata.message_type)
        return call_next(message, context)

    usual = run_experiment(tables).summary()
    within = run_experiment(tables, client=client_app([counting, message_size_mod, arrays_size_mod])).summary()
    assert within["weights_sha256"] == usual["weights_sha256"]
    assert counted


def test_a_mod_that_changes_a_model_refuses_ours(digits_tables, run_experiment):
    with pytest.raises(FedgraphError):
        run_experiment(digits_tables, client=client_app([LocalDpMod(1.0, 1.0, 1.0, 0.1)]))
