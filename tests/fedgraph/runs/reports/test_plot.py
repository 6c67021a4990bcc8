import json

import pytest

import fedgraph
from fedgraph.support.errors import RunError


def finished(folder):
    return fedgraph.load_run(folder.path)


def experiment(tables, method, rounds, **others):
    return {**tables, "experiment": {"method": method, "rounds": rounds}, **others}


def test_a_picture_shows_itself_in_a_notebook_and_is_written(digits_tables, run_experiment, tmp_path):
    run = finished(run_experiment(digits_tables))
    figure = run.plot()
    assert figure._repr_html_().startswith('<img width="')
    figure.savefig(tmp_path / "run.svg")
    assert "<svg" in (tmp_path / "run.svg").read_text()
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_graph_and_curves(digits_tables, run_experiment):
    sfl = finished(run_experiment(experiment(digits_tables, "sfl", 4)))
    local = finished(run_experiment(experiment(digits_tables, "local", 4, graph={})))
    graph, curves = fedgraph.compare([sfl, local]).plot().axes[:2]
    assert len(graph.collections[-1].get_offsets()) == 6
    assert [line.get_label() for line in curves.get_lines()] == ["sfl", "local"]
    assert list(curves.get_lines()[0].get_xdata()) == [0, 1, 2, 3, 4]
    assert curves.get_lines()[0].get_ydata()[-1] == pytest.approx(sfl.summary["metrics"]["test"]["accuracy"]["mean"])
    assert (curves.get_xlabel(), curves.get_ylabel()) == ("round", "test accuracy")
    assert len(local.plot().axes) == 1


def test_runs_of_few_rounds_show_every_client_at_the_end(digits_tables, run_experiment):
    run = finished(run_experiment(digits_tables))
    ends = run.plot().axes[1]
    mean = run.summary["metrics"]["test"]["accuracy"]["mean"]
    assert [label.get_text() for label in ends.get_yticklabels()] == [f"sfl  {mean:.3f}"]
    points = next(line for line in ends.get_lines() if line.get_marker() == "o" and len(line.get_xdata()) == 6)
    assert sorted(points.get_xdata()) == sorted(run.clients["test/accuracy"])


def test_nothing_measured(digits_tables, run_experiment):
    digits_tables["evaluation"] = {"splits": []}
    with pytest.raises(RunError, match="has no metrics to draw"):
        finished(run_experiment(digits_tables)).plot()


def test_a_client_that_reaches_nothing_has_a_colour(digits_tables, run_experiment):
    folder = run_experiment(digits_tables)
    summary = folder.summary()
    summary["per_client"]["test"]["accuracy"]["client-0"] = 0.0
    (folder.path / "summary.json").write_text(json.dumps(summary))
    assert 0.0 in finished(folder).plot().axes[0].collections[-1].get_array()
