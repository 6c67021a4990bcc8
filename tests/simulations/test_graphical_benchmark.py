import json
import re

import pytest
import torch
from typer.testing import CliRunner

from fedgraph.simulations.benchmarks import graphical
from fedgraph.simulations.benchmarks.__main__ import app


def test_times_and_what_models_know_are_printed(tmp_path, monkeypatch):
    asked = []

    def measured(function, **arguments):
        asked.append((function.partition(":")[2], arguments))
        usual = {"wall": 9.0, "core": 9.5, "peak": 300 * 2**20, "before": 100 * 2**20, "r_squared": [0.5]}
        if "samples" in arguments:
            return {**usual, "table": "random rows", "edges": 70, "quality": "AUC 0.9"}
        # Compiled code takes a third of the time, for twice as many epochs by minibatches.
        twice = 2 if arguments["compile"] and arguments["full"] is None else 1
        wall = (9.0 if arguments["compile"] else 27.0) * arguments["clients"]
        more = {"possible": [0.6], "apart": 0.1, "released": 0.62, "epochs": 100 * twice}
        return {**usual, **more, "wall": wall}

    monkeypatch.setattr(graphical, "in_fresh_process", measured)
    file = tmp_path / "raw.json"
    result = CliRunner().invoke(app, ["graphical", "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [name for name, _ in asked] == [*["measure_chain"] * 8, "measure_births"]
    assert [arguments.get("clients") for _, arguments in asked] == [*[1] * 4, *[3] * 4, None]
    assert [(each["full"], each["compile"]) for _, each in asked[:4]] == [
        (2000, True),
        (2000, False),
        (None, True),
        (None, False),
    ]
    cells = re.search(r"3 clients, minibatches, PyTorch +│(.*)│", result.output)[1].split("│")
    assert [float(cell) for cell in cells] == [81, 81, 81, 9.5, 300, 200]
    assert (
        "1 client, 2,000 full batches, compiled: 3.0 times as fast, 1.0 times in core-seconds; 90.00 ms an epoch"
        in result.output
    )
    assert "3 clients, minibatches, compiled: 6.0 times as fast" in result.output
    assert "0.500 (0.600)" in result.output
    assert "correlations <= 0.0500; measured 0.100: missed" in result.output
    assert "time <= 3.60 s; measured 9.00 s: missed" in result.output
    assert "time <= 10.8 s; measured 27.0 s: missed" in result.output
    assert json.loads(file.read_text())["results"]["births"][0]["edges"] == 70


@pytest.mark.slow
def test_a_measurement_of_the_chain_is_a_real_fit():
    found = graphical.measure_chain(1, 600, 60, True)
    assert found["epochs"] == 60
    assert 60 != graphical.measure_chain(1, 600, None, True)["epochs"] > 10
    assert found["possible"] == pytest.approx([0.64, *[1.28 / 1.64] * 8, 0.64])
    assert all(0.2 < ours < best + 0.06 for ours, best in zip(found["r_squared"], found["possible"], strict=True))
    assert found["apart"] < 0.3
    assert found["wall"] > 0


def test_a_random_table_is_of_the_size_of_the_births(monkeypatch):
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    name, schema, encoding, units = graphical.births_table()
    assert name == "random rows"
    assert (len(schema.features), len(schema.unit_feature), units.shape[1]) == (43, 58, 58)
    assert torch.allclose(encoding.encode(encoding.decode(units[:50])), units[:50], atol=1e-5)
    assert units[:, 18:].unique().tolist() == [0, 1]
    assert units[:, 18:39].mean(0) == pytest.approx(0.5, abs=0.02)
