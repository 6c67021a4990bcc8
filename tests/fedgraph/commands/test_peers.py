"""``fedgraph peers``."""

import pytest
import torch
from typer.testing import CliRunner

from fedgraph.commands.cli import app
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports.peer_comparison import PeerComparison

pytestmark = pytest.mark.usefixtures("leave_no_trace")


@pytest.fixture
def folder(tmp_path):
    """A finished run whose peers were compared: 60 of 1,200 examples are predicted differently by the first two."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / "experiment.toml").touch()
    predicted = torch.zeros(3, 1200, dtype=torch.int64)
    predicted[0, :60] = 1
    models = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
    comparison = PeerComparison.of(("a", "b", "c"), models, predicted, torch.zeros(1200, dtype=torch.int64))
    comparison.write(folder.path / "peers.npz")
    folder.write_summary({"experiment": "three"})
    return folder


def test_means_over_pairs(folder):
    result = CliRunner().invoke(app, ["peers", str(folder.path)])
    assert result.exit_code == 0, result.output
    lines = [[entry.strip() for entry in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line]
    assert "3 peers, 1,200 test examples" in result.output
    assert lines == [
        ["L1 distance of parameters", "4.6667", "0", "7"],
        ["L2 distance of parameters", "3.3333", "0", "5"],
        ["predicted differently", "40", "0", "60"],
        ["both right", "1,160", "1,140", "1,200"],
        ["both wrong", "0", "0", "0"],
    ]


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("peers.npz", "run with [evaluation] compare-peers = true to compare peers"),
        ("summary.json", "is not finished"),
        ("experiment.toml", "is not a run folder"),
    ],
)
def test_what_has_nothing_to_show_is_said(folder, without, message):
    (folder.path / without).unlink()
    result = CliRunner().invoke(app, ["peers", str(folder.path)])
    assert result.exit_code == 1
    assert message in result.output
