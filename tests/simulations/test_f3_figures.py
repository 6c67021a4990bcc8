"""Figures 3 and 4 of Ma et al. 2023 are drawn from runs of the tables."""

import pytest

from fedgraph.reproduce.cells import CellMaker
from fedgraph.reproduce.choosing import plan_cells
from fedgraph.reproduce.table import load_table


def paths(name, tmp_path, profile, rows=None):
    _, table, file = load_table(name)
    cells = plan_cells(CellMaker(table, table.profiles[profile], (), tmp_path, file.parent), (0,))
    assert [cell.problem for cell in cells if cell.problem] == []
    return {(cell.column, cell.path) for cell in cells if rows is None or cell.row in rows}


@pytest.mark.parametrize("profile", ["small", "full"])
def test_figure_3_is_of_the_votes_of_table_2(profile, tmp_path):
    assert load_table("f3-fig3")[1].table.figure == "entropies"
    votes = paths("f3-table2", tmp_path, profile, ["B: Majority Voting"])
    assert votes
    assert paths("f3-fig3", tmp_path, profile) == votes


@pytest.mark.parametrize("profile", ["small", "full"])
def test_figure_4_is_of_the_hard_alignments_of_table_5(profile, tmp_path):
    assert load_table("f3-fig4")[1].table.figure == "permutations"
    rows = ["hard alignment", "hard alignment without entropy", "hard alignment by exp of sigmoid"]
    hard = paths("f3-table5", tmp_path, profile, rows)
    assert hard
    assert paths("f3-fig4", tmp_path, profile) == hard
