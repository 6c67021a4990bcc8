"""One client of ten claims 2^40 examples: what its model then weighs, method by defence."""

import pytest
import torch

from fedgraph.simulations.robustness.claimed_counts import ATTACKER, DEFENCES, METHODS, UPDATES, accuracy, attack, run

COUNTED = {"none": 433, "clip": 162, "krum": 433}


@pytest.mark.parametrize("defence", DEFENCES)
@pytest.mark.parametrize("method", METHODS)
def test_a_claim_costs_honest_clients_no_more_than_two_points(method, defence, tmp_path):
    """Unless the update is reversed, too, and there is no defence: one in ten, which counts as three of twelve."""
    honest = accuracy(run(tmp_path, method, DEFENCES[defence]))
    for update, factor in UPDATES.items():
        with attack(factor):
            found = run(tmp_path, method, DEFENCES[defence])
        counted = f"'client-00' counted as {COUNTED[defence]} examples"
        assert any(counted in note for note in found.summary["notes"])
        assert accuracy(found) > honest - (0.07 if (update, defence) == ("reversed", "none") else 0.02)


def test_without_the_bound_the_claim_decides(tmp_path):
    with attack(0.0):
        found = run(tmp_path, "fedavg", {"most-examples": 0, "clip": 2.0}, rounds=5)
    assert accuracy(found) < 0.3
    assert not any("most-examples" in note for note in found.summary.get("notes", []))


def test_a_claim_counts_alike_however_clients_are_divided_among_nodes(tmp_path):
    """A node would weight its own clients by what they claim, so that it is asked for their models, not for a mean."""
    with attack(-1.0):
        alone, together = (run(tmp_path, "fedavg", {}, rounds=2, nodes=nodes).models for nodes in (10, 1))
    for name, values in alone[ATTACKER].items():
        torch.testing.assert_close(values, together[ATTACKER][name])
