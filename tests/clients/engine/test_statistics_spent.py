import pytest

from fedgraph.clients.engine.statistics_spent import SpentStatistics
from fedgraph.graphical import Consent
from fedgraph.privacy.noise import CountNoiseSettings
from fedgraph.support.errors import DataError, RunError

TENTH = CountNoiseSettings(epsilon=0.1)


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
