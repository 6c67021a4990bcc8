from collections import Counter

import pytest

from fedgraph.experiment.experiment import load_experiment
from fedgraph.reproduce.cells import CellMaker, digest, resolved
from fedgraph.reproduce.choosing import plan_cells, plan_choices
from fedgraph.reproduce.table import FIGURES
from fedgraph.reproduce.table_files import files_that_come_along, load_table
from fedgraph.support.plugins import a_function, load_object

NAMES = list(files_that_come_along())
TABLES = [(name, profile) for name in NAMES for profile in load_table(name)[1].profiles]


def cells_of(name, profile, tmp_path, seeds=(0,)):
    _, table, file = load_table(name)
    maker = CellMaker(table, table.profiles[profile], (), tmp_path, file.parent)
    choices = plan_choices(maker, seeds)
    settled = [cell for cell in plan_cells(maker, seeds, choices) if not cell.pending]
    return settled + [cell for choice in choices for cell in choice.missing]


@pytest.mark.parametrize(("name", "profile"), TABLES)
def test_every_cell_resolves_is_read_back_as_the_same_and_is_not_that_of_another_row(name, profile, tmp_path):
    """But that rows may show other clients of one run, or another of its models."""
    cells = cells_of(name, profile, tmp_path, seeds=(0, 1))
    assert cells
    assert sorted({cell.problem for cell in cells} - {""}) == []
    for cell in cells:
        if cell.seed == 0:
            (tmp_path / "experiment.toml").write_text(cell.experiment.as_toml())
            assert digest(resolved(load_experiment(tmp_path / "experiment.toml"))) == digest(cell.experiment)
    rows = load_table(name)[1].rows
    shown = {row.label: (row.client, row.suffix) for row in rows}
    # What is chosen on validation data may turn out to be the setting of the paper.
    chosen = {row.label for row in rows if row.choose or "chosen" in row.label}
    places = [(cell.column, cell.path, shown[cell.row]) for cell in cells if cell.row not in chosen]
    times = Counter(places)
    assert [place for place in times if times[place] > 1] == []


