"""The study of recovered graphs, small enough for a test."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedgraph.commands import cli
from fedgraph.simulations.fedngm import graphs


@pytest.mark.slow
def test_the_page_is_made(data_dir, leave_no_trace):
    if not (data_dir / "graph-truth").is_dir():
        pytest.skip("no graph-truth in the data folder")
    options = ('networks=["cancer", "asia"]', "features=7", "rows=1000", "chain=4", "chain-rows=1500")
    arguments = [part for option in options for part in ("--set", f"options.{option}")]
    arguments += ["--data-dir", str(data_dir), "--seeds", "0,1"]
    result = CliRunner().invoke(cli.app, ["reproduce", "fedngm-graphs", "--out", "out", *arguments])
    assert result.exit_code == 0, result.output
    (folder,) = Path("out").iterdir()
    lines = {name: _lines(folder / f"{name}.csv") for name in ("moral-graph", "skeleton", "networks", "chain")}
    assert [tuple(line.values()) for line in lines["networks"]] == [("cancer", "5", "4", "5"), ("asia", "8", "8", "10")]
    moral = {(line["network"], line["method"], line["graph"]): line for line in lines["moral-graph"]}
    assert len(moral) == 3 * (4 + 3 + 4 + 1)
    own, union, votes = (moral["asia", "graphical-lasso", how] for how in ("own", "union", "votes"))
    assert float(union["recall"]) >= float(votes["recall"])
    assert float(votes["precision"]) > 0.8
    assert float(own["F1"]) > 0.6
    assert (own["seeds"], moral["cancer", "ges", "own"]["seeds"]) == ("0", "0 1")
    assert float(moral["asia", "ges", "pooled"]["SHD"]) <= 2
    every = [float(moral[name, "uglad", "own"]["SHD"]) for name in ("cancer", "asia", "mean")]
    assert every[2] == pytest.approx(sum(every[:2]) / 2)
    assert lines["skeleton"][0] != lines["moral-graph"][0]
    for line in lines["chain"]:
        assert float(line["F1"]) > 0.9 > graphs.RELEASED_F1
    assert "## A Gaussian chain" in (folder / "page.md").read_text()
    result = CliRunner().invoke(
        cli.app, ["reproduce", "fedngm-graphs", "--out", "out", *arguments, "--set", 'options.networks=["azia"]']
    )
    assert result.exit_code
    assert "no 'azia'" in result.output
    assert "alarm" in result.output


def test_scores_are_means_over_seeds_of_each_network_and_over_networks():
    scores = {"small": torch.tensor([[1.0, 0.5, 0.6, 2], [1, 1, 0.8, 4]]), "large": torch.tensor([[0, 0, 0.1, 9.0]])}
    found = graphs._summarised(scores, {"small": (3, 4), "large": (3,)})
    assert found["small"] == (1.0, 0.75, pytest.approx(0.7), 3.0, pytest.approx(0.1414, abs=1e-4), "3 4")
    assert found["large"] == (0.0, 0.0, pytest.approx(0.1), 9.0, None, "3")
    assert found["mean"] == (0.5, 0.375, pytest.approx(0.4), 6.0, None, "3 4")
    del scores["large"]
    assert list(graphs._summarised(scores, {"small": (3, 4)})) == ["small"]


def test_neighbours_in_the_chain_are_correlated():
    rows = graphs._chain(4, 20_000, seed=0)
    torch.testing.assert_close(rows.mean(0), torch.full((4,), 0.5), atol=0.005, rtol=0)
    torch.testing.assert_close(rows.std(0), torch.full((4,), 0.1), atol=0.003, rtol=0)
    apart = torch.arange(4)[:, None] - torch.arange(4)
    torch.testing.assert_close(torch.corrcoef(rows.T), 0.8 ** apart.abs().float(), atol=0.02, rtol=0)


def _lines(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))
