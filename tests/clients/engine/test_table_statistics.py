import pytest
from flwr.app import Context, RecordDict

from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.table_statistics import SpentStatistics, read_consent
from fedgraph.graphical.statistics import Consent
from fedgraph.privacy.noise import CountNoiseSettings
from fedgraph.support.errors import DataError, IdentityError, RunError

TENTH = CountNoiseSettings(epsilon=0.1)


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


def test_releases_add_up_and_a_repeated_one_counts_once(tmp_path):
    limit = Consent(max_epsilon=0.3)
    for release in ("ranges", "sums", "ranges", "other sums", "sums"):
        SpentStatistics(tmp_path, "east").spend(release, TENTH, limit)
    with pytest.raises(
        DataError, match="'east' at epsilon 0.3 and asks for 0.1 more, 0.4 in all, .* most 0.3 in a run"
    ):
        SpentStatistics(tmp_path, "east").spend("more", TENTH, limit)
    SpentStatistics(tmp_path, "west").spend("more", TENTH, limit)
    SpentStatistics(tmp_path, "east").spend("more", TENTH, Consent())


def test_deltas_add_up_too(tmp_path):
    noise, limit = (
        CountNoiseSettings(mechanism="gaussian", epsilon=1, delta=1e-6),
        Consent(max_epsilon=9, max_delta=1e-6),
    )
    SpentStatistics(tmp_path, "east").spend("ranges", noise, limit)
    SpentStatistics(tmp_path, "east").spend("laplace", TENTH, limit)
    with pytest.raises(DataError, match="delta 1e-06 and asks for 1e-06 more, 2e-06 in all, .*consent-delta"):
        SpentStatistics(tmp_path, "east").spend("sums", noise, limit)


def test_a_broken_record_is_no_empty_one(tmp_path):
    (tmp_path / "east.json").write_text("{")
    with pytest.raises(RunError, match="cannot read .*east.json"):
        SpentStatistics(tmp_path, "east").spend("ranges", TENTH, Consent())
