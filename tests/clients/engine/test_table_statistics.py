import pytest
from flwr.app import Context, RecordDict

from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.table_statistics import read_consent
from fedgraph.graphical.statistics import Consent
from fedgraph.support.errors import IdentityError


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        ({}, "", Consent()),
        ({"consent": "ranges"}, "", Consent(ranges=True)),
        ({"consent": " , ranges"}, "", Consent(ranges=True)),
        ({}, "ranges", Consent(ranges=True)),
        ({"consent": ""}, "ranges", Consent()),
        (
            {"consent": "ranges", "consent-epsilon": 2, "consent-delta": "1e-6", "consent-rows": 20},
            "",
            Consent(ranges=True, max_epsilon=2, max_delta=1e-6, least_rows=20),
        ),
    ],
)
def test_what_a_node_consents_to(monkeypatch, config, environment, expected):
    monkeypatch.setenv("FEDGRAPH_CONSENT", environment)
    found = read_consent(Node.of(Context(1, 1, config, RecordDict(), {})))
    assert found == expected
    assert isinstance(found.least_rows, int)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"consent": "ranges,rows"}, "'consent': rows"),
        ({"consent-epsilon": "much"}, "must be finite numbers above 0"),
        ({"consent-epsilon": "nan"}, "must be finite numbers above 0"),
        ({"consent-delta": "inf"}, "must be finite numbers above 0"),
        ({"consent-rows": 0}, "must be finite numbers above 0"),
    ],
)
def test_consent_to_what_there_is_not(monkeypatch, config, message):
    monkeypatch.delenv("FEDGRAPH_CONSENT", raising=False)
    with pytest.raises(IdentityError, match=message):
        _ = read_consent(Node.of(Context(1, 1, config, RecordDict(), {})))
