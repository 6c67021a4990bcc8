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
    local = compared.as_json()[1]
    first = local.pop("results")[0]
    assert local == compared[1].summary
    assert first == {"metric": "accuracy", "model": "local", "split": "test", **local["metrics"]["test"]["accuracy"]}
    console = Console(file=io.StringIO(), width=120)
    console.print(compared)
    assert "sfl #3" in console.file.getvalue()
    assert "each measured on its own test data" in console.file.getvalue()
    shown = compared._repr_html_()
    assert "<th>sfl #1</th>" in shown
    accuracy = compared[1].summary["metrics"]["test"]["accuracy"]
    assert f"<td>{accuracy['mean']:.3f} ± {accuracy['std']:.3f}</td>" in shown


def test_runs_of_code_that_was_changed_are_told_apart(digits_tables, run_experiment, tmp_path, monkeypatch):
    file = tmp_path / "a_method_to_be_changed.py"
    file.write_text("from fedgraph.algorithms.sfl import SFL\n\n\nclass Mine(SFL):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    del digits_tables["experiment"]["method"]
    digits_tables["experiment"] |= {"strategy": "a_method_to_be_changed:Mine", "rounds": 1}
    first, same = (fedgraph.load_run(run_experiment(digits_tables).path) for _ in range(2))
    file.write_text(file.read_text() + "\n    alpha = 0.5\n")
    then = fedgraph.load_run(run_experiment(digits_tables).path)
    one, two = (f"Mine (code {run.folder.code})" for run in (first, then))
    assert one != two
    assert fedgraph.compare([first, then]).labels == [one, two]
    assert fedgraph.compare([first, same, then]).labels == [f"{one} #1", f"{one} #2", two]


def test_only_what_can_be_compared(ran, digits_tables, tmp_path):
    with pytest.raises(ExperimentError, match=r"compared with (.*): .*: shards is 1 in .* and 2 in \1$"):
        fedgraph.compare([ran(), ran(shards=1)])
    with pytest.raises(RunError, match="no runs to compare"):
        fedgraph.compare([])
    with pytest.raises(RunError, match="expects a list of runs or run folders.*got '.*'"):
        fedgraph.compare(str(tmp_path))
    with pytest.raises(RunError, match=r"expects a list of runs or run folders, such as \[run, other\], got 3"):
        fedgraph.compare(3)
    with pytest.raises(RunError, match="expects the path of a run folder, got 3"):
        fedgraph.compare([3])
