import itertools

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from fedgraph.client_graph import ClientGraph, write_graph
from fedgraph.reproduce import figures
from fedgraph.reproduce.figures import draw, shown_clients


def ink(path):
    """Share of pixels that are not white."""
    return float((imread(path)[..., :3].min(axis=2) < 0.9).mean())


@pytest.fixture
def figure_of(table, plan, execute, results_of, tmp_path, monkeypatch):
    """Run the table, draw its figure; returns the path and what was drawn."""
    drawn = []

    def figure_of(kind):
        table["table"]["figure"] = kind
        cells = plan(table, "experiment.rounds=3")
        table["table"]["set"] = ["experiment.rounds=3"]
        execute(cells)
        for cell in cells:
            names = [f"client-{number}" for number in range(6)]
            weights = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)).triu(1)
            graph = ClientGraph.from_dense(names, weights, directed=True)
            if cell.row == "SFL":
                write_graph(graph, cell.path / "learned-graph.npz")
        results = results_of(table)
        from matplotlib.figure import Figure

        save = Figure.savefig
        monkeypatch.setattr(Figure, "savefig", lambda figure, path: (drawn.append(figure), save(figure, path)))
        assert draw(results, tmp_path / "figure.png")
        return tmp_path / "figure.png", drawn[0], results

    return figure_of


@pytest.mark.parametrize("kind", ["bars", "dots"])
def test_rows_are_drawn_at_their_means(kind, figure_of):
    path, figure, results = figure_of(kind)
    assert ink(path) > 0.02
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["FedAvg", "SFL", "Oracle"]
    column, metric = results.columns[0], results.table.table.metrics[0]
    means = [results.ours(row, column, metric).mean for row in results.table.rows[:2]]
    if kind == "bars":
        assert [patch.get_width() for patch in axis.patches] == means
    else:
        assert [
            line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o" and len(line.get_xdata())
        ] == means
    published = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "D" and len(line.get_xdata())]
    assert published == [12.5, 99.0]
    assert "higher is better" in axis.get_xlabel()


def test_curves_are_means_over_seeds_by_round(figure_of):
    path, figure, results = figure_of("curves")
    assert ink(path) > 0.01
    (axis,) = figure.axes
    lines = {line.get_label(): line for line in axis.lines}
    assert set(lines) == {"FedAvg", "SFL"}
    column, metric = results.columns[0], results.table.table.metrics[0]
    assert lines["SFL"].get_xdata().tolist() == [0, 1, 2, 3]
    for row in results.table.rows[:2]:
        assert lines[row.label].get_ydata()[-1] == pytest.approx(results.ours(row, column, metric).mean)
    assert len(axis.collections) == 2


def test_adjacency_has_the_given_graph_above_the_learned(figure_of, monkeypatch):
    order = ["client-3", "client-0", "client-4", "client-1"]
    monkeypatch.setattr(figures, "shown_clients", lambda graph: order)
    path, figure, results = figure_of("adjacency")
    assert ink(path) > 0.3
    images = [axis.images[0].get_array() for axis in figure.axes if axis.images and axis.get_title()]
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == ["Digits\ngiven", "learned: SFL"]
    from fedgraph.client_graph import read_graph

    folder = next(outcome.cell.path for outcome in results.outcomes if outcome.cell.row == "SFL")
    given, learned = read_graph(folder / "graph.npz"), read_graph(folder / "learned-graph.npz")
    for image, graph in zip(images, (given, learned), strict=True):
        np.testing.assert_allclose(image, graph.without_self_loops().subgraph(order).dense())


def test_nothing_to_draw(table, results_of, tmp_path):
    for kind in ("bars", "dots", "curves", "adjacency", "none"):
        table["table"]["figure"] = kind
        assert not draw(results_of(table), tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()


def test_clients_of_a_community_stand_side_by_side():
    names = [f"{number:02d}" for number in range(40)]
    group = torch.tensor([number % 3 for number in range(40)])
    matrix = (group[:, None] == group[None, :]).float()
    shown = shown_clients(ClientGraph.from_dense(names, matrix, directed=False))
    assert len(shown) == figures.MOST_CLIENTS
    groups = [int(name) % 3 for name in shown]
    assert sum(before != after for before, after in itertools.pairwise(groups)) == 1
    alone = ClientGraph.empty(names[:4])
    assert shown_clients(alone) == names[:4]
