"""FedNGM by hand: what it asks, and what it makes of the answers, without nodes."""

import pytest
import torch

from fedgraph.algorithms.fedngm import FedNGM
from fedgraph.algorithms.fedngm_messages import PhaseReply
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.algorithms.phases import Keep, Opening, PhaseRun, Query, Recall, Without
from fedgraph.data.schema import Feature, Schema, schema_as_json
from fedgraph.data.tables import ClientTableSettings, FrameTables
from fedgraph.support.errors import DataError, ExperimentError, IdentityError, RunError

SCHEMA = Schema((Feature("age", "integer"), Feature("ill", "binary", ("n", "y"))))
OTHER = Schema((Feature("age", "embedding", size=3), Feature("ill", "binary", ("n", "y"))))


def reply(*clients, schema=SCHEMA, text=None):
    texts = tuple(schema_as_json(schema) if text is None else text for _ in clients)
    return PhaseReply(clients, None, "people", (20,) * len(clients), texts, torch.zeros(len(clients), 0))


def begun(replies, **settings):
    """The phases after the opening, and what comes next."""
    table = ClientTableSettings()
    run = PhaseRun(seed=0, data=table, source=lambda: FrameTables(table))
    phases = FedNGM(FedNGMSettings.model_validate(settings)).phases(run)
    opening = next(phases)
    assert isinstance(opening, Opening)
    assert opening.request.phase == "schema"
    return phases, phases.send(replies)


def test_phases_ask_for_more_and_keep_what_they_find():
    phases, step = begun({4: reply("c", "a"), 2: reply("b")})
    assert step == Without({})
    step = phases.send(("a", "b", "c"))
    assert isinstance(step, Recall)
    texts, num_rows = step.of
    assert (list(texts), num_rows) == (["a", "b", "c"], {"a": 20, "b": 20, "c": 20})
    step = phases.send({})
    assert isinstance(step, Keep)
    assert set(step.state) == {"scaling"}
    step = phases.send(None)
    assert isinstance(step, Query)
    assert (step.request.phase, step.request.common.names) == ("graph", ("age", "ill"))
    assert step.request.graph is step.request.parameters is None


def test_what_was_kept_is_not_asked_for_again():
    phases, _ = begun({4: reply("a", "b", "c")})
    phases.send(("a", "b", "c"))
    kept = {"scaling": phases.send({}).state["scaling"], "graph": {"names": ["age", "ill"], "edges": [["age", "ill"]]}}
    phases, _ = begun({4: reply("a", "b", "c")})
    phases.send(("a", "b", "c"))
    step = phases.send(kept)
    assert (step.request.phase, step.request.graph.edges) == ("fit", (("age", "ill"),))


def test_a_schema_that_cannot_be_used_costs_its_client_alone():
    phases, step = begun({4: reply("a", "c"), 2: reply("b", text="[]")})
    assert set(step.lost) == {"b"}
    assert "the schema of client 'b' cannot be used" in step.lost["b"]
    assert list(phases.send(("a", "c")).of[0]) == ["a", "c"]


def test_who_does_not_go_together_with_the_others_is_left_out_or_ends_the_run():
    phases, _ = begun({4: reply("a", "b", "c"), 2: reply("d", schema=OTHER)})
    step = phases.send(("a", "b", "c", "d"))
    assert isinstance(step, Without)
    assert set(step.lost) == {"d"}
    assert isinstance(step.error, DataError)
    assert list(phases.send(("a", "b", "c")).of[0]) == ["a", "b", "c"]
    phases, _ = begun({4: reply("a"), 2: reply("d", schema=OTHER)})
    with pytest.raises(DataError, match="age"):
        phases.send(("a", "d"))


def test_what_is_refused():
    phases, _ = begun({4: reply("a"), 2: reply("b")}, global_model="pooled")
    with pytest.raises(IdentityError, match="these are on 2 nodes"):
        phases.send(("a", "b"))
    phases, _ = begun({4: reply("a", "b")}, targets=("weight",))
    with pytest.raises(ExperimentError, match="targets names weight"):
        phases.send(("a", "b"))
    few = FedNGM(FedNGMSettings.model_validate({"merge": {"min-clients": 3}}))
    few.check_enough(3, 1)
    with pytest.raises(RunError, match="2 of at least 3"):
        few.check_enough(2, 1)
