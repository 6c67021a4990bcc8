import itertools
import json
from typing import get_args

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from fedgraph.graph import ClientGraph, write_graph
from fedgraph.reproduce.figures import KINDS, client_graphs, draw
from fedgraph.reproduce.figures.client_graphs import MOST_CLIENTS, shown_clients
from fedgraph.reproduce.figures.panels import legend_columns, panels
from fedgraph.reproduce.table import TableTable
from fedgraph.runs.reports.peer_comparison import PeerComparison
from fedgraph.support.errors import RunError


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
def test_published_values_of_other_data_have_an_axis_of_their_own(kind, table, figure_of):
    table["columns"][0]["published-data"] = "CIFAR-10"
    _, figure, _ = figure_of(kind)
    ours, theirs = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["Digits", "Digits:\npublished, CIFAR-10"]
    assert [label.get_text() for label in ours.get_yticklabels()] == ["FedAvg", "SFL"]
    assert [label.get_text() for label in theirs.get_yticklabels()] == ["FedAvg", "Oracle"]
    diamonds = [[line for line in axis.lines if line.get_marker() == "D"] for axis in figure.axes]
    assert diamonds[0] == []
    assert [line.get_xdata()[0] for line in diamonds[1] if len(line.get_xdata())] == [12.5, 99.0]


@pytest.mark.parametrize("kind", ["bars", "dots"])
@pytest.mark.parametrize(
    ("highlight", "legend"), [({}, ["ours"]), ({"method": "S", "highlight": ["SF"]}, ["ours, S", "ours, others"])]
)
def test_rows_are_drawn_at_their_means(kind, highlight, legend, table, figure_of):
    table["table"] |= highlight
    table["columns"][0]["published-data"] = "digits"
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
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["published", *legend]
    assert "higher is better" in axis.get_xlabel()


def test_lines_go_over_the_columns_of_a_panel(table, figure_of):
    first = table["columns"][0]
    table["columns"] = [
        first | {"key": f"digits-{shards}", "at": at, "panel": panel, "set": [f"data.shards={shards}"]}
        for shards, at, panel in ((2, 8.0, "few"), (4, 2.0, "few"), (3, 1.0, "other"))
    ]
    table["columns"][1]["seeds-differ"] = True
    for row in table["rows"]:
        row.pop("published", None)
    table["rows"] = [row for row in table["rows"] if "method" in row]
    path, figure, results = figure_of("lines")
    assert ink(path) > 0.01
    assert [axis.get_title() for axis in figure.axes] == ["few", "other"]
    metric = results.table.table.metrics[0]
    for axis, columns in ((figure.axes[0], [1, 0]), (figure.axes[1], [2])):
        for row, line in zip(results.table.rows, axis.containers, strict=True):
            assert line.get_label() == row.label
            assert line.lines[0].get_xdata().tolist() == [results.columns[place].at for place in columns]
            means = [results.ours(row, results.columns[place], metric).mean for place in columns]
            assert line.lines[0].get_ydata().tolist() == means
            (bars,) = line.lines[2]
            heights = [low_and_high[1][1] - low_and_high[0][1] for low_and_high in bars.get_segments()]
            # Deviations of columns whose seeds have other data are none of the method.
            assert [height > 0 for height in heights] == [place != 1 for place in columns]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [row.label for row in results.table.rows]


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


def test_curves_of_one_client(table, figure_of):
    table["table"]["metrics"] = table["table"]["metrics"][:1]
    table["rows"][0]["published"], table["rows"][2]["published"] = {"digits": [12.5]}, {"digits": [99.0]}
    table["rows"][1]["client"] = "client-2"
    _, figure, results = figure_of("curves")
    (curve,) = (line for line in figure.axes[0].lines if line.get_label() == "SFL")
    summaries = [outcome.summary for outcome in results.outcomes if outcome.cell.row == "SFL"]
    ends = [100 * summary["per_client"]["test"]["accuracy"]["client-2"] for summary in summaries]
    assert curve.get_ydata()[-1] == pytest.approx(np.mean(ends))
    means = [100 * summary["metrics"]["test"]["accuracy"]["mean"] for summary in summaries]
    assert np.mean(ends) != pytest.approx(np.mean(means), abs=1e-3)


