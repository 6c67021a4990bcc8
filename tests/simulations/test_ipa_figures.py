"""Figures 3 and 4 of Gorbett et al. 2023: peers in pairs, and every client and the fairness of all by round."""

import json

import numpy as np
import pytest
import torch

from fedgraph.runs.reports.peer_comparison import PeerComparison
from fedgraph.simulations.ipa import figures
from fedgraph.support.errors import RunError


def compared(peers, examples=50, seed=0, name="peer"):
    draw = torch.Generator().manual_seed(seed)
    predicted = torch.randint(3, (peers, examples), generator=draw)
    names = tuple(f"{name} {number}" for number in range(peers))
    return PeerComparison.of(names, torch.zeros(peers, 1), predicted, torch.zeros(examples).long())


def test_peers_of_every_row_in_shades_of_one_scale(drawn):
    comparisons = {("FedAvg", 0): compared(4), ("FedAvg", 1): compared(5), ("SFL", 1): compared(4, 200, 1)}

    def fill(cell):
        if (cell.row, cell.seed) in comparisons:
            comparisons[cell.row, cell.seed].write(cell.path / "peers.npz")

    figure = drawn(figures.peers, fill)
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


def test_many_peers_have_neither_names_nor_numbers(drawn):
    figure = drawn(
        figures.peers, lambda cell: compared(40).write(cell.path / "peers.npz") if cell.row == "SFL" else None
    )
    axis = figure.axes[0]
    assert axis.get_title().startswith("Digits\n")
    assert (len(axis.texts), len(axis.get_yticks()), axis.get_xlabel()) == (0, 0, "40 peers")


def test_two_peers_with_long_names(drawn):
    two = compared(2, name="St. Olavs hospital, ward")
    figure = drawn(figures.peers, lambda cell: two.write(cell.path / "peers.npz"))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["St. Ol… ward 0", "St. Ol… ward 1"]
    assert figure.axes[0].images[0].get_clim() == (0, 100), "one number makes no scale"


def write_run(path, by_round):
    """Write accuracy by client after each round; return the summary, which has the last."""
    lines = [
        {"round": number, "phase": "evaluation", "split": "test", "per_client": {"accuracy": values}}
        for number, values in by_round.items()
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"per_client": {"test": {"accuracy": list(by_round.values())[-1]}}}


ALONE = {"a": 0.9, "b": 0.1, "c": 0.5, "d": None}
COURSE = {
    0: dict.fromkeys("abcd", 0.1),
    1: {"a": 0.5, "b": 0.2, "c": None, "d": 0.3},
    2: {"a": 0.4, "b": 0.6, "c": 0.5, "d": 0.7},
}


@pytest.fixture
def fair_runs(drawn):
    """SFL is the stand-alone row; ``course`` gives the other rows'."""

    def fair_runs(course, **about):
        return drawn(
            figures.fairness,
            lambda cell: write_run(cell.path, {1: ALONE} if cell.row == "SFL" else course(cell)),
            **{"stand-alone": "SFL", **about},
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
def test_fairness_of_highlighted_rows_and_of_those_that_have_some(fair_runs, highlight, titles):
    rows = ("FedAvg", "Ditto", "One model", "SFL")
    figure = fair_runs(
        lambda cell: COURSE if cell.row != "One model" else {0: COURSE[0], 1: COURSE[0]}, rows=rows, highlight=highlight
    )
    assert [axis.get_title() for axis in figure.axes if axis.get_title()] == titles
    scales = {axis.get_ylim() for axis in figure.axes if axis.get_ylabel() == "fairness"}
    assert len(scales) == 1, "one for all panels"


def test_a_run_folder_that_lacks_numbers_is_named(drawn):
    with pytest.raises(RunError, match=r"seed0.*peers\.npz"):
        drawn(figures.peers, lambda cell: (cell.path / "peers.npz").write_bytes(b"nothing") and None)


@pytest.mark.parametrize("figure", [figures.peers, figures.fairness])
def test_nothing_is_drawn_of_runs_without_such_numbers(figure, drawn):
    assert drawn(figure, lambda cell: None) is None
