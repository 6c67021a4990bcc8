import json
import re

import pytest
import torch
from typer.testing import CliRunner

from fedgraph.fusion import FusionSettings, build_network
from fedgraph.reproduce import ResultFile, ResultLine, merge_into
from fedgraph.simulations.benchmarks import fusion, fusion_loop
from fedgraph.simulations.benchmarks.__main__ import app
from fedgraph.support.errors import ExperimentError


def test_a_row_for_each_graph_beside_the_numbers_of_the_paper(tmp_path, monkeypatch):
    asked = []

    def measured(function, **arguments):
        assert function == "fedgraph.simulations.benchmarks.fusion:measure"
        asked.append(arguments)
        wall = 10.0 if arguments["graph"] == "gumbel" else 2.0
        return {"wall": wall, "core": 3.0, "peak": 300 * 2**20, "before": 100 * 2**20, "gpu": 0}

    monkeypatch.setattr(fusion, "in_fresh_process", measured)
    file = tmp_path / "raw.json"
    result = CliRunner().invoke(app, ["fusion", "--repeats", "2", "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert len(asked) == 2 * 2 * 2 * 2
    cells = re.search(r"207 owners, icdf, a graph per sample +│(.*)│", result.output)[1].split("│")
    assert [float(cell) for cell in cells] == [2.0, 2.0, 2.0, 3.0, 0.2, 300, 200]
    # 79.69 s for five epochs of 1999 samples; a tenth of that.
    assert "a sample-pass with icdf <= 0.797 ms; measured 0.200 ms: met" in result.output
    assert "a sample-pass with gumbel <= 0.879 ms; measured 1.00 ms: missed" in result.output
    assert "79.69 s and 568.24 MB" in result.output
    assert len(json.loads(file.read_text())["results"]["29 owners, icdf, a graph per batch"]) == 2


def test_table_4_is_written_beside_what_was_published(tmp_path, monkeypatch):
    def measured(function, **arguments):
        if function.endswith(":measure_local"):
            return {"once": 2.0 * arguments["epochs"], "every batch": 20.0}
        assert (arguments["owners"], arguments["samples"], arguments["per"]) == (43, 4853, "sample")
        return {"wall": 1.5, "core": 3.0, "peak": 300 * 2**20, "before": 200 * 2**20, "gpu": 0}

    monkeypatch.setattr(fusion, "in_fresh_process", measured)
    file = tmp_path / "table4.csv"
    published = ResultLine("43 (PMU-B)", "ICDF", "s", value="30.2", source="published")
    merge_into(file, [published])
    arguments = ["fusion", "--data", "PMU-B", "--repeats", "1", "--results", str(file)]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    found = ResultFile(file)
    assert found.published("43 (PMU-B)", "ICDF", "s") == 30.2
    assert found.spread("43 (PMU-B)", "ICDF", "s").mean == 1.5
    assert found.spread("43 (PMU-B)", "Gumbel", "MiB").mean == 100
    assert found.spread("43 (PMU-B)", "local models", "once, s").mean == 10
    with pytest.raises(ExperimentError, match="--data PMU-A: there are METR-LA, PEMS-BAY, PMU-B, PMU-C"):
        fusion.fusion(data=["PMU-A"])


def test_a_measurement_is_a_real_fit(monkeypatch):
    fits = []
    kept = fusion.training.fit

    def spy(settings, data, seed):
        fits.append((settings.epochs, settings.graph, settings.draw_per, tuple(data.embeddings.shape)))
        return kept(settings, data, seed)

    monkeypatch.setattr(fusion.training, "fit", spy)
    found = fusion.measure(4, 100, 3, 2, "gumbel", "batch", 1, "cpu")
    assert fits == [(1, "gumbel", "batch", (20, 4, 3)), (2, "gumbel", "batch", (100, 4, 3))]
    assert found["wall"] > 0
    assert found["peak"] >= found["before"] > 0


def test_samples_are_split_as_in_the_paper():
    data = fusion.random_data(5, 2856, 2)
    assert data.split.bincount().tolist() == [1999, 285, 572]
    assert 0.4 < data.labels.float().mean() < 0.6
    assert torch.equal(data.embeddings, fusion.random_data(5, 2856, 2).embeddings)


def test_local_models_run_once_or_again_in_every_batch(monkeypatch):
    batches = []
    kept = torch.nn.LSTM.forward
    monkeypatch.setattr(torch.nn.LSTM, "forward", lambda self, batch: batches.append(len(batch)) or kept(self, batch))
    found = fusion.measure_local(3, 1000, 5)
    # A first batch to warm up, all ten of them, and the eight of training and validation five times.
    assert batches == [100] * 3 * (1 + 10 + 8 * 5)
    assert set(found) == {"once", "every batch"}


def test_the_plain_loop_trains_the_same_network():
    owners, size, classes = 4, 3, 2
    weights = torch.rand(owners, owners, generator=torch.Generator().manual_seed(0)).triu(1)
    graph = weights + weights.T
    network = build_network(FusionSettings(graph="given"), torch.full((owners,), size), classes, graph)
    plain = fusion_loop.PlainFusion(owners, size, 8, classes, 0.1)
    with torch.no_grad():
        plain.alignment.copy_(network.alignment.matrix)
        for layer, weight, bias in zip((plain.first, plain.second), network.weights, network.biases, strict=True):
            layer.weight.copy_(weight.T)
            bias.copy_(layer.bias)
    embeddings = torch.randn(5, owners, size)
    found = plain(embeddings, graph.expand(5, -1, -1))
    expected = network(embeddings, torch.ones(5, owners, dtype=torch.bool), torch.Generator())
    torch.testing.assert_close(found, expected)
    drawn = plain.draw(3)
    assert torch.equal(drawn, drawn.mT)
    assert len(drawn.flatten(1).unique(dim=0)) == 3


def test_the_plain_loop_learns_as_ours_does():
    data = fusion.random_data(3, 1000, 4)
    settings = FusionSettings(device="cpu", learning_rates=(0.03,), epochs=8, patience=8)
    losses = fusion_loop.plain_fit(settings, data)
    ours = [each.validation_loss for each in fusion.training.fit(settings, data, 0).history]
    assert len(losses) == len(ours) == 8
    assert max(losses[-1], ours[-1]) < 0.25 < min(losses[0], ours[0])


def test_ours_is_put_beside_a_plain_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(fusion_loop, "SHAPES", ("4x500",))
    monkeypatch.setattr(fusion_loop, "_SAMPLES_AT_LEAST", 500)
    file = tmp_path / "raw.json"
    arguments = ["fusion-loop", "--shape", "4x500", "--shape", "2x40", "--repeats", "1", "--json", str(file)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "core-seconds to the plain loop's, 4 owners <= 0.200" in result.output
    raw = json.loads(file.read_text())["results"]
    assert list(raw) == ["4x500", "2x40"]
    assert list(raw["2x40"]) == [fusion_loop.OURS, fusion_loop.WITHOUT, fusion_loop.PLAIN]


def test_a_shape_is_owners_times_samples():
    with pytest.raises(ExperimentError, match="OWNERSxSAMPLES, such as 4x10000, of 20 samples at least; got '4x10'"):
        fusion_loop.fusion_loop(shape=["4x10"])
