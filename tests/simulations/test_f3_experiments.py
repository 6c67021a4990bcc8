"""The experiments of F3 that come along run as they are, but for shorter training and less data."""

import numpy as np
import pytest

from fedgraph.experiment.experiment import load_experiment

SHORT = ["train.local-epochs=2", "train.workers=1", "train.compile=false", "f3.epochs=2", "f3.draws=2", "f3.workers=1"]


def run(run_experiment, name, *overrides):
    folder = run_experiment(load_experiment(f"f3/{name}.toml", [*SHORT, *overrides]).as_dict())
    summary = folder.summary()
    assert summary["exchanges"] == 1
    assert 0 < summary["metrics"]["test"]["accuracy"]["mean"] <= 1
    return folder, summary


@pytest.mark.parametrize(("name", "owners"), [("digits", 4), ("breast-cancer", 3)])
def test_on_data_that_scikit_learn_brings_along(run_experiment, name, owners):
    _, summary = run(run_experiment, name)
    assert summary["clients"] == owners


def test_participants_of_a_grid_know_together_what_none_knows_alone(run_experiment):
    short = ["data.samples=1500", "train.workers=1", "f3.workers=1", "f3.epochs=60", "f3.learning-rates=[0.01]"]
    single = ['f3.fusion="graph"', "f3.owner-dropout=0.0", "f3.draws=2"]
    tables = load_experiment("f3/grid-stability.toml", [*short, *single]).as_dict()
    found = run_experiment(tables).summary()["metrics"]["test"]
    assert found["auc-local"]["mean"] < 0.8
    assert found["auc"]["mean"] > 0.93


def test_four_kinds_of_model_have_embeddings_of_four_sizes(run_experiment):
    from fedgraph.fusion.model_file import FittedFusion

    folder, _ = run(run_experiment, "heterogeneous")
    sizes = FittedFusion.read(folder.path / "fusion.safetensors").sizes.tolist()
    assert len(set(sizes)) == 4
    assert sizes[1:] == [24, 20, 40]
    with np.load(folder.path / "alignment.npz") as file:
        assert file["matrices"].shape == (4, 32, 40)


def test_patches_of_images_of_which_all_hold_a_few(run_experiment, data_dir):
    if not (data_dir / "fashion-mnist").is_dir():
        pytest.skip(f"no fashion-mnist in {data_dir}: set FEDGRAPH_DATA to a folder with it")
    less = ["data.first-examples=1200", "data.overlap=0.1"]
    _, summary = run(run_experiment, "fashion-mnist", *less)
    assert (summary["clients"], "held by all clients" in summary["data"]) == (4, True)


@pytest.mark.parametrize("name", ["metr-la", "pems-bay"])
def test_on_traffic(run_experiment, data_dir, name):
    if not (data_dir / name).is_dir():
        pytest.skip(f"no {name} in {data_dir}: set FEDGRAPH_DATA to a folder with it")
    _, summary = run(run_experiment, name, "data.first-steps=2500", "model.hidden=4")
    assert "rush hours" in summary["data"]


def test_experiments_of_the_paper_say_where_the_defaults_are_others():
    for name in ("metr-la", "pems-bay", "pmu"):
        assert load_experiment(f"f3/{name}.toml").method_table["local-monitor"] == "accuracy"
    # "For missing data, we impute the node features by using zero" (appendix F).
    assert load_experiment("f3/pmu.toml").method_table["absent"] == "zeros"


def test_on_a_panel_of_ones_own(run_experiment, tmp_path):
    draw = np.random.default_rng(0)
    values = draw.normal(size=(120, 3, 5, 4)).astype(np.float32)
    values[draw.random((120, 3)) < 0.2] = np.nan
    np.savez(tmp_path / "panel.npz", values=values, labels=np.arange(120) % 3)
    folder, summary = run(run_experiment, "pmu", f'data.path="{tmp_path / "panel.npz"}"')
    assert summary["clients"] == 3
    lines = (folder.path / "predictions.csv").read_text().splitlines()
    assert {line.split(",")[4] for line in lines[1:]} >= {"1", "2", "3"}
