"""Finished runs side by side."""

import io

import pytest
from rich.console import Console

import fedgraph
from fedgraph.support.errors import ExperimentError, RunError


def test_side_by_side(ran):
    compared = fedgraph.compare([ran("sfl").path, ran("local"), ran("sfl")])
    assert compared.labels == ["sfl #1", "local", "sfl #3"]
    assert (
        compared.metrics.loc["test/accuracy", ("local", "mean")]
        == (compared[1].summary["metrics"]["test"]["accuracy"]["mean"])
    )
    clients = compared.clients("test/accuracy")
    assert list(clients) == compared.labels
    assert clients["local"].equals(compared[1].clients["test/accuracy"].rename("local"))
    with pytest.raises(RunError, match="measured 'test/mae'; measured: .*test/accuracy"):
        compared.clients("test/mae")
    console = Console(file=io.StringIO(), width=120)
    console.print(compared)
    assert "sfl #3" in console.file.getvalue()
    assert "each measured on its own test data" in console.file.getvalue()
    assert "sfl #1" in compared._repr_html_()


def test_only_what_can_be_compared(ran, digits_tables, tmp_path):
    with pytest.raises(ExperimentError, match="cannot be compared: .* shards is 1 there and 2 here"):
        fedgraph.compare([ran(), ran(shards=1)])
    with pytest.raises(RunError, match="no runs to compare"):
        fedgraph.compare([])
    with pytest.raises(RunError, match="are a list of runs or of their folders.*not '.*'"):
        fedgraph.compare(str(tmp_path))
    with pytest.raises(RunError, match=r"are a list of runs or of their folders, such as \[run, other\], not 3"):
        fedgraph.compare(3)
    with pytest.raises(RunError, match="from the path of its folder, not from 3"):
        fedgraph.compare([3])
