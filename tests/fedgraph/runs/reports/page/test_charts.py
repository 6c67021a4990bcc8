"""Charts as Plotly figures."""

import numpy as np

from fedgraph.graph import ClientGraph
from fedgraph.runs.reports.page import charts


def test_a_graph_has_every_edge_once_and_the_strongest_when_there_are_many():
    names = [f"client-{number}" for number in range(40)]
    generator = np.random.default_rng(0)
    matrix = generator.random((40, 40))
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    graph = ClientGraph.from_dense(names, matrix, directed=False)
    places = {name: (float(number), 0.0) for number, name in enumerate(names)}
    figure, left_out = charts.client_graph(graph, places, dict.fromkeys(names, 1.0), "accuracy", on_map=False)
    assert left_out == 40 * 39 // 2 - charts.MOST_EDGES * 40
    *edges, points = figure.data
    drawn = {tuple(sorted(edge.x[start : start + 2])) for edge in edges for start in range(0, len(edge.x), 3)}
    assert len(drawn) == charts.MOST_EDGES * 40
    least = min(matrix[int(one), int(other)] for one, other in drawn)
    rest = [matrix[i, j] for i in range(40) for j in range(i + 1, 40) if (float(i), float(j)) not in drawn]
    assert least >= max(rest)
    assert list(points.x) == [float(number) for number in range(40)]
    # Of clients that are all alike there is no scale of colours.
    assert points.marker.color == charts.COLOURS[0]


def test_clients_without_an_edge_or_a_value_are_drawn():
    graph = ClientGraph.empty(["a", "b"])
    figure, left_out = charts.client_graph(graph, {"a": (0, 0), "b": (1, 1)}, {"a": 1.0}, "mae", on_map=True)
    assert left_out == 0
    assert len(figure.data[0].x) == 2
    assert "b<br>mae nan" in figure.data[0].hovertext[1]


def test_a_curve_leaves_out_rounds_without_a_value():
    values = np.array([[1.0, 3.0], [np.nan, np.nan], [2.0, np.nan], [2.0, 2.0], [1.0, 1.0]])
    band, mean = charts.curves({"run": ([0, 1, 2, 3, 4], values)}, "round", "loss").data
    assert list(mean.x) == [0, 2, 3, 4]
    assert list(mean.y) == [2.0, 2.0, 2.0, 1.0]
    assert list(band.y) == [2.5, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 1.5]


def test_three_rounds_are_points_with_bars():
    values = np.array([[1.0, 3.0], [2.0, np.nan], [4.0, 4.0]])
    (points,) = charts.curves({"run": ([0, 1, 2], values)}, "round", "loss").data
    assert points.mode == "markers"
    assert list(points.y) == [2.0, 2.0, 4.0]
    assert list(points.error_y.array) == list(points.error_y.arrayminus) == [0.5, 0.0, 0.0]
    (alone,) = charts.curves({"run": ([1], np.array([[4.0]]))}, "epoch", "loss").data
    assert alone.mode == "markers"