def test_curves_are_of_the_first_metric_with_a_value_for_every_round(table, figure_of):
    rounds = {"title": "rounds", "value": "test/accuracy:first-rounds"}
    table["table"] |= {"metrics": [rounds, *table["table"]["metrics"]], "highlight": ["SFL"]}
    for row in table["rows"]:
        row.pop("published", None)
    _, figure, _ = figure_of("curves")
    (axis,) = figure.axes
    assert axis.get_ylabel().startswith(table["table"]["metrics"][1]["title"])
    widths = {line.get_label(): line.get_linewidth() for line in axis.lines}
    assert widths["SFL"] > widths["FedAvg"]


def test_a_legend_is_no_wider_than_its_figure():
    figure, _ = panels(1, width=4.6, height=3)
    assert legend_columns(figure, ["FedAvg", "SFL"]) == 4
    assert legend_columns(figure, ["FedAvg", "FedAvg from different initialisations"]) == 1
    wide, _ = panels(2, width=4.6, height=3)
    assert legend_columns(wide, ["FedAvg", "FedAvg from different initialisations"]) == 3
    assert legend_columns(figure, ["x" * 200]) == 1


def test_adjacency_has_the_given_graph_above_the_learned(figure_of, monkeypatch):
    order = ["client-3", "client-0", "client-4", "client-1"]
    monkeypatch.setattr(client_graphs, "shown_clients", lambda graph: order)
    path, figure, results = figure_of("adjacency")
    assert ink(path) > 0.3
    images = [axis.images[0].get_array() for axis in figure.axes if axis.images and axis.get_title()]
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == ["Digits\ngiven", "learned: SFL"]
    from fedgraph.graph import read_graph

    folder = next(outcome.cell.path for outcome in results.outcomes if outcome.cell.row == "SFL")
    given, learned = read_graph(folder / "graph.npz"), read_graph(folder / "learned-graph.npz")
    for image, graph in zip(images, (given, learned), strict=True):
        np.testing.assert_allclose(image, graph.without_self_loops().subgraph(order).dense())


def test_nothing_to_draw(table, results_of, tmp_path):
    assert set(KINDS) == set(get_args(TableTable.model_fields["figure"].annotation))
    table["table"]["stand-alone"] = "SFL"
    for kind in KINDS:
        table["table"]["figure"] = kind
        assert not draw(results_of(table), tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()


def test_clients_of_a_community_stand_side_by_side():
    names = [f"{number:02d}" for number in range(40)]
    group = torch.tensor([number % 3 for number in range(40)])
    matrix = (group[:, None] == group[None, :]).float()
    shown = shown_clients(ClientGraph.from_dense(names, matrix, directed=False))
    assert len(shown) == MOST_CLIENTS
    groups = [int(name) % 3 for name in shown]
    assert sum(before != after for before, after in itertools.pairwise(groups)) == 1
    alone = ClientGraph.empty(names[:4])
    assert shown_clients(alone) == names[:4]


@pytest.fixture
def finished(table, plan, results_of, monkeypatch, tmp_path):
    """Make run folders by hand: ``fill`` is given each cell; returns what is drawn of them."""

    def finished(kind, fill):
        table["table"]["figure"] = kind
        for cell in plan(table):
            cell.path.mkdir(parents=True)
            summary = {"metrics": {}, "data": "made up", "seconds": 1.0}
            (cell.path / "summary.json").write_text(json.dumps(summary))
            fill(cell)
        drawn = []
        from matplotlib.figure import Figure

        save = Figure.savefig
        monkeypatch.setattr(Figure, "savefig", lambda figure, path: (drawn.append(figure), save(figure, path)))
        assert draw(results_of(table), tmp_path / "figure.png")
        assert ink(tmp_path / "figure.png") > 0.005
        return drawn[0]

    return finished


def test_entropies_of_all_seeds_and_splits_are_one_distribution(finished):
    def fill(cell):
        if cell.row == "SFL":
            values = {0: [0.0, 0.0, 0.0, 0.5], 1: [0.5, 0.5, 0.9, 1.0]}[cell.seed]
            lines = [f"{number},{('train', 'test')[number % 2]},{value}" for number, value in enumerate(values)]
            (cell.path / "entropies.csv").write_text("\n".join(["key,split,entropy", *lines]))

    figure = finished("entropies", fill)
    (axis,) = figure.axes
    values, edges, _ = axis.patches[0].get_data()
    assert (edges[0], edges[-1]) == (0.0, 1.0)
    shares = {round(float(edge), 3): float(value) for edge, value in zip(edges[:-1], values, strict=True) if value}
    assert shares == pytest.approx({0.0: 37.5, 0.5: 37.5, 0.9: 25.0})
    (mean,) = axis.lines
    assert mean.get_xdata()[0] == pytest.approx(3.4 / 8)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Digits (mean 0.42)"]


def test_entropies_of_many_classes_have_room(finished):
    def fill(cell):
        (cell.path / "entropies.csv").write_text(f"key,split,entropy\na,test,{1.5 if cell.row == 'SFL' else 0.2}\n")

    figure = finished("entropies", fill)
    assert figure.axes[0].get_xlim() == (0.0, 1.5)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "Digits, FedAvg (mean 0.20)",
        "Digits, SFL (mean 1.50)",
    ]