@pytest.mark.parametrize("profile", ["small", "full"])
def test_figure_3_uses_the_runs_of_tables_2_and_3(profile, tmp_path):
    figure = cells_of("sfl-fig3", profile, tmp_path)
    tables = [cell for name in ("sfl-table2", "sfl-table3") for cell in cells_of(name, profile, tmp_path)]
    assert {cell.column for cell in figure} == {cell.column for cell in tables}
    drawn = {cell.row for cell in figure}
    # Of each row and column every trial of what is chosen.
    runs = [{(cell.row, cell.column, cell.path) for cell in cells if cell.row in drawn} for cells in (figure, tables)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("profile", ["small", "full"])
def test_figure_4_uses_the_runs_of_tables_1_and_2_where_they_have_them(profile, tmp_path):
    shared = ("metr-la", "pems-bay", "fashion-mnist")
    figure = {cell.path for cell in cells_of("sfl-fig4", profile, tmp_path) if cell.column in shared}
    tables = [cell for name in ("sfl-table1", "sfl-table2") for cell in cells_of(name, "small", tmp_path)]
    assert figure
    assert figure <= {cell.path for cell in tables}


def test_the_rows_of_tables_of_images_choose_among_the_same_rates(tmp_path):
    """On validation data. SCAFFOLD has one more, since it is unstable at these."""
    for name in ("sfl-table2", "sfl-table3", "sfl-fig3"):
        table = load_table(name)[1]
        assert table.table.choose_by == "validation/accuracy"
        for row in (row for row in table.rows if row.method is not None):
            *lower, usual, twice = row.choose["train.learning-rate-factor"]
            assert (usual, twice) == (1.0, 2.0), row.label
            assert bool(lower) == (row.method == "scaffold"), row.label
        rates = {cell.row: cell.experiment.train.learning_rate for cell in cells_of(name, "small", tmp_path)}
        assert set(rates.values()) == {0.05}


def test_claims_about_a_graph_have_their_controls():
    """Beside the true graph of SFL stand a permuted one, a complete one and none."""
    for name, method in (("sfl-table1", "sfl"), ("sfl-table2", "sfl"), ("sfl-cold-start", "sfl-cold-start")):
        rows = [row for row in load_table(name)[1].rows if row.method == method]
        overrides = [" ".join(row.set) for row in rows]
        assert any("graph.permute-seed={seed}" in text for text in overrides), name
        assert any('graph.source="complete"' in text for text in overrides), name
        assert method != "sfl" or any("sfl.alpha=0.0" in text and "updates" not in text for text in overrides), name


def test_a_seed_deals_the_images_anew(tmp_path):
    for name in ("sfl-table2", "sfl-table3", "sfl-fig3"):
        for cell in cells_of(name, "small", tmp_path, seeds=(0, 3)):
            assert cell.experiment.data.partition_seed == cell.experiment.experiment.seed == cell.seed


def test_methods_without_a_graph_are_given_none():
    for name in (name for name in NAMES if name.startswith("sfl")):
        for row in load_table(name)[1].rows:
            needs_one = 'data.cold-scale="graph"' in row.set
            if row.method is not None and not row.method.startswith("sfl") and not needs_one:
                assert 'graph.source="none"' in row.set, (name, row.label)


def test_every_column_with_published_values_says_of_which_data_they_are():
    for name in NAMES:
        _, table, _ = load_table(name)
        for column in table.columns:
            if any(column.key in row.published for row in table.rows):
                assert column.published_data, f"{name}, {column.key}: published-data is missing"
    _, table, _ = load_table("sfl-table2")
    assert {column.published_data for column in table.columns} == {"CIFAR-10"}


def test_every_figure_can_be_drawn():
    figures = {load_table(name)[1].table.figure for name in NAMES}
    own = sorted(figures - set(FIGURES))
    assert [figure.rpartition(":")[2] for figure in own] == [
        "entropies", "permutations", "fairness", "peers", "adjacency"
    ]  # fmt: skip
    assert all(callable(load_object(figure, "[table] figure", a_function)) for figure in own)


def test_published_values_as_printed():
    """Some of each table, typed in a second time."""
    printed = {
        ("sfl-table1", "FedAvg", "metr-la"): (7.03, 21.63, 10.81),
        ("sfl-table1", "SFL", "pems-bay"): (2.96, 7.62, 5.95),
        ("sfl-table1", "STGCN", "pems-d8"): (18.88, "-", 27.87),
        ("sfl-table2", "SFL", "shards-2"): ((54.25, 21.72), (100.0, 0.0), (6.2, 2.22)),
        ("sfl-table2", "SCAFFOLD", "shards-5"): ((30.16, 13.66), (57.4, 5.57), (2.4, 2.87)),
        ("sfl-table3", "LG-FedAvg", "shards-20"): ((80.33, 3.2), (87.03, 1.3), (69.26, 1.73)),
        ("sfl-table3", "SFL*", "shards-10"): ((44.2, 11.85), (67.4, 2.24), (20.0, 3.85)),
        ("sfl-table4", "SFL+PER", "pems-bay"): (4.82,),
    }
    for (name, label, column), values in printed.items():
        (row,) = [row for row in load_table(name)[1].rows if row.label == label]
        assert row.published[column] == values


@pytest.mark.parametrize("profile", ["small", "full"])
def test_tables_and_figures_of_fedngm_share_their_runs(profile, tmp_path):
    names = ("fedngm-table2", "fedngm-table3", "fedngm-table4", "fedngm-fig7")
    cells = {name: {cell.path for cell in cells_of(name, profile, tmp_path)} for name in names}
    # Without those of the federated linear model beside it, which tables 2 and 3 do not have.
    found = {name: {path for path in paths if "-fedavg-" not in path.name} for name, paths in cells.items()}
    # Of births and of deaths: NGM, pooled, two averages, NGR.
    assert len(found["fedngm-table4"]) == 10
    assert found["fedngm-table2"] == found["fedngm-table3"] == found["fedngm-table4"]
    assert len(found["fedngm-fig7"]) == 2
    assert found["fedngm-fig7"] < found["fedngm-table4"]
