import json
import re

from typer.testing import CliRunner

from simulations.benchmarks import grids
from simulations.benchmarks.__main__ import app


def test_table_has_a_row_per_grid_with_ratios(monkeypatch):
    def measured(experiment, grid, nodes, overrides):
        assert overrides == ["experiment.rounds=1"]
        seconds = {("local", 2): 2.0, ("flower", 2): 3.0, ("flower", 5): 5.0}[grid, nodes]
        return {"seconds": seconds, "rounds": 1, "clients": 9, "weights_sha256": str(nodes)}, seconds + 1

    monkeypatch.setattr(grids, "_measure", measured)
    result = CliRunner().invoke(app, ["grids", "--many", "5", "--set", "experiment.rounds=1"])
    assert result.exit_code == 0, result.output
    assert re.search(r"in-process.* 2 .* 9 .* 2\.0 .* 3\.0 .*1\.00", result.output)
    assert re.search(r"Ray.* 5 .* 9 .* 5\.0 .* 6\.0 .*2\.50", result.output)
    assert "not the same on all rows" in result.output


def test_a_measurement_is_a_real_run(tmp_path):
    summary, whole = grids._measure("sfl/digits.toml", "local", 2, ["experiment.rounds=1"])
    assert (summary["rounds"], summary["clients"]) == (1, 20)
    assert whole > summary["seconds"] > 0
    assert json.dumps(summary)
