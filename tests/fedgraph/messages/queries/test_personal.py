"""Personal models as messages."""

import pytest
from flwr.app import ConfigRecord, RecordDict

from fedgraph.messages.queries import PERSONAL, ask_for_personal_models, is_for_personal_models, personal_model
from fedgraph.support.errors import ReplyError


def test_requests_and_answers():
    assert is_for_personal_models(ask_for_personal_models("run"))
    assert not is_for_personal_models(RecordDict({"config": ConfigRecord({"phase": "fit"})}))
    answer = RecordDict({"config": ConfigRecord({"clients": ["mercy"], PERSONAL: b"model"})})
    assert personal_model(answer) == ("mercy", b"model")


@pytest.mark.parametrize("told", [{}, {"clients": ["a", "b"], PERSONAL: b""}, {"clients": ["a"], PERSONAL: "text"}])
def test_what_is_no_answer(told):
    with pytest.raises(ReplyError, match="personal model is malformed|no file of a model"):
        personal_model(RecordDict({"config": ConfigRecord(told)}))