def test_permutations_of_clients_evenly_taken(finished):
    matrices = np.stack([np.roll(np.eye(3), shift, axis=0) for shift in range(7)])
    matrices[3] = np.array([[0.8, 0.2, 0.0], [0.2, 0.5, 0.3], [0.0, 0.3, 0.9]])

    def fill(cell):
        if cell.row == "SFL":
            owners = np.array([f"owner {number}" for number in range(7)])
            np.savez(cell.path / "alignment.npz", owners=owners, matrices=matrices if cell.seed == 0 else matrices * 0)

    figure = finished("permutations", fill)
    axes = [axis for axis in figure.axes if axis.images and axis.get_title()]
    assert [axis.get_title() for axis in axes] == ["owner 0", "owner 2", "owner 4", "owner 6"]
    for axis, index in zip(axes, (0, 2, 4, 6), strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), matrices[index])
    title = figure.subfigs[0].get_suptitle()
    assert "Digits\n7 clients; on average, the largest entry of a row is 0.96" in title
    assert "within 0.2 of 1" in title


def test_one_client_has_one_permutation(finished):
    def fill(cell):
        np.savez(cell.path / "alignment.npz", owners=np.array(["only"]), matrices=np.eye(2)[None])

    figure = finished("permutations", fill)
    assert [axis.get_title() for axis in figure.axes if axis.images and axis.get_title()] == ["only", "only"]
    assert [part.get_suptitle().splitlines()[0] for part in figure.subfigs] == ["Digits, FedAvg", "Digits, SFL"]


def compared(peers, examples=50, seed=0, name="peer"):
    draw = torch.Generator().manual_seed(seed)
    predicted = torch.randint(3, (peers, examples), generator=draw)
    names = tuple(f"{name} {number}" for number in range(peers))
    return PeerComparison.of(names, torch.zeros(peers, 1), predicted, torch.zeros(examples).long())


def test_peers_of_every_row_in_shades_of_one_scale(finished):
    comparisons = {("FedAvg", 0): compared(4), ("FedAvg", 1): compared(5), ("SFL", 1): compared(4, 200, 1)}

    def fill(cell):
        if (cell.row, cell.seed) in comparisons:
            comparisons[cell.row, cell.seed].write(cell.path / "peers.npz")

    figure = finished("peers", fill)
    axes = [axis for axis in figure.axes if axis.images]
    shown = comparisons["FedAvg", 0], comparisons["SFL", 1]
    means = [comparison.mean("hamming") for comparison in shown]
    assert [axis.get_title() for axis in axes] == [
        f"Digits, FedAvg\nmean {means[0]:.1f} of 50", f"Digits, SFL\nmean {means[1]:.1f} of 200"
    ]  # fmt: skip
    off = ~np.eye(4, dtype=bool)
    for axis, comparison in zip(axes, shown, strict=True):
        image = axis.images[0].get_array()
        assert image.mask.tolist() == np.eye(4, dtype=bool).tolist()
        np.testing.assert_allclose(image[off], 100 * comparison.hamming.numpy()[off] / comparison.examples)
        assert [text.get_text() for text in axis.texts] == [str(count) for count in comparison.hamming.numpy()[off]]
        assert [label.get_text() for label in axis.get_yticklabels()] == list(comparison.names)
    limits = [axis.images[0].get_clim() for axis in axes]
    assert limits[0] == limits[1]
    assert limits[0][0] == min(axis.images[0].get_array().min() for axis in axes)


def test_many_peers_have_neither_names_nor_numbers(finished):
    figure = finished("peers", lambda cell: cell.row == "SFL" and compared(40).write(cell.path / "peers.npz"))
    axis = figure.axes[0]
    assert axis.get_title().startswith("Digits\n")
    assert (len(axis.texts), len(axis.get_yticks()), axis.get_xlabel()) == (0, 0, "40 peers")


