import pytest

from fedgraph.experiment.experiment import load_experiment, parse_experiment
from fedgraph.reproduce.cells import digest, overrides_that_count, resolved


def test_one_cell_per_row_column_and_seed_all_of_the_first_seed_first(table, plan):
    cells = plan(table)
    assert [(cell.row, cell.column, cell.seed) for cell in cells] == [
        ("FedAvg", "digits", 0), ("SFL", "digits", 0), ("FedAvg", "digits", 1), ("SFL", "digits", 1),
    ]  # fmt: skip
    assert [cell.experiment.experiment.seed for cell in cells] == [0, 0, 1, 1]
    assert [cell.experiment.method.name for cell in cells[:2]] == ["fedavg", "sfl"]
    assert len({cell.path for cell in cells}) == 4


def test_later_overrides_win_and_know_the_seed(table, plan):
    table["table"]["set"] = ["data.partition-seed={seed}", "train.batch-size=1", 'model={name = "mlp", hidden = [8]}']
    table["columns"][0]["set"] = ["train.batch-size=2", "train.momentum=0.2"]
    table["profiles"]["small"] |= {"set": ["train.momentum=0.3", "train.weight-decay=0.3", "train.clip-norm=3.0"]}
    table["profiles"]["small"]["set-for"] = {"digits": ["train.weight-decay=0.4"]}
    table["rows"][1] |= {
        "set": ["sfl.alpha=0.5", "sfl.hops=5", "train.clip-norm=5.0"],
        "set-for": {"digits": ["sfl.hops=6"]},
        "nodes": 1,
    }
    cell = plan(table, "sfl.alpha=0.7", seeds=[3])[1]
    train, method = cell.experiment.train, cell.experiment.method_table
    assert (train.batch_size, train.momentum, train.weight_decay, train.clip_norm) == (2, 0.3, 0.4, 5.0)
    assert (method["alpha"], method["hops"]) == (0.7, 6)
    assert cell.experiment.data.partition_seed == 3
    assert cell.experiment.model["hidden"] == [8]
    assert cell.nodes == 1


def test_profiles_choose_experiments_columns_and_seeds(table, plan, tmp_path):
    (tmp_path / "big.toml").write_text((tmp_path / "small.toml").read_text().replace("clients = 6", "clients = 9"))
    table["columns"].append({**table["columns"][0], "key": "more"})
    table["profiles"]["full"] = {"seeds": [5], "columns": ["more"], "experiments": {"more": "big.toml"}}
    cells = plan(table, profile="full")
    assert {(cell.column, cell.seed, cell.experiment.data.clients) for cell in cells} == {("more", 5, 9)}
    assert len(plan(table)) == 8


def test_a_row_may_have_an_experiment_of_its_own(table, plan, tmp_path):
    (tmp_path / "other.toml").write_text((tmp_path / "small.toml").read_text().replace("clients = 6", "clients = 9"))
    table["rows"][1]["experiment"] = "other.toml"
    assert [(cell.row, cell.experiment.data.clients) for cell in plan(table, seeds=[0])] == [("FedAvg", 6), ("SFL", 9)]


def test_rows_of_some_columns_only(table, plan):
    table["columns"].append({**table["columns"][0], "key": "more"})
    table["rows"][0]["columns"] = ["more"]
    places = [(cell.row, cell.column) for cell in plan(table, seeds=[0])]
    assert places == [("SFL", "digits"), ("FedAvg", "more"), ("SFL", "more")]


def test_the_same_experiment_is_the_same_cell_whatever_it_is_called(table, plan):
    usual = plan(table, seeds=[0])
    for override in ("experiment.name=other", "output.dir=elsewhere", "train.workers=1", "experiment.wait=3"):
        assert [cell.path for cell in plan(table, override, seeds=[0])] == [cell.path for cell in usual], override
    table["table"]["title"] = table["rows"][0]["label"] = table["columns"][0]["title"] = "Something else"
    assert [cell.path for cell in plan(table, seeds=[0])] == [cell.path for cell in usual]


@pytest.mark.parametrize(
    "override", ["train.learning-rate=0.2", "experiment.rounds=2", "data.clients=7", "graph.main-labels=2"]
)
def test_a_changed_setting_makes_another_cell(table, plan, override):
    assert {cell.path for cell in plan(table, override)}.isdisjoint(cell.path for cell in plan(table))


@pytest.mark.parametrize("method", ["f3", "vfl"])
def test_workers_of_the_fusion_make_no_other_cell(patches_tables, method):
    def found(**table):
        patches_tables["experiment"]["method"] = method
        return digest(resolved(parse_experiment({**patches_tables, method: table})))

    patches_tables.pop("f3")
    assert found(workers=1) == found(workers=3) == found()
    assert found(hidden=3) != found()


def test_settings_of_another_method_make_no_other_cell(table, plan):
    usual, other = plan(table, seeds=[0]), plan(table, "sfl.hops=2", seeds=[0])
    assert usual[0].path == other[0].path
    assert usual[1].path != other[1].path


def test_every_default_is_written_down(table, plan):
    toml = plan(table)[1].experiment.as_toml()
    assert "alpha = 1.0" in toml
    assert "lambda-personal = 0.0" in toml


def test_a_folder_from_before_a_key_existed_is_still_the_cell(table, plan):
    cell = plan(table)[1]
    old = cell.path.with_name(cell.path.name.replace(digest(cell.experiment), "0" * 12))
    old.mkdir(parents=True)
    lines = cell.experiment.as_toml().splitlines()
    assert "released = false" in lines
    (old / "experiment.toml").write_text("\n".join(line for line in lines if line != "released = false"))
    assert plan(table)[1].path == old
    # But not when what the key stands for now is something else.
    assert plan(table, "sfl.released=true")[1].path not in (old, cell.path)


def test_what_is_written_down_is_read_as_the_same(table, plan, tmp_path):
    for cell in plan(table):
        (tmp_path / "again.toml").write_text(cell.experiment.as_toml())
        assert digest(resolved(load_experiment(tmp_path / "again.toml"))) == digest(cell.experiment)


def test_a_stock_strategy_keeps_its_table(table, plan):
    table["rows"][0] |= {"method": "flwr.serverapp.strategy:FedAdam", "set": ["FedAdam.eta=0.05"]}
    assert plan(table)[0].experiment.method_table == {"eta": 0.05}


def test_a_cell_that_cannot_be_resolved_says_why(table, plan):
    table["rows"][0]["method"] = "fedavgg"
    table["rows"][1]["set"] = ["sfl.hop=3"]
    first, second = plan(table, seeds=[0])
    assert first.experiment is second.experiment is None
    assert "'fedavgg' is not a built-in" in first.problem
    assert "[sfl] has no key 'hop'" in second.problem


def test_overrides_that_count():
    given = ["train.workers=1", "output.dir=x", "experiment.rounds=2", "experiment.name=x", "sfl={alpha = 1}"]
    assert overrides_that_count(given) == ("experiment.rounds=2", "sfl={alpha = 1}")
