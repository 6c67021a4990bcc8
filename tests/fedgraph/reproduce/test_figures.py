import numpy as np
import pytest
from matplotlib.image import imread

from fedgraph.reproduce.figures import KINDS, draw
from fedgraph.reproduce.figures.panels import legend_columns, panels
from fedgraph.reproduce.table import FIGURES
from fedgraph.support.errors import ExperimentError


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


def test_a_figure_of_ones_own(table, results_of, tmp_path, monkeypatch):
    (tmp_path / "drawn_by_hand.py").write_text(
        "from matplotlib.figure import Figure\n\n\n"
        "def rows(results):\n    return Figure() if results.rows(results.columns[0]) else None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table["table"]["figure"] = "drawn_by_hand:rows"
    assert draw(results_of(table), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    table["table"]["figure"] = "drawn_by_hand:nothing"
    with pytest.raises(ExperimentError, match="'nothing'"):
        draw(results_of(table), tmp_path / "figure.png")
    table["table"]["figure"] = "pies"
    with pytest.raises(ExperimentError, match="unknown figure 'pies': use bars, dots"):
        results_of(table)


def test_nothing_to_draw(table, results_of, tmp_path):
    assert set(KINDS) == set(FIGURES)
    for kind in KINDS:
        table["table"]["figure"] = kind
        assert not draw(results_of(table), tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()
