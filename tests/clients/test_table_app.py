"""A ClientApp for a data frame, which FedNGM asks; whole runs are among the tests of the strategy."""

import json

import pandas as pd
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedgraph.algorithms.fedngm_messages import PhaseReply, PhaseRequest
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.clients import table_client_app
from fedgraph.data.schema import schema_from_json
from fedgraph.messages import check_content, read_error
from fedgraph.messages.queries import ask_for_personal_models

FRAME = pd.DataFrame({"age": [1.5, 2.5] * 20, "ward": ["a", "b"] * 20, "name": [f"Jones {row}" for row in range(40)]})


@pytest.fixture
def ask(tmp_path):
    def asked(content, app=None, **config):
        context = Context(1, 7, {"state-dir": str(tmp_path), **config}, RecordDict(), {})
        return (app or table_client_app(lambda context: FRAME))(Message(content, 7, "query"), context)

    return asked


def request(phase="schema", **tables):
    told = {"seed": 0, "method": FedNGMSettings().as_table(nulls=True), "table": {}, **tables}
    return PhaseRequest(phase, experiment=json.dumps(told), run="run").pack()


def test_names_and_kinds_of_features_are_told_and_rare_words_are_not(ask):
    reply = PhaseReply.unpack(check_content(ask(request(), client="mercy").content))
    assert (reply.clients, reply.num_rows) == (("mercy",), (28,))
    schema = schema_from_json(reply.texts[0])
    assert [(feature.name, feature.kind) for feature in schema.features] == [("age", "real"), ("ward", "binary")]
    assert "Jones" not in str(dict(ask(request(), client="mercy").content["config"]))
    assert ask(request(), **{"partition-id": 3}).content["config"]["clients"] == ["3"]


def test_errors_say_what_is_wrong_and_no_values(ask):
    assert "name of this client is unknown" in read_error(ask(request()))
    old = PhaseRequest("schema", experiment='{"seed": 0, "method": {}}', run="run").pack()
    assert "lacks 'table'" in read_error(ask(old, client="a"))
    assert "phase '3'" in read_error(ask(RecordDict({"config": ConfigRecord({"phase": 3})}), client="a"))

    def broken(context):
        raise OSError("/secret/place is gone")

    told = read_error(ask(request(table={"shares": [1.0, 0.0, 0.0]}), table_client_app(broken), client="other"))
    assert told.startswith("OSError")
    assert "secret" not in told


def test_personal_models_stay_unless_they_are_shared(ask):
    content = ask_for_personal_models("run")
    assert "does not share its personal model" in read_error(ask(content, client="mercy"))
    shared = table_client_app(lambda context: FRAME, share_models=True)
    for run in ("run", "../../run"):
        content = ask_for_personal_models(run)
        assert "has no personal model of the run" in read_error(ask(content, shared, client="mercy"))
