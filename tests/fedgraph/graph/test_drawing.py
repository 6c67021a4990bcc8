import matplotlib.pyplot as plt
import numpy as np

from fedgraph.graph import ClientGraph, FeatureGraph
from fedgraph.graph.drawing import MOST_EDGES, spring_layout

GRAPH = ClientGraph.from_edges([("a", "b", 1.0), ("b", "<c>", 3.0), ("a", "a", 1.0)])


def test_places_are_the_same_every_time():
    assert spring_layout(GRAPH.to_networkx()) == spring_layout(GRAPH.to_networkx())


def test_edges_are_as_wide_as_they_weigh_and_self_loops_are_left_out():
    edges, points = GRAPH.plot().axes[0].collections
    assert len(points.get_offsets()) == 3
    widths = sorted(edges.get_linewidths())
    assert len(widths) == 2
    assert widths[1] > 1.5 * widths[0]


def test_vertices_are_where_they_are_put_and_coloured_by_values():
    places = {"a": (0.0, 0.0), "b": (1.0, 0.0), "<c>": (2.0, 5.0)}
    axes, bar = GRAPH.plot({"a": 0.5, "b": 0.25}, "accuracy", places).axes
    points = axes.collections[-1]
    assert points.get_offsets().tolist() == [list(places[name]) for name in GRAPH.names]
    assert dict(zip(GRAPH.names, points.get_array().tolist(), strict=True)) == {"a": 0.5, "b": 0.25, "<c>": None}
    assert bar.get_ylabel() == "accuracy"
    assert len(GRAPH.plot({"a": 0.5}).axes) == 1, "one value is no scale"


def test_edges_are_drawn_once_and_the_strongest_when_there_are_many():
    names = [f"client-{number}" for number in range(40)]
    matrix = np.random.default_rng(0).random((40, 40))
    graph = ClientGraph.from_dense(names, matrix, directed=True)
    chart = graph.chart({name: (float(number), 0.0) for number, name in enumerate(names)})
    stronger = np.triu(np.maximum(matrix, matrix.T), 1)
    drawn = np.zeros_like(stronger)
    for one, other, weight in chart.edges:
        low, high = sorted((names.index(one), names.index(other)))
        drawn[low, high] = weight
    assert (drawn > 0).sum() == len(chart.edges) == MOST_EDGES * 40
    assert np.allclose(drawn[drawn > 0], stronger[drawn > 0])
    assert chart.left_out == 40 * 39 // 2 - MOST_EDGES * 40
    assert drawn[drawn > 0].min() >= stronger[drawn == 0].max()
    assert "580 weakest edges" in graph.plot().axes[0].texts[-1].get_text()


def test_a_graph_without_edges_is_drawn():
    assert "<img" in ClientGraph.empty(["a", "b"]).plot()._repr_html_()


def test_features_are_drawn_with_their_names():
    axes = FeatureGraph(("age", "$mass$", "smoker"), (("age", "smoker"),)).plot({("age", "smoker"): 2.0}).axes[0]
    assert {text.get_text() for text in axes.texts} == {"age", "$mass$", "smoker"}
    assert not any(text.get_parse_math() for text in axes.texts)


def test_pictures_stay_in_no_list_of_open_figures():
    before = plt.get_fignums()
    GRAPH.plot()
    assert plt.get_fignums() == before
