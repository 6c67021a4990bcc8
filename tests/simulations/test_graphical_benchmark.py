import json
import re

import pytest
import torch
from typer.testing import CliRunner

from simulations.benchmarks import graphical
from simulations.benchmarks.__main__ import app


def test_times_and_what_models_know_are_printed(tmp_path, monkeypatch):
    asked = []

    def measured(function, **arguments):
        asked.append((function.partition(":")[2], arguments))
        usual = {"wall": 9.0, "core": 9.5, "peak": 300 * 2**20, "before": 100 * 2**20, "r_squared": [0.5]}
        if "samples" in arguments:
            return {**usual, "table": "random rows", "edges": 70, "quality": "AUC 0.9"}
        return {**usual, "possible": [0.6], "apart": 0.1, "released": 0.62}

    monkeypatch.setattr(graphical, "in_fresh_process", measured)
    file = tmp_path / "raw.json"
    result = CliRunner().invoke(app, ["graphical", "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [name for name, _ in asked] == ["measure_chain", "measure_chain", "measure_births"]
    assert [arguments.get("clients") for _, arguments in asked] == [1, 3, None]
    cells = re.search(r"3 clients +│(.*)│", result.output)[1].split("│")
    assert [float(cell) for cell in cells] == [9, 9, 9, 9.5, 300, 200]
    assert "0.500 (0.600)" in result.output
    assert "correlations <= 0.0500; measured 0.100: missed" in result.output
    assert "measured 9.00 s: met" in result.output
    assert json.loads(file.read_text())["results"]["births"][0]["edges"] == 70


def test_a_measurement_of_the_chain_is_a_real_fit():
    found = graphical.measure_chain(1, 600, 60)
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
