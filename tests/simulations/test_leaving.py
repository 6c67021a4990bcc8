"""A peer of `fedgraph reproduce ipa-leaving` leaves, and the others go on."""

import json

import pytest

from fedgraph.simulations.ipa import leaving


@pytest.mark.parametrize(
    ("method", "client"),
    [
        ("fedavg", "Leaving"),
        ("feddyn", "LeavingDrift"),
        ("ditto", "LeavingDitto"),
        ("pfedgraph", "LeavingPFedGraph"),
        ("ipa", "LeavingPeers"),
    ],
)
def test_who_has_left_trains_and_measures_no_more(digits_tables, run_experiment, monkeypatch, method, client):
    monkeypatch.setattr(leaving, "LAST", 2)
    digits_tables["experiment"] |= {
        "method": method, "rounds": 4, "on-missing": "skip", "client": f"fedgraph.simulations.ipa.leaving:{client}",
    }  # fmt: skip
    folder = run_experiment(digits_tables, nodes=6)
    summary = json.loads((folder.path / "summary.json").read_text())
    missed = summary["missed_training"]
    assert set(missed) == {leaving.WHO}
    assert missed[leaving.WHO]["rounds"] == 2
    accuracies = summary["per_client"]["test"]["accuracy"]
    assert [name for name, value in accuracies.items() if value is None] == [leaving.WHO]
