"""FedNGM in people's own Flower apps."""

import logging
import re

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgraph.clients import table_client_app
from fedgraph.data import open_source, parse_data
from fedgraph.federation.grids import LocalGrid
from fedgraph.graphical import GraphicalModel
from fedgraph.strategies import FedNGM
from fedgraph.support.errors import IdentityError, RunError
from fedgraph.support.files import load_state

FAST = {
    "ngm": {"epochs": 30, "hidden": 8, "batch_size": 128, "learning_rate": 0.02, "patience": 10},
    "recovery": {"penalty": 0.02},
    "distillation": {"samples": 300},
    "sampling": {"sweeps": 5},
}
SHARED = FAST | {"scaling": {"source": "shared-ranges"}}
NAMES = ("mercy", "st-olav", "ucla")


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    """Nodes keep models in the home of this test."""
    monkeypatch.delenv("FEDGRAPH_STATE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def patients(name):
    """Patients of a hospital; only one measures the dose, which depends on the pressure."""
    random, rows = np.random.default_rng(NAMES.index(name)), 300
    age, smoker = random.normal(60, 12, rows), random.random(rows) < 0.3
    pressure = 120 + 0.8 * (age - 60) + 15 * smoker + random.normal(0, 5, rows)
    frame = pd.DataFrame({"age": age, "smoker": np.where(smoker, "yes", "no"), "pressure": pressure})
    return frame if name != "ucla" else frame.assign(dose=0.1 * (pressure - 120) + random.normal(0, 0.3, rows))


def app(load=patients, **options):
    return table_client_app(lambda context: load(context.node_config["client"]), **{"consent": ["ranges"]} | options)


def grid(client_app=None, names=NAMES, **config):
    return LocalGrid(client_app or app(), [{"client": name, **config} for name in names])


def test_one_model_of_all_data_frames(tmp_path, caplog):
    strategy = FedNGM(**SHARED)
    with caplog.at_level(logging.INFO, "fedgraph"):
        strategy.start(grid=grid(), num_rounds=1)
    assert caplog.messages[0] == "FedNGM"
    old, young = strategy.model.predict([{"age": 80}, {"age": 40}], "pressure")
    assert old - young == pytest.approx(32, abs=8)
    assert {*map(frozenset, strategy.graph.edges)} >= {frozenset({"pressure", other}) for other in ("age", "smoker")}
    drawn = strategy.model.sample(200, given={"smoker": "yes"}, random_state=0)
    assert list(drawn.columns) == ["age", "smoker", "pressure"]
    assert strategy.metrics.index.tolist() == list(NAMES)
    assert (strategy.metrics["test/smoker-auc"] > 0.7).all()
    history = strategy.history
    assert list(history.columns) == ["round", "client", "metric", "value"]
    assert len(history) == strategy.metrics.size
    # Personal models stay at the clients, with their private features.
    kept = sorted(tmp_path.rglob("graphical/*/*.safetensors"))
    assert [path.stem for path in kept] == list(NAMES)
    assert "dose" in GraphicalModel.load(kept[2]).encoding.schema.names


def test_personal_models_are_fetched_from_clients_that_share_them(caplog):
    strategy = FedNGM(**SHARED)
    shared = app(share_models=True)
    strategy.start(grid(shared))
    models = strategy.fetch_models(grid(shared))
    assert list(models) == list(NAMES)
    assert models is strategy.client_models
    high, low = models["ucla"].predict([{"pressure": 150}, {"pressure": 110}], "dose")
    assert high - low == pytest.approx(4, abs=1.5)
    assert "dose" not in models["mercy"].schema_.names
    with caplog.at_level(logging.ERROR, "fedgraph"):
        assert strategy.fetch_models(grid()) == {}
    assert "does not share its personal model" in caplog.text

    def broken(message, context):
        reply = shared(message, context)
        if context.node_config["client"] == "mercy":
            reply.content["config"]["personal-model"] = b"no model"
        return reply

    with caplog.at_level(logging.ERROR, "fedgraph"):
        assert list(strategy.fetch_models(grid(broken))) == list(NAMES[1:])
    assert "without the model of client 'mercy'" in caplog.text


def test_the_model_is_that_of_a_run_of_the_engine_bit_for_bit(table_tables, run_experiment, tmp_path):
    table_tables["data"] |= {"public-share": 0.0, "shares": [0.7, 0.1, 0.2]}
    table_tables["fedngm"]["scaling"] = {"source": "shared-ranges"}
    ran = run_experiment(table_tables, node_configs=[{"clients": name} for name in ("east", "north", "west")])
    source = open_source(parse_data(table_tables["data"]), tmp_path)

    def load(name):
        return source.load_table(name).table.to_pandas()

    def named(table):
        return {
            key.replace("-", "_"): named(value) if isinstance(value, dict) else value for key, value in table.items()
        }

    settings = {key: value for key, value in named(table_tables["fedngm"]).items() if key != "targets"}
    strategy = FedNGM(**settings, targets=("weight", "ill", "ward"), folder=tmp_path / "ours")
    strategy.start(grid(app(load), ("west", "east", "north")))
    expected, found = (load_state(path / "graphical-model.safetensors") for path in (ran.path, tmp_path / "ours"))
    assert torch.equal(expected["parameters"], found["parameters"])
    assert torch.equal(expected["adjacency"], found["adjacency"])
    told = ran.summary()["metrics"]["test"]
    assert strategy.metrics["test/weight-mae-personal"].mean() == pytest.approx(told["weight-mae-personal"]["mean"])


def test_clients_are_called_by_partition_where_the_node_config_says_no_name():
    strategy = FedNGM(**SHARED)
    answers = table_client_app(lambda context: patients(NAMES[context.node_config["partition-id"]]), consent="ranges")
    strategy.start(LocalGrid.of_partitions(answers, 3))
    assert strategy.metrics.index.tolist() == ["0", "1", "2"]


def test_clients_that_fail_or_answer_nonsense_are_left_out(caplog):
    inner = app()

    def answer(message, context):
        phase = message.content.config_records["config"].get("phase")
        if context.node_config["client"] == "mercy" and phase == "fit":
            raise OSError("disk is full")
        return inner(message, context)

    strategy = FedNGM(**SHARED)
    with caplog.at_level(logging.ERROR, "fedgraph"):
        strategy.start(grid(answer))
    assert strategy.metrics.index.tolist() == list(NAMES[1:])
    assert any(
        record.levelname == "ERROR"
        and "client 'mercy' was excluded" in record.message
        and "disk is full" in record.message
        for record in caplog.records
    )

    def nonsense(message, context):
        if context.node_config["client"] == "mercy":
            return Message(RecordDict({"config": ConfigRecord({"clients": ["mercy"]})}), reply_to=message)
        return inner(message, context)

    strategy = FedNGM(**SHARED)
    strategy.start(grid(nonsense))
    assert strategy.metrics.index.tolist() == list(NAMES[1:])


def test_without_test_rows_models_are_learned_and_not_measured():
    strategy = FedNGM(**SHARED, shares=(0.9, 0.1, 0.0), yardsticks=True, hidden=0.3, sample_quality=True)
    strategy.start(grid())
    assert strategy.metrics.index.tolist() == list(NAMES)
    assert strategy.metrics.isna().all(axis=None)
    assert strategy.history.empty
    assert np.isfinite(strategy.model.predict([{"age": 80}], "pressure")).all()


def test_few_test_rows_are_measured_but_not_compared_with_samples():
    strategy = FedNGM(**SHARED, sample_quality=True)
    strategy.start(grid(app(lambda name: patients(name).head(30 if name == "mercy" else 300))))
    quality = strategy.metrics["test/samples-told-apart"]
    assert quality.isna().tolist() == [True, False, False]
    assert strategy.metrics["test/pressure-mae"].notna().all()


def test_nothing_leaves_without_consent_and_errors_tell_no_values(caplog):
    with pytest.raises(RunError, match="consent"):
        FedNGM(**SHARED).start(grid(app(consent=())))

    def words(name):
        return patients(name).assign(age="Mrs Jones")

    with caplog.at_level(logging.WARNING, "fedgraph"), pytest.raises(Exception, match=r"\w") as raised:
        FedNGM(**SHARED, schema={"kinds": {"age": "real"}}).start(grid(app(words)))
    assert "Jones" not in str(raised.value)


def test_columns_are_described_by_the_strategy():
    strategy = FedNGM(**SHARED, schema={"drop": ["smoker"], "least_rows": 3})
    strategy.start(grid())
    assert strategy.graph.names == ("age", "pressure")
    public = patients("mercy")
    strategy = FedNGM(**FAST, scaling={"source": "public"}, public=public)
    strategy.start(grid(app(consent=())))
    assert strategy.model.predict({"age": 60}, "pressure")[0] == pytest.approx(124, abs=5)


def test_columns_that_a_client_lacks_or_names_otherwise_are_warned_of(caplog):
    def otherwise(name):
        return patients(name).rename(columns={"pressure": "Pressure"} if name == "mercy" else {})

    strategy = FedNGM(**SHARED)
    with caplog.at_level(logging.WARNING, "fedgraph"):
        strategy.start(grid(app(otherwise)))
    assert set(strategy.graph.names) == {"age", "smoker"}
    (told,) = [record.message for record in caplog.records if record.message.startswith("no common features")]
    assert "'pressure' (no values at 'mercy', which has 'Pressure')" in told
    assert "'Pressure' (no values at 'st-olav', which has 'pressure', 'ucla', which has 'pressure')" in told
    assert "'dose' (no values at 'mercy', 'st-olav')" in told
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedgraph"):
        FedNGM(**SHARED).start(grid(names=NAMES[:2]))
    assert "no common features" not in caplog.text


def test_categories_that_one_client_writes_otherwise_are_warned_of(caplog):
    def otherwise(name):
        frame = patients(name)
        return frame.assign(smoker=(frame.smoker == "yes").astype(int)) if name == "mercy" else frame

    with caplog.at_level(logging.WARNING, "fedgraph"):
        FedNGM(**SHARED).start(grid(app(otherwise)))
    assert "no category of 'smoker' at 'mercy' ('0', '1') occurs at another client" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedgraph"):
        FedNGM(**SHARED).start(grid())
    assert "no category of" not in caplog.text


def test_numbers_in_another_unit_are_warned_of_where_ranges_are_shared(caplog):
    def otherwise(name):
        return patients(name).eval("age = 365 * age") if name == "mercy" else patients(name)

    with caplog.at_level(logging.WARNING, "fedgraph"):
        FedNGM(**SHARED).start(grid(app(otherwise)))
    assert [each for each in caplog.messages if "overlaps" in each] == [
        "the range of 'age' at 'mercy' overlaps with that of no other client: does it have the same unit at all?"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fedgraph"):
        FedNGM(**SHARED).start(grid())
    assert "overlaps" not in caplog.text


FILES = re.compile(r"\[(data|experiment|fedngm)|node-config|min-clients|missing-codes")


def test_errors_say_what_to_do_in_an_app(caplog):
    def refused(words, client_app, names=NAMES, **settings):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "fedgraph"), pytest.raises((RunError, IdentityError)) as raised:
            FedNGM(**settings).start(grid(client_app, names))
        assert words in str(raised.value)
        assert not FILES.search(str(raised.value) + caplog.text)

    refused('table_client_app(consent=["ranges"])', app(consent=()), **SHARED)
    sums = SHARED | {"recovery": {"source": "summed-statistics"}}
    refused('table_client_app(consent=["sums"])', app(), **sums)
    infinite = app(lambda name: patients(name).assign(age=np.inf))
    refused("leave the cell empty (NaN) if it is missing", infinite, **SHARED)
    few = 'lower FedNGM(merge={"min_clients": ...}) and min_available_nodes'
    refused(few, app(), NAMES[:2], **SHARED, merge={"min_clients": 3})
    refused(
        "none of 3 connected nodes can take part (each needs the ClientApp of table_client_app)", ClientApp(), **SHARED
    )
    with pytest.raises(IdentityError, match="none of 3 connected nodes can take part; node 1000: column 'smoker'"):
        FedNGM(**SHARED, schema={"kinds": {"smoker": "real"}}).start(grid())
    refused("so does another node: set a different client in each node config", app(), ("mercy", "mercy"), **SHARED)
    inner = app()

    def answer(message, context):
        if message.content["config"]["phase"] == "fit" and context.node_config["client"] == "mercy":
            raise OSError("disk is full")
        return inner(message, context)

    refused("2 of at least 3 clients (FedNGM(min_available_nodes=...))", answer, **SHARED, min_available_nodes=3)


def test_a_model_of_own_ranges_says_how_an_app_gets_common_ones(caplog):
    strategy = FedNGM(**FAST)
    with caplog.at_level(logging.WARNING, "fedgraph"):
        strategy.start(grid())
    words = 'FedNGM(scaling={"source": "shared-ranges"})', 'table_client_app(consent=["ranges"])'
    assert all(each in caplog.text for each in words)
    assert not FILES.search(caplog.text)
    with pytest.raises(ValueError, match="common ranges is made with") as raised:
        strategy.model.predict({"age": 60}, "pressure")
    assert all(each in str(raised.value) for each in words)


def test_a_strategy_that_was_stopped_goes_on_from_its_folder(tmp_path):
    asked, inner = [], app()

    def watched(message, context):
        asked.append(message.content.config_records["config"]["phase"])
        if asked[-1] == "finish" and asked.count("finish") == 1:
            raise KeyboardInterrupt
        return inner(message, context)

    with pytest.raises(KeyboardInterrupt):
        FedNGM(**SHARED, folder=tmp_path / "kept").start(grid(watched))
    before = len(asked)
    strategy = FedNGM(**SHARED, folder=tmp_path / "kept")
    strategy.start(grid(watched))
    assert set(asked[before:]) == {"schema", "finish"}
    whole = FedNGM(**SHARED)
    whole.start(grid())
    assert torch.equal(strategy.model.model_.parameters, whole.model.model_.parameters)


def test_a_strategy_that_has_finished_learns_again_from_the_rows_that_there_are_now(tmp_path):
    def pressure(strategy, factor):
        strategy.start(
            grid(app(lambda name: patients(name).eval(f"pressure = {factor} * pressure"), share_models=True))
        )
        models = strategy.fetch_models(grid(app(share_models=True)))
        assert list(models) == list(NAMES)
        return strategy.model.predict([{"age": 60}], "pressure")[0], models["mercy"].predict([{"age": 60}], "pressure")[
            0
        ]

    assert pressure(strategy := FedNGM(**SHARED), 1) == pytest.approx((124, 124), abs=5)
    assert pressure(strategy, 2) == pytest.approx((248, 248), abs=10)
    assert pressure(FedNGM(**SHARED, folder=tmp_path / "a" / "kept"), 3) == pytest.approx((372, 372), abs=15)
    assert pressure(FedNGM(**SHARED, folder=tmp_path / "a" / "kept"), 4) == pytest.approx((496, 496), abs=20)
    assert pressure(FedNGM(**SHARED, folder=tmp_path / "b" / "kept"), 5) == pytest.approx((620, 620), abs=25)


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"recoveri": {}}, TypeError, "'recoveri'.*did you mean 'recovery'"),
        ({"public_rows": {}}, TypeError, "'public_rows'.*it has schema, public"),
        ({"ngm": {"epochs": 0}}, ValueError, "FedNGM: ngm.epochs"),
        ({"ngm": {"epoch": 3}}, ValueError, "FedNGM: there is no ngm.epoch; .*did you mean 'epochs'"),
        ({"schema": {"kindes": {}}}, ValueError, "table_schema.kindes"),
    ],
)
def test_keywords_that_are_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        FedNGM(**keywords)


def test_what_cannot_be_is_said_before_anybody_is_asked():
    with pytest.raises(ValueError, match="ranges and sums"):
        table_client_app(patients, consent=["rows"])
    with pytest.raises(RunError, match="1 nodes are connected"):
        FedNGM().start(grid(names=("mercy",)))
    with pytest.raises(RunError, match="call start first"):
        FedNGM().fetch_models(grid())
