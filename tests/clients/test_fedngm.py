"""Clients of FedNGM on their own: what they refuse, and what they tell twice."""

from __future__ import annotations

import json
import math

import pytest
from flwr.app import Context, Message, RecordDict

from fedgraph.algorithms.fedngm_messages import PhaseReply, PhaseRequest, scores_from_text
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.clients.engine.node import Node
from fedgraph.clients.fedngm import FedNGMClient
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.schema.json import schema_from_json
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.graph.feature_graph import FeatureGraph
from fedgraph.support.errors import DataError, IdentityError, ReplyError
from fedgraph.support.settings import parse

NAMES = "east,north,west"
COMMON = ("height", "weight", "ill", "ward", "stay")
NOISE = {"noise": {"epsilon": 5.0}, "bounds": {"height": [100, 250], "weight": [0, 200], "stay": [0, 100]}}


@pytest.fixture
def ask(table_tables, tmp_path, data_dir):
    """``ask(phase, config, **known)`` -> the answer of a node that hosts all clients."""

    def asked(phase, config=None, run="run", **known):
        experiment = parse_experiment(table_tables)
        settings = parse(FedNGMSettings, experiment.method_table, "[fedngm]")
        part = experiment.client_part(settings.as_table())
        places = {"clients": NAMES, "state-dir": str(tmp_path / "state"), "data-dir": str(data_dir)}
        node = Node.of(Context(1, 1, {**places, **(config or {})}, RecordDict(), {}))
        request = PhaseRequest(phase, **known, client="fedgraph.clients.fedngm:FedNGMClient", experiment=part, run=run)
        content = FedNGMClient.handle(Message(request.pack(), 1, "query"), node)
        stacked = content.array_records["stacked"]
        sums = stacked["sums"].shape[1] if "sums" in stacked else 0
        return PhaseReply.unpack(content, stacked["parameters"].shape[1], sums)

    return asked


@pytest.fixture
def common(ask):
    return schema_from_json(ask("schema").texts[0]).select(COMMON)


def test_a_client_tells_its_own_features_and_its_training_rows(ask):
    reply = ask("schema")
    names = [[feature["name"] for feature in json.loads(text)] for text in reply.texts]
    assert names == [[*COMMON, "ecg"], [*COMMON], [*COMMON, "dose"]]
    assert reply.num_rows == (168, 168, 168)


def test_what_noise_has_hidden_once_is_told_the_same_again(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": {"source": "shared-ranges"}, "statistics": NOISE}
    first, again = (ask("statistics", {"consent": "ranges"}, common=common).texts for _ in range(2))
    assert first == again
    assert set(json.loads(first[0])["ranges"]) == {"height", "weight", "stay"}
    table_tables["fedngm"]["statistics"] = {**NOISE, "noise": {"epsilon": 4.0}}
    assert ask("statistics", {"consent": "ranges"}, common=common).texts != first


def test_a_node_that_no_longer_consents_tells_nothing_of_what_it_told_before(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": {"source": "shared-ranges"}, "statistics": NOISE}
    ask("statistics", {"consent": "ranges"}, common=common)
    with pytest.raises(DataError, match="ranges .*consent"):
        ask("statistics", {"consent": ""}, common=common)
    with pytest.raises(DataError, match="epsilon 5, .*most 1"):
        ask("statistics", {"consent": "ranges", "consent-epsilon": 1}, common=common)


def test_everything_that_a_run_discloses_of_rows_adds_up(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": {"source": "shared-ranges"}, "statistics": NOISE}
    config, fewer = {"consent": "ranges", "consent-epsilon": 9}, common.select(("height", "weight"))
    first, again = (ask("statistics", config, common=common).texts for _ in range(2))
    assert first == again, "the same noise counts once"
    with pytest.raises(DataError, match="'east' at epsilon 5 and asks for 5 more, 10 in all, .* most 9 in a run"):
        ask("statistics", config, common=fewer)
    assert ask("statistics", config, common=common).texts == first, "what was refused has not been spent"
    ask("statistics", {**config, "consent-epsilon": 10}, common=fewer)
    assert ask("statistics", config, run="another", common=fewer).texts, "the limit is that of one run"


def test_sums_with_noise_are_of_units_that_one_row_cannot_move_for_all(ask, common, table_tables):
    table_tables["fedngm"] |= {"recovery": {"source": "summed-statistics"}, "scaling": {"source": "own"}}
    own, given = Scaling({"height": (100.0, 250.0)}), Scaling(NOISE["bounds"])
    assert ask("sums", {"consent": "sums"}, common=common, scaling=own).sums.shape[0] == 3
    table_tables["fedngm"]["statistics"] = {"noise": {"epsilon": 5.0}}
    with pytest.raises(DataError, match="sums with noise need common ranges, and 'weight', 'stay'"):
        ask("sums", {"consent": "sums"}, common=common, scaling=own)
    assert ask("sums", {"consent": "sums"}, common=common, scaling=given).sums.shape[0] == 3


def test_graphs_are_over_common_features_and_found_with_private_ones(ask, common):
    graphs = [FeatureGraph.from_json(json.loads(text)) for text in ask("graph", common=common).texts]
    assert all(graph.names == COMMON for graph in graphs)
    assert all(("height", "weight") in graph.edges for graph in graphs)


def test_models_fit_and_are_kept(ask, common):
    graph = FeatureGraph(COMMON, (("height", "weight"), ("weight", "ill"), ("ill", "ward"), ("ward", "stay")))
    reply = ask("fit", common=common, scaling=Scaling(), graph=graph)
    scores = scores_from_text(reply.texts[1])
    assert set(scores) == {f"validation/{name}-r2-local" for name in COMMON}
    assert 0.3 < scores["validation/weight-r2-local"] < 1
    finished = ask("finish", common=common, scaling=Scaling(), graph=graph, parameters=reply.parameters[:1])
    east = scores_from_text(finished.texts[0])
    # The model that it is given is its own.
    assert east["test/weight-mae"] == east["test/weight-mae-local"]
    assert not math.isnan(east["test/ecg-mae-personal"])


def test_a_model_that_a_node_has_lost_is_not_scored(ask, common):
    finish = {"common": common, "scaling": Scaling(), "graph": FeatureGraph(COMMON, (("height", "weight"),))}
    reply = ask("fit", {"clients": "east,north"}, **finish)
    finish["parameters"] = reply.parameters[:1]
    scored = [scores_from_text(text) for text in ask("finish", **finish).texts]
    assert ["test/weight-mae-local" in scores for scores in scored] == [True, True, False]
    assert all("test/weight-mae" in scores for scores in scored)


def test_requests_without_what_they_need_are_refused(ask, common):
    with pytest.raises(ReplyError, match="phase 'graph'"):
        ask("graph")
    with pytest.raises(ReplyError, match="phase 'fit' lacks the graph"):
        ask("fit", common=common)


def test_pooling_needs_everybody(ask, common, table_tables):
    table_tables["fedngm"]["global-model"] = "pooled"
    graph = FeatureGraph(COMMON, ())
    with pytest.raises(IdentityError, match="of west"):
        ask("fit", {"clients": "east,north"}, common=common, graph=graph)
