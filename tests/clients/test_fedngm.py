"""Clients of FedNGM on their own: what they refuse, and what they tell twice."""

from __future__ import annotations

import json
import math

import pytest
import torch
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

    def asked(phase, config=None, run="run", limits=None, **known):
        experiment = parse_experiment(table_tables)
        settings = parse(FedNGMSettings, experiment.method_table, "[fedngm]")
        part = experiment.client_part(settings.as_table())
        places = {"clients": NAMES, "state-dir": str(tmp_path / "state"), "data-dir": str(data_dir)}
        node = Node.of(Context(1, 1, {**places, **(config or {})}, RecordDict(), {}))
        vars(node)["limits"] = limits or node.limits
        vars(node)["simulated"] = False
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


RANGES = {"source": "shared-ranges"}
GIVEN = Scaling({"height": (100.0, 250.0), "weight": (0.0, 200.0), "stay": (0.0, 100.0)})
PROMISED = "no such statistics are sent of east: .*than was promised"


def test_what_noise_has_hidden_once_is_told_the_same_again(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": RANGES, "statistics": NOISE}
    first, again = (ask("statistics", run=run, common=common).texts for run in ("run", "another"))
    assert first == again
    assert set(json.loads(first[0])["ranges"]) == {"height", "weight", "stay"}
    # Other noise is another release of the same rows, whatever it promises, and in any run.
    for change in ({"noise": {"epsilon": 4.0}}, {"noise": {"epsilon": 50.0}}, {"cells": 65}):
        table_tables["fedngm"]["statistics"] = {**NOISE, **change}
        with pytest.raises(ReplyError, match=PROMISED):
            ask("statistics", run="another", common=common)


def test_everything_that_is_disclosed_of_rows_adds_up_over_all_runs(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": RANGES, "statistics": NOISE}
    fewer = common.select(("height", "weight"))
    first, again = (ask("statistics", common=common).texts for _ in range(2))
    assert first == again, "the same noise counts once"
    with pytest.raises(ReplyError, match=PROMISED):
        ask("statistics", run="another", common=fewer)
    assert ask("statistics", common=common).texts == first, "what was refused has not been spent"


def test_statistics_that_the_experiment_does_not_ask_for_are_not_sent(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": {"source": "own"}}
    assert [json.loads(text)["ranges"] for text in ask("statistics", common=common).texts] == [{}] * 3
    for phase in ("sums", "keys"):
        with pytest.raises(ReplyError, match="sums of rows, for which the experiment does not ask"):
            ask(phase, common=common, scaling=GIVEN)


def test_ranges_at_other_quantiles_are_not_those_of_other_rows(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": {**RANGES, "quantile": 0.02}}
    first = ask("statistics", common=common).texts
    for place in range(1, 30):
        table_tables["fedngm"]["scaling"] = {**RANGES, "quantile": place / 59}
        with pytest.raises(ReplyError, match="no such ranges are sent of east: others of the same rows have been sent"):
            ask("statistics", run=f"run-{place}", common=common)
    table_tables["fedngm"]["scaling"] = {**RANGES, "quantile": 0.02}
    with pytest.raises(ReplyError, match="others of the same rows"):
        ask("statistics", common=common.select(("height", "weight")))
    assert ask("statistics", run="another", common=common).texts == first


@pytest.mark.parametrize("data", [{"missing": "y"}, {"table-schema": {"missing-codes": {"stay": [3]}}}])
def test_rows_that_are_read_otherwise_are_the_same_rows(ask, common, table_tables, data):
    table_tables["fedngm"] |= {"recovery": {"source": "summed-statistics"}}
    ask("sums", common=common, scaling=GIVEN)
    table_tables["data"] |= data
    with pytest.raises(ReplyError, match="no such sums are sent of east: others of the same rows"):
        ask("sums", common=common, scaling=GIVEN)


def test_sums_over_sets_that_differ_in_a_row_are_sent_of_one_of_them(ask, common, table_tables):
    """The training rows of a client are the first of one order, so that shares choose how many."""
    table_tables["fedngm"] |= {"recovery": {"source": "summed-statistics"}}

    def sums(rows, run="run", scaling=GIVEN):
        table_tables["data"]["shares"] = [rows / 240, 0.1, 0.9 - rows / 240]
        return ask("sums", run=run, common=common, scaling=scaling).sums

    forty = sums(40)
    assert torch.equal(sums(40, "another"), forty)
    for rows in (39, 41, 31, 49):
        with pytest.raises(ReplyError, match="with those that have been sent they tell of fewer than 10 rows"):
            sums(rows, f"run-{rows}")
    assert not torch.equal(sums(80), forty), "clearly other rows"
    with pytest.raises(ReplyError, match="fewer than 10 rows"):
        sums(75)
    with pytest.raises(ReplyError, match="others of the same rows"):
        sums(40, scaling=Scaling({**GIVEN.ranges, "stay": (0.0, 99.0)}))
    with pytest.raises(DataError, match=r"fewer than 10 training rows, .*\[agreement\] least-rows"):
        sums(9)


def test_noise_on_few_rows_is_drawn_once_too(ask, common, table_tables):
    table_tables["fedngm"] |= {"scaling": RANGES, "statistics": NOISE}
    table_tables["data"]["shares"] = [8 / 240, 0.1, 0.9 - 8 / 240]
    ask("statistics", common=common)
    table_tables["fedngm"]["statistics"] = {**NOISE, "cells": 65}
    with pytest.raises(ReplyError, match=PROMISED):
        ask("statistics", common=common)
    table_tables["fedngm"]["statistics"] = {}
    assert [json.loads(text)["ranges"] for text in ask("statistics", common=common).texts] == [{}] * 3


def test_sums_that_masks_hid_are_not_sent_without(ask, common, table_tables):
    table_tables["fedngm"] |= {"recovery": {"source": "summed-statistics", "masks": True}}
    keys = dict(zip(NAMES.split(","), ask("keys", common=common, scaling=GIVEN).texts, strict=True))
    assert ask("sums", common=common, scaling=GIVEN, keys=keys).sums.shape[0] == 3
    table_tables["fedngm"]["recovery"]["masks"] = False
    with pytest.raises(ReplyError, match="others of the same rows"):
        ask("sums", common=common, scaling=GIVEN)


def test_clients_by_other_names_have_the_same_rows(ask, common, table_tables):
    table_tables["fedngm"] |= {"recovery": {"source": "summed-statistics"}}
    data = {"set": "mixed-table", "path": table_tables["data"]["path"], "shares": [1.0, 0.0, 0.0]}
    few = common.select(("height", "weight"))
    known = {"common": few, "scaling": Scaling({name: GIVEN.ranges[name] for name in few.names})}
    table_tables["data"] = {**data, "client-column": "ward"}
    assert ask("sums", {"clients": "a,b,c"}, **known).sums.shape[0] == 3
    for division, clients in (({"client-column": "ill"}, "n,y"), ({"clients": ["d", "e"]}, "d,e")):
        table_tables["data"] = {**data, **division}
        with pytest.raises(ReplyError, match="others of the same rows have been sent"):
            ask("sums", {"clients": clients}, **known)


def test_sums_with_noise_are_of_units_that_one_row_cannot_move_for_all(ask, common, table_tables):
    table_tables["fedngm"] |= {"recovery": {"source": "summed-statistics"}, "scaling": {"source": "own"}}
    own = Scaling({"height": (100.0, 250.0)})
    assert ask("sums", common=common, scaling=own).sums.shape[0] == 3
    table_tables["fedngm"]["statistics"] = {"noise": {"epsilon": 5.0}}
    with pytest.raises(DataError, match="sums with noise need common ranges, and 'weight', 'stay'"):
        ask("sums", common=common, scaling=own)
    found = ask("sums", common=common, scaling=GIVEN).sums
    assert found.shape[0] == 3
    assert torch.equal(ask("sums", run="another", common=common, scaling=GIVEN).sums, found)
    with pytest.raises(ReplyError, match=PROMISED):
        ask("sums", common=common, scaling=Scaling({**GIVEN.ranges, "stay": (0.0, 99.0)}))


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


def test_only_fits_have_rounds(ask, common, table_tables):
    table_tables["fedngm"] |= {"rounds": 3, "global-model": "average"}
    graph = FeatureGraph(COMMON, (("height", "weight"),))
    parameters = ask("fit", common=common, graph=graph).parameters[:1]
    assert ask("fit", common=common, graph=graph, parameters=parameters, round=3).parameters.shape[0] == 3
    for phase, number in (("fit", 4), ("fit", 0), ("graph", 2), ("schema", 2), ("finish", 3), ("statistics", 2)):
        with pytest.raises(ReplyError, match=f"round {number} of phase '{phase}' is outside"):
            ask(phase, common=common, graph=graph, parameters=parameters, round=number)


def test_pooling_needs_everybody(ask, common, table_tables):
    table_tables["fedngm"]["global-model"] = "pooled"
    graph = FeatureGraph(COMMON, ())
    with pytest.raises(IdentityError, match="of west"):
        ask("fit", {"clients": "east,north"}, common=common, graph=graph)
