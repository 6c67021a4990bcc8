"""The study of recovered graphs, small enough for a test."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedgraph.commands import cli
from simulations.fedngm import graphs


@pytest.mark.slow
def test_the_page_is_made(data_dir, leave_no_trace):
    if not (data_dir / "graph-truth").is_dir():
        pytest.skip("no graph-truth in the data folder")
    options = ('networks=["asia"]', 'methods=["graphical-lasso"]', "rows=1000", "chain=4", "chain-rows=1500")
    arguments = [part for option in options for part in ("--set", f"options.{option}")]
    arguments += ["--data-dir", str(data_dir)]
    result = CliRunner().invoke(cli.app, ["reproduce", "fedngm-graphs", "--out", "out", *arguments])
    assert result.exit_code == 0, result.output
    (folder,) = Path("out").iterdir()
    lines = {name: _lines(folder / f"{name}.csv") for name in ("moral-graph", "skeleton", "chain")}
    own, union, votes = lines["moral-graph"]
    assert (own["true"], lines["skeleton"][0]["true"]) == ("10", "8")
    assert float(union["recall"]) >= float(votes["recall"])
    assert float(votes["precision"]) > 0.8
    assert float(own["F1"]) > 0.6
    (chain,) = lines["chain"]
    assert float(chain["F1"]) > 0.9 > graphs.RELEASED_F1
    assert "## A Gaussian chain" in (folder / "page.md").read_text()
    result = CliRunner().invoke(
        cli.app, ["reproduce", "fedngm-graphs", "--out", "out", *arguments, "--set", 'options.networks=["azia"]']
    )
    assert result.exit_code
    assert "no 'azia'" in result.output
    assert "alarm" in result.output


def test_neighbours_in_the_chain_are_correlated():
    rows = graphs._chain(4, 20_000, seed=0)
    torch.testing.assert_close(rows.mean(0), torch.full((4,), 0.5), atol=0.005, rtol=0)
    torch.testing.assert_close(rows.std(0), torch.full((4,), 0.1), atol=0.003, rtol=0)
    apart = torch.arange(4)[:, None] - torch.arange(4)
    torch.testing.assert_close(torch.corrcoef(rows.T), 0.8 ** apart.abs().float(), atol=0.02, rtol=0)


def _lines(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))
