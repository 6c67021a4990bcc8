"""Figures 3 and 4 of Ma et al. 2023, which are drawn from runs of the tables."""

import numpy as np
import pytest

from fedgraph.reproduce.cells import CellMaker
from fedgraph.reproduce.choosing import plan_cells
from fedgraph.reproduce.table_files import load_table
from fedgraph.simulations.f3 import figures
from fedgraph.support.errors import RunError


def paths(name, tmp_path, profile, rows=None):
    _, table, file = load_table(name)
    cells = plan_cells(CellMaker(table, table.profiles[profile], (), tmp_path, file.parent), (0,))
    assert [cell.problem for cell in cells if cell.problem] == []
    return {(cell.column, cell.path) for cell in cells if rows is None or cell.row in rows}


@pytest.mark.parametrize("profile", ["small", "full"])
def test_figure_3_is_of_the_votes_of_table_2(profile, tmp_path):
    assert load_table("f3-fig3")[1].table.figure == "fedgraph.simulations.f3.figures:entropies"
    votes = paths("f3-table2", tmp_path, profile, ["B: Majority Voting"])
    assert votes
    assert paths("f3-fig3", tmp_path, profile) == votes


@pytest.mark.parametrize("profile", ["small", "full"])
def test_figure_4_is_of_the_hard_alignments_of_table_5(profile, tmp_path):
    assert load_table("f3-fig4")[1].table.figure == "fedgraph.simulations.f3.figures:permutations"
    rows = ["hard alignment", "hard alignment without entropy", "hard alignment by exp of sigmoid"]
    hard = paths("f3-table5", tmp_path, profile, rows)
    assert hard
    assert paths("f3-fig4", tmp_path, profile) == hard


def test_entropies_of_all_seeds_and_splits_are_one_distribution(drawn):
    def fill(cell):
        if cell.row == "SFL":
            values = {0: [0.0, 0.0, 0.0, 0.5], 1: [0.5, 0.5, 0.9, 1.0]}[cell.seed]
            lines = [f"{number},{('train', 'test')[number % 2]},{value}" for number, value in enumerate(values)]
            (cell.path / "entropies.csv").write_text("\n".join(["key,split,entropy", *lines]))

    figure = drawn(figures.entropies, fill)
    (axis,) = figure.axes
    values, edges, _ = axis.patches[0].get_data()
    assert (edges[0], edges[-1]) == (0.0, 1.0)
    shares = {round(float(edge), 3): float(value) for edge, value in zip(edges[:-1], values, strict=True) if value}
    assert shares == pytest.approx({0.0: 37.5, 0.5: 37.5, 0.9: 25.0})
    (mean,) = axis.lines
    assert mean.get_xdata()[0] == pytest.approx(3.4 / 8)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Digits (mean 0.42)"]


def test_entropies_of_many_classes_have_room(drawn):
    def fill(cell):
        (cell.path / "entropies.csv").write_text(f"key,split,entropy\na,test,{1.5 if cell.row == 'SFL' else 0.2}\n")

    figure = drawn(figures.entropies, fill)
    assert figure.axes[0].get_xlim() == (0.0, 1.5)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "Digits, FedAvg (mean 0.20)",
        "Digits, SFL (mean 1.50)",
    ]


def test_permutations_of_clients_evenly_taken(drawn):
    matrices = np.stack([np.roll(np.eye(3), shift, axis=0) for shift in range(7)])
    matrices[3] = np.array([[0.8, 0.2, 0.0], [0.2, 0.5, 0.3], [0.0, 0.3, 0.9]])

    def fill(cell):
        if cell.row == "SFL":
            owners = np.array([f"owner {number}" for number in range(7)])
            np.savez(cell.path / "alignment.npz", owners=owners, matrices=matrices if cell.seed == 0 else matrices * 0)

    figure = drawn(figures.permutations, fill)
    axes = [axis for axis in figure.axes if axis.images and axis.get_title()]
    assert [axis.get_title() for axis in axes] == ["owner 0", "owner 2", "owner 4", "owner 6"]
    for axis, index in zip(axes, (0, 2, 4, 6), strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), matrices[index])
    title = figure.subfigs[0].get_suptitle()
    assert "Digits\n7 clients; on average, the largest entry of a row is 0.96" in title
    assert "within 0.2 of 1" in title


def test_one_client_has_one_permutation(drawn):
    def fill(cell):
        np.savez(cell.path / "alignment.npz", owners=np.array(["only"]), matrices=np.eye(2)[None])

    figure = drawn(figures.permutations, fill)
    assert [axis.get_title() for axis in figure.axes if axis.images and axis.get_title()] == ["only", "only"]
    assert [part.get_suptitle().splitlines()[0] for part in figure.subfigs] == ["Digits, FedAvg", "Digits, SFL"]


@pytest.mark.parametrize(
    ("figure", "name", "content"),
    [
        (figures.entropies, "entropies.csv", b"key,split,bits\na,test,0.5\n"),
        (figures.entropies, "entropies.csv", b"key,split,entropy\na,test,none\n"),
        (figures.permutations, "alignment.npz", b"nothing"),
    ],
)
def test_a_run_folder_that_lacks_numbers_is_named(figure, name, content, drawn):
    with pytest.raises(RunError, match=f"seed0.*{name}"):
        drawn(figure, lambda cell: (cell.path / name).write_bytes(content) and None)


@pytest.mark.parametrize("figure", [figures.entropies, figures.permutations])
def test_nothing_is_drawn_of_runs_without_such_files(figure, drawn):
    assert drawn(figure, lambda cell: None) is None
