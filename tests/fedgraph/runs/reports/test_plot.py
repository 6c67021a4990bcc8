import pytest

from fedgraph.runs.reports.plot import plot_runs
from fedgraph.support.errors import RunError


def test_one_picture_of_several_runs(digits_tables, run_experiment, tmp_path):
    folders = [
        run_experiment({**digits_tables, "experiment": {"method": method, "rounds": 2}}) for method in ("sfl", "fedavg")
    ]
    plot_runs(folders, tmp_path / "runs.svg")
    drawn = (tmp_path / "runs.svg").read_text()
    assert "<svg" in drawn
    plot_runs(folders[1:], tmp_path / "runs.png")
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_drawn(digits_tables, run_experiment, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: figures.append(self))
    sfl = run_experiment(digits_tables)
    local = run_experiment({**digits_tables, "experiment": {"method": "local", "rounds": 2}, "graph": {}})
    plot_runs([sfl, local], tmp_path / "x.png")
    graph, curves = figures[0].axes[:2]
    assert len(graph.collections[-1].get_offsets()) == 6
    assert [line.get_label() for line in curves.get_lines()] == ["sfl", "local"]
    summary = sfl.summary()["metrics"]["test"]["accuracy"]["mean"]
    assert list(curves.get_lines()[0].get_xdata()) == [0, 1, 2]
    assert curves.get_lines()[0].get_ydata()[-1] == pytest.approx(summary)
    assert curves.get_ylabel() == "accuracy on each client's test data"
    plot_runs([local], tmp_path / "x.png")
    assert len(figures[1].axes) == 1


def test_nothing_measured(digits_tables, run_experiment, tmp_path):
    digits_tables["evaluation"] = {"splits": []}
    with pytest.raises(RunError, match="measured nothing"):
        plot_runs([run_experiment(digits_tables)], tmp_path / "x.png")


def test_a_client_that_reaches_nothing_has_a_colour(digits_tables, run_experiment, tmp_path, monkeypatch):
    import json

    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: figures.append(self))
    folder = run_experiment(digits_tables)
    summary = folder.summary()
    summary["per_client"]["test"]["accuracy"]["client-0"] = 0.0
    (folder.path / "summary.json").write_text(json.dumps(summary))
    plot_runs([folder], tmp_path / "x.png")
    assert 0.0 in figures[0].axes[0].collections[-1].get_array()