def test_two_peers_with_long_names(finished):
    two = compared(2, name="St. Olavs hospital, ward")
    figure = finished("peers", lambda cell: two.write(cell.path / "peers.npz"))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["St. Ol… ward 0", "St. Ol… ward 1"]
    assert figure.axes[0].images[0].get_clim() == (0, 100), "one number makes no scale"


def write_run(path, by_round):
    """Accuracy by client after each round, the last also in the summary."""
    summary = {"metrics": {}, "data": "made up", "seconds": 1.0}
    summary["per_client"] = {"test": {"accuracy": list(by_round.values())[-1]}}
    (path / "summary.json").write_text(json.dumps(summary))
    lines = [
        {"round": number, "phase": "evaluation", "split": "test", "per_client": {"accuracy": values}}
        for number, values in by_round.items()
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


ALONE = {"a": 0.9, "b": 0.1, "c": 0.5, "d": None}
COURSE = {
    0: dict.fromkeys("abcd", 0.1),
    1: {"a": 0.5, "b": 0.2, "c": None, "d": 0.3},
    2: {"a": 0.4, "b": 0.6, "c": 0.5, "d": 0.7},
}


@pytest.fixture
def fair_runs(table, finished):
    """SFL is the stand-alone row; ``courses`` gives the other row's."""
    table["table"]["stand-alone"] = "SFL"

    def fair_runs(course):
        return finished(
            "fairness", lambda cell: write_run(cell.path, {1: ALONE} if cell.row == "SFL" else course(cell))
        )

    return fair_runs


def test_fairness_beside_every_client_by_round(fair_runs):
    figure = fair_runs(lambda cell: COURSE if cell.seed == 0 else {0: ALONE, 1: ALONE})
    axis, right = figure.axes
    assert axis.get_title() == "Digits"
    assert "accuracy" in axis.get_ylabel()
    clients = [line for line in axis.lines if len(line.get_xdata()) == 3]
    expected = [[0.1, 0.2, 0.6], [0.1, np.nan, 0.5], [0.1, 0.5, 0.4]]
    np.testing.assert_array_equal([line.get_ydata() for line in clients], expected, "as they do alone")
    marks = [line for line in axis.lines if len(line.get_xdata()) == 2]
    assert [line.get_ydata()[0] for line in marks] == [0.1, 0.5, 0.9]
    assert [line.get_color().tolist() for line in marks] == [line.get_color().tolist() for line in clients]
    assert len({tuple(line.get_color()) for line in marks}) == 3
    (fairness,) = right.lines
    expected = [np.nan, 100.0, 100 * np.corrcoef([0.1, 0.5, 0.9], [0.6, 0.5, 0.4])[0, 1]]
    np.testing.assert_allclose(fairness.get_ydata(), expected)
    assert right.get_ylim()[0] < expected[2] < 100 < right.get_ylim()[1]


@pytest.mark.parametrize(
    ("highlight", "titles"),
    [([], ["Digits, FedAvg", "Digits, Ditto"]), (["Dit"], ["Digits"]), (["SFL"], ["Digits, FedAvg", "Digits, Ditto"])],
)
def test_fairness_of_highlighted_rows_and_of_those_that_have_some(table, fair_runs, highlight, titles):
    table["table"]["highlight"] = highlight
    table["rows"].insert(1, {"label": "Ditto", "method": "ditto"})
    table["rows"].insert(2, {"label": "One model", "method": "fedprox"})
    figure = fair_runs(lambda cell: COURSE if cell.row != "One model" else {0: COURSE[0], 1: COURSE[0]})
    assert [axis.get_title() for axis in figure.axes if axis.get_title()] == titles
    scales = {axis.get_ylim() for axis in figure.axes if axis.get_ylabel() == "fairness"}
    assert len(scales) == 1, "one for all panels"


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("peers", "peers.npz", b"nothing"),
        ("entropies", "entropies.csv", b"key,split,bits\na,test,0.5\n"),
        ("entropies", "entropies.csv", b"key,split,entropy\na,test,none\n"),
        ("permutations", "alignment.npz", b"nothing"),
    ],
)
def test_a_run_folder_that_lacks_numbers_is_named(kind, name, content, finished):
    with pytest.raises(RunError, match=f"seed0-.*{name}"):
        finished(kind, lambda cell: (cell.path / name).write_bytes(content))
