import json
import re

import pytest
import torch
from typer.testing import CliRunner

from fedgraph.simulations.benchmarks import alignment
from fedgraph.simulations.benchmarks.__main__ import app


def test_a_row_for_each_way_and_number_of_peers(tmp_path, monkeypatch):
    def measured(function, **arguments):
        if function.endswith(":measure_round"):
            assert arguments == {"name": "ipa/digits.toml", "overrides": ["data.limit=100"]}
            return {"seconds": [30.0, 20.0], "peak": 500 * 2**20, "clients": 2, "threads": 2}
        if function.endswith(":measure_plain_round"):
            return {"seconds": [90.0, 80.0]}
        ways = {alignment.LOOP: 9e-3, alignment.STACKED: 3e-3, alignment.COMPILED: 1e-3}
        return {"seconds": ways[arguments["kind"]] * (arguments["peers"] - 1), "bytes": arguments["peers"] * 2**20}

    monkeypatch.setattr(alignment, "in_fresh_process", measured)
    file = tmp_path / "raw.json"
    words = ["alignment", "--peers", "2", "--peers", "5", "--repeats", "2", "--json", file, "--round",
             "ipa/digits.toml", "--plain", "--set", "data.limit=100"]  # fmt: skip
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    cells = re.search(r"5 peers, compiled +│(.*)│", result.output)[1].split("│")
    assert [float(cell) for cell in cells] == [4.0, 4.0, 4.0, pytest.approx(4e6 / (5 * 242_410), rel=0.3), 9.0, 5.0]
    assert "over that of others, compiled <= 1.50; measured 1.00: met" in result.output
    assert "2 peers one after the other, 2 intra-op threads, the fastest of 2: 20.0 s, 500 MiB" in result.output
    assert "As a plain program in PyTorch: 80.0 s, 4.00 times as long." in result.output
    assert len(json.loads(file.read_text())["results"]["2 peers, stacked operations"]) == 2


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_all_ways_move_the_others_alike(power):
    """One step of 0.001; Adam's epsilon weighs differently, since ours is the gradient of a mean."""
    ways = [alignment._loop, alignment._ours(False), alignment._ours(True)]
    loop, stacked, compiled = (torch.cat([part.flatten() for part in way(3, 1000, power)()]) for way in ways)
    assert float((loop.detach().view(2, 1000) - alignment._drawn(3, 1000)[1]).abs().median()) > 9e-4
    torch.testing.assert_close(stacked, loop, rtol=0, atol=5e-5)
    torch.testing.assert_close(compiled, stacked, rtol=1e-5, atol=1e-6)


def test_a_measurement_is_real():
    found = alignment.measure(alignment.STACKED, 2, 1, 1.0, 1)
    assert 0 < found["seconds"] < 1
    assert found["bytes"] >= 0


def test_rounds_are_run_and_timed():
    found = alignment.measure_round("ipa/digits.toml", ["experiment.rounds=2", "data.limit=100"])
    assert len(found["seconds"]) == 2
    assert all(seconds > 0 for seconds in found["seconds"])
    assert found["peak"] > 50 * 2**20


def test_a_plain_program_learns_all_classes_too():
    found = alignment.measure_plain_round("ipa/digits.toml", ["experiment.rounds=20", "evaluation.splits=['test']"])
    assert len(found["seconds"]) == 20
    first, last = (sum(found["accuracies"][place]) / 2 for place in (0, -1))
    assert last > first + 0.15
