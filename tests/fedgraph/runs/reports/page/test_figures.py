"""Charts as Plotly figures."""

import numpy as np

from fedgraph.graph import ClientGraph
from fedgraph.runs.reports import charts
from fedgraph.runs.reports.page.figures import COLOURS, figure

NONE = float("nan")


def test_clients_without_an_edge_or_a_value_are_drawn():
    chart = ClientGraph.empty(["a", "b"]).chart({"a": (0, 0), "b": (1, 1)}, values={"a": 1.0}, label="mae")
    (points,) = figure(chart).data
    assert list(points.x) == [0, 1]
    assert "b<br>mae nan" in points.hovertext[1]
    # Of clients that are all alike there is no scale of colours.
    assert points.marker.color == COLOURS[0]


def test_each_edge_is_a_line_between_the_places_of_its_clients():
    graph = ClientGraph.from_edges([("a", "b", 1.0), ("b", "c", 3.0)])
    thin, wide, points = figure(graph.chart({"a": (0, 0), "b": (1, 1), "c": (5, 2)}, values={"a": 1, "b": 2})).data
    assert [list(each.x) for each in (thin, wide)] == [[0, 1, None], [1, 5, None]]
    assert thin.line.width < wide.line.width
    assert list(points.marker.color)[:2] == [1, 2]


def test_a_curve_leaves_out_rounds_without_a_value():
    history = {0: [1.0, 3.0], 1: [NONE, NONE], 2: [2.0, NONE], 3: [2.0, 2.0], 4: [1.0, 1.0]}
    band, mean = figure(charts.curves({"run": history}, "round", "loss")).data
    assert list(mean.x) == [0, 2, 3, 4]
    assert list(mean.y) == [2.0, 2.0, 2.0, 1.0]
    assert list(band.y) == [2.5, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 1.5]


def test_three_rounds_are_points_with_bars():
    history = {0: [1.0, 3.0], 1: [2.0, NONE], 2: [4.0, 4.0]}
    (points,) = figure(charts.curves({"run": history}, "round", "loss")).data
    assert points.mode == "markers"
    assert list(points.y) == [2.0, 2.0, 4.0]
    assert list(points.error_y.array) == list(points.error_y.arrayminus) == [0.5, 0.0, 0.0]
    (alone,) = figure(charts.curves({"run": {1: [4.0]}}, "epoch", "loss")).data
    assert alone.mode == "markers"


def test_intervals_lie_and_without_bounds_are_points():
    known, alone = figure(charts.intervals({"a": (1.0, 0.5, 2.0), "b": (3.0, NONE, NONE)}, "%")).data
    assert (list(known.x), list(known.error_x.array), list(known.error_x.arrayminus)) == ([1.0], [1.0], [0.5])
    assert list(alone.x) == [3.0]
    assert alone.error_x.array is None


def test_bars_side_by_side_and_across():
    one, other = figure(charts.bars(["no", "yes"], {"a": [0.1, 0.9], "b": [None, 0.5]}, "share")).data
    assert [list(each.y) for each in (one, other)] == [[0.1, 0.9], [None, 0.5]]
    ours, theirs = figure(charts.ranked({"ours": 1.0, "theirs": 2.0}, {"ours": "1 %", "theirs": "2 %"}, "ours")).data
    assert (list(ours.x), list(ours.text), ours.orientation) == ([1.0], ["1 %"], "h")
    assert ours.marker.color == COLOURS[0] != theirs.marker.color


def test_a_matrix_of_pairs():
    (cells,) = figure(charts.HeatMap(["a", "b"], np.array([[0.0, 1.0], [2.0, 0.0]]), "distance")).data
    assert (np.array(cells.z).tolist(), list(cells.y)) == ([[0.0, 1.0], [2.0, 0.0]], ["a", "b"])
