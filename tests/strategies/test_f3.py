"""F3 in people's own Flower apps."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_iris

from fedgraph.clients import client_name, embeddings, penultimate
from fedgraph.federation.grids import LocalGrid
from fedgraph.fusion import FusionClassifier, JoinedSamples
from fedgraph.graph import ClientGraph
from fedgraph.messages import to_record
from fedgraph.strategies import F3
from fedgraph.support.errors import DataError, IdentityError, RunError
from fedgraph.support.files import load_state

FAST = {"scaling": "owner", "epochs": 40, "learning_rates": (0.05,), "draws": 2, "batch_size": 20, "workers": 1}
X, Y = load_iris(return_X_y=True)
IDS = [f"flower-{number}" for number in range(150)]
COLUMNS = {"mercy": slice(0, 2), "ucla": slice(1, 3), "county": slice(2, 4)}
LACKING = {"mercy": range(0, 10), "ucla": (), "county": range(5, 30)}
NEW = range(140, 150)


def held(name):
    rows = [row for row in range(150) if row not in LACKING[name]]
    return [IDS[row] for row in rows], X[rows][:, COLUMNS[name]], Y[rows], rows


def flowers(change=lambda name, message, ids, values, labels, split: None):
    """Clients that hold some of the measures of some flowers each; only ucla has labels. ``change`` may answer."""
    app = ClientApp(mods=[client_name])

    @app.query()
    def query(message, context):
        name = context.node_config["client"]
        ids, values, labels, rows = held(name)
        labels = [None if row in NEW else label for row, label in zip(rows, labels, strict=True)]
        given = (ids, values, labels if name == "ucla" else None, None)
        return change(name, message, *given) or embeddings(message, *given)

    return app


def grid(app=None, names=tuple(COLUMNS)):
    return LocalGrid(app or flowers(), [{"client": name} for name in names])


def test_a_model_of_all_features_from_one_query():
    strategy = F3(**FAST)
    result = strategy.start(grid=grid(), initial_arrays=ArrayRecord(), num_rounds=3)
    assert strategy.classifier.owners_ == ("county", "mercy", "ucla")
    assert strategy.graph.names == ("county", "mercy", "ucla")
    assert strategy.metrics["validation/accuracy"] > 0.8
    assert dict(result.evaluate_metrics_serverapp[1]) == strategy.metrics
    assert list(strategy.history.columns) == ["learning_rate", "epoch", "training_loss", "validation_loss"]
    told = strategy.predict(grid())
    assert set(told.index) == {IDS[row] for row in NEW}
    assert (told.to_numpy() == Y[[IDS.index(key) for key in told.index]]).all()
    assert told.dtype == np.int64
    chosen = strategy.predict_proba(grid(), ids=["flower-7", "flower-145"])
    assert list(chosen.index) == ["flower-7", "flower-145"]
    assert list(chosen.columns) == [0, 1, 2]


def test_labels_that_are_all_different_are_told_to_be_no_classes():
    def by_row(name, message, ids, values, labels, split):
        return embeddings(message, ids, values, ids if name == "ucla" else None)

    with pytest.raises(DataError, match="150 .*one of its class"):
        F3(**FAST).start(grid(flowers(by_row)))


@pytest.mark.parametrize(
    ("others", "split", "left"),
    [
        (["mercy", "county"], None, "1[0-9][0-9] labelled samples of 1 classes"),
        ([], "test", "0 labelled samples of 0 classes"),
        ([], "validation", "0 labelled samples of 0 classes"),
    ],
)
def test_where_too_little_is_left_to_train_on_it_is_said(others, split, left):
    def contradicting(name, message, ids, values, labels, given):
        return embeddings(message, ids, values, ["yes"] * len(ids) if name in others else labels, split)

    with pytest.raises(DataError, match=f"{left} are left for training, .*the same one, .*split"):
        F3(**FAST).start(grid(flowers(contradicting)))


def test_the_model_is_that_of_the_classifier_bit_for_bit():
    strategy = F3(**FAST, seed=3)
    strategy.start(grid())
    labelled = [row for row in range(150) if row not in NEW]
    by_owner = {}
    for name in COLUMNS:
        ids, values, _, rows = held(name)
        kept = [place for place, row in enumerate(rows) if row in labelled]
        by_owner[name] = [ids[place] for place in kept], values[kept]
    alone = FusionClassifier(**FAST, random_state=3).fit(
        by_owner, pd.Series(Y[labelled], [IDS[row] for row in labelled])
    )
    same(strategy.classifier.fusion_.network.state_dict(), alone.fusion_.network.state_dict())
    fresh = {name: (held(name)[0][-10:], held(name)[1][-10:]) for name in COLUMNS}
    expected = alone.predict_proba(fresh)
    pd.testing.assert_frame_equal(strategy.predict_proba(grid()).loc[expected.index], expected)


def same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_the_model_is_that_of_a_run_of_the_engine_bit_for_bit(patches_tables, run_experiment):
    patches_tables["data"] |= {"lacking-share": 0.2}
    folder = run_experiment(patches_tables)
    joined = JoinedSamples.of_state(load_state(folder.checkpoint)["samples"])
    app = ClientApp(mods=[client_name])

    @app.query()
    def query(message, context):
        column = joined.owners.index(context.node_config["client"])
        rows = joined.present[:, column].nonzero().flatten().flip(0)
        return embeddings(
            message,
            [joined.keys[row] for row in rows],
            joined.embeddings[rows, column, : joined.sizes[column]],
            [int(joined.classes[label]) for label in joined.labels[rows]],
            [("train", "validation", "test")[split] for split in joined.split[rows]],
        )

    strategy = F3(epochs=2, learning_rates=(0.01,), draws=2, batch_size=200, workers=1, device="cpu")
    strategy.start(LocalGrid(app, [{"client": name} for name in reversed(joined.owners)]))
    same(strategy.classifier.fusion_.network.state_dict(), load_state(folder.path / "fusion.safetensors")["network"])
    summary = folder.summary()["metrics"]["test"]
    assert strategy.metrics["test/accuracy"] == pytest.approx(summary["accuracy"]["mean"])
    assert strategy.metrics["test/auc"] == pytest.approx(summary["auc"]["mean"])


def test_a_pytorch_app_changes_six_lines(caplog):
    torch.manual_seed(0)
    models = [torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)) for _ in range(2)]
    app = ClientApp()

    @app.query()
    def query(message, context):
        part = int(context.node_config["partition-id"])
        values = torch.from_numpy(X[:, 2 * part : 2 * part + 2]).float()
        return embeddings(message, range(150), penultimate(models[part], values), Y)

    strategy = F3(**FAST | {"epochs": 100})
    nodes = LocalGrid.of_partitions(app, 2)
    strategy.start(nodes)
    with pytest.raises(IdentityError, match="`client_name` .*first mod"):
        F3(**FAST, graph=ClientGraph.complete(["0", "1"])).start(nodes)
    # Without the mod, clients are called by the ids of their nodes.
    assert strategy.classifier.owners_ == ("1000", "1001")
    assert strategy.metrics["validation/accuracy"] > 0.8
    with caplog.at_level(logging.WARNING, "fedgraph"):
        told = strategy.predict(nodes, ids=[3, 9999, 149, 20])
    assert list(told.items()) == [(3, 0), (149, 2), (20, 0)]
    assert told.dtype == np.int64
    assert "no client has 1 of 4 ids, which are not predicted: '9999'" in caplog.text
    with pytest.raises(DataError, match="sample to predict"):
        strategy.predict(nodes, ids=[1000])


def test_clients_that_fail_or_answer_nonsense_are_left_out_by_name(caplog):
    def answered(name, message, ids, values, labels, split):
        if name == "mercy":
            raise OSError("disk is full")
        if name == "county":
            reply = embeddings(message, ids, values, labels, split)
            broken = torch.full((len(reply.content["config"]["keys"]), 2), torch.nan)
            samples = reply.content["samples"]
            reply.content["samples"] = ArrayRecord({**dict(samples), **dict(to_record({"embeddings": broken}))})
            return reply
        return None

    strategy = F3(**FAST)
    with caplog.at_level(logging.ERROR, "fedgraph"):
        strategy.start(grid(flowers(answered)))
    assert strategy.classifier.owners_ == ("ucla",)
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert any("going on without node 1000: OSError: disk is full" in each for each in errors)
    assert any("without client 'county': its embeddings hold NaN, infinite or huge values" in each for each in errors)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (lambda content: content.pop("samples"), "malformed"),
        (lambda content: content["config"].update({"keys": ["b", "a"]}), "ids of samples are not sorted"),
        (lambda content: content["config"].update({"size": 1 << 30}), "size outside 1 to"),
        (lambda content: content["config"].update({"classes": ["0", "0"]}), "names a class twice"),
        (lambda content: content["config"].update({"class-kind": "int", "classes": ["0", "x", "y"]}), "of the kind"),
        (lambda content: content["fedgraph"].update({"client": "a\nb"}), "the name of a client is not text"),
        (lambda content: content["fedgraph"].update({"client": "mercy"}), "another node has the name 'mercy' too"),
    ],
)
def test_replies_are_checked_before_they_are_used(broken, problem, caplog):
    inner = flowers()

    def app(message, context):
        reply = inner(message, context)
        if context.node_config["client"] == "county":
            broken(reply.content)
        return reply

    strategy = F3(**FAST)
    with caplog.at_level(logging.ERROR, "fedgraph"):
        strategy.start(grid(app))
    assert "county" not in strategy.classifier.owners_
    assert "ucla" in strategy.classifier.owners_
    assert any(problem in record.message for record in caplog.records)


def test_owners_that_are_gone_or_changed_or_new_when_samples_are_predicted(caplog):
    strategy = F3(**FAST)
    strategy.start(grid())
    everybody = strategy.predict_proba(grid())
    some = strategy.predict_proba(grid(names=("ucla", "county")))
    assert list(some.index) == list(everybody.index)
    assert (some.to_numpy() != everybody.to_numpy()).any()

    def longer(name, message, ids, values, labels, split):
        return embeddings(message, ids, np.hstack([values, values]), labels) if name == "county" else None

    with caplog.at_level(logging.ERROR, "fedgraph"):
        changed = strategy.predict_proba(grid(flowers(longer), names=("ucla", "county")))
    assert "client 'county': its embeddings have 4 numbers" in caplog.text
    pd.testing.assert_frame_equal(changed, strategy.predict_proba(grid(names=("ucla",))))
    fresh = F3(**FAST)
    fresh.start(grid(names=("ucla", "county")))
    with caplog.at_level(logging.ERROR, "fedgraph"):
        fresh.predict(grid())
    assert "client 'mercy': the fusion model was trained without it" in caplog.text


def test_splits_may_be_said_by_clients_and_graphs_given():
    def divided(name, message, ids, values, labels, split):
        split = [("train", "validation", "test")[int(key.rpartition("-")[2]) % 3] for key in ids]
        return embeddings(message, ids, values, [int(Y[IDS.index(key)]) for key in ids], split)

    graph = ClientGraph.complete(["ucla", "mercy", "county", "elsewhere"])
    strategy = F3(**FAST, graph=graph)
    strategy.start(grid(flowers(divided)))
    assert strategy.metrics["test/accuracy"] > 0.8
    assert strategy.graph == graph.subgraph(["county", "mercy", "ucla"])
    with pytest.raises(ValueError, match="no client 'mercy'"):
        F3(**FAST, graph=ClientGraph.complete(["ucla", "county"])).start(grid())


def test_what_is_sent_along_and_to_which_handler():
    seen = []
    inner, app = flowers(), ClientApp()

    @app.query("fuse")
    def query(message, context):
        seen.append(dict(message.content["mine"]))
        return inner(Message(message.content, message.metadata.dst_node_id, "query"), context)

    def answer(message, context):
        reply = app(message, context)
        return Message(reply.content, reply_to=message)

    F3(**FAST, message_type="query.fuse", configrecord_key="mine").start(
        grid(answer), train_config=ConfigRecord({"level": 3})
    )
    assert seen == [{"level": 3, "server-round": 1}] * 3


def renamed(*names, keep_labels=False):
    """Clients some of which call their samples otherwise than the others do."""

    def change(name, message, ids, values, labels, split):
        if name not in names:
            return None
        own = [f"{name}/{each}" for each in ids]
        told = [int(Y[IDS.index(each)]) for each in ids] if keep_labels else labels
        return embeddings(message, own, values, told, split)

    return grid(flowers(change))


@pytest.mark.parametrize("keep_labels", [False, True])
def test_clients_that_share_no_samples_are_warned_of(keep_labels, caplog):
    with caplog.at_level(logging.WARNING, "fedgraph"):
        F3(**FAST).start(renamed("mercy", keep_labels=keep_labels))
    told = [record.message for record in caplog.records if "shares no labelled sample" in record.message]
    assert len(told) == 1
    assert "client 'mercy' shares no labelled sample with other clients" in told[0]
    assert "such as 'mercy/flower-10'" in told[0]
    caplog.clear()
    F3(**FAST).start(grid())
    assert "shares no labelled sample" not in caplog.text


@pytest.mark.parametrize("keep_labels", [False, True])
def test_there_is_nothing_to_fuse_where_no_clients_share_samples(keep_labels):
    with pytest.raises(DataError, match="share a labelled sample.*'mercy/flower-10'"):
        F3(**FAST).start(renamed("mercy", "county", keep_labels=keep_labels))


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"alignmnet": "soft"}, TypeError, "'alignmnet'.*did you mean 'alignment'"),
        ({"epoch": 3}, TypeError, "'epoch'.*did you mean 'epochs'"),
        ({"owners": 2}, TypeError, "'owners'.*: absent, .*seed"),
        ({"alignment": "sof"}, ValueError, "alignment: .*'sof'"),
    ],
)
def test_keywords_that_are_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        F3(**keywords)


def test_what_cannot_be_is_said_before_anybody_is_asked():
    with pytest.raises(RunError, match="^1 nodes .*min_available_nodes = 2"):
        F3().start(grid(names=("ucla",)))
    with pytest.raises(RunError, match="call start first"):
        F3().predict(grid())
    with pytest.raises(RunError, match=r"no client sent a usable answer.*@app.query\) of 'query'"):
        F3().start(grid(lambda message, context: Message(RecordDict(), reply_to=message)))
    with pytest.raises(DataError, match="two .*sent 0.* -1 means no label"):
        F3().start(grid(names=("mercy", "county")))
