"""Run folders that were renamed or copied, and state that was lost, before and after the end of their run."""

import re
import shutil

import pytest

import fedgraph


@pytest.fixture
def begun(digits_tables, tmp_path):
    """The folder of a run of fedper that has one round of two."""
    digits_tables["experiment"] |= {"method": "fedper", "rounds": 1}
    path = fedgraph.run(digits_tables, out=tmp_path, progress=False).path
    (path / "summary.json").unlink()
    file = path / "experiment.toml"
    file.write_text(re.sub(r"(?m)^rounds = 1$", "rounds = 2", file.read_text()))
    return path


def test_a_copy_goes_on_with_the_layers_of_its_clients(begun):
    copy = begun.with_name("copy")
    shutil.copytree(begun, copy)
    again = fedgraph.resume(copy, progress=False)
    whole = fedgraph.resume(begun, progress=False)
    assert again.folder.name == "copy"
    assert again.summary["per_client"] == whole.summary["per_client"]
    assert again.models["client-1"].keys() == whole.models["client-1"].keys()
    assert [each.name for each in (copy / "nodes").iterdir()] == [begun.name]


def test_a_run_that_begins_again_takes_the_name_of_its_folder(begun):
    copy = begun.rename(begun.with_name("copy"))
    (copy / "checkpoint.safetensors").unlink()
    fedgraph.resume(copy, progress=False)
    assert sorted(each.name for each in (copy / "nodes").iterdir()) == sorted([begun.name, "copy"])


CLIENTS = "'client-0', 'client-1', 'client-2', 'client-3', 'client-4' and 1 more"


def test_state_that_is_gone_is_noted(begun, caplog):
    shutil.rmtree(begun / "nodes")
    run = fedgraph.resume(begun, progress=False)
    note = f"round 2: the nodes of {CLIENTS} no longer had their state ('personal-layers'), and went on without it"
    assert note in run.summary["notes"]
    assert f"{note}; to go on with that state, stop the run, put back the state folders of these nodes" in caplog.text


def test_state_of_an_earlier_round_is_noted(begun):
    file = begun / "experiment.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    backup = begun.with_name("backup")
    shutil.copytree(begun / "nodes", backup)
    run = fedgraph.resume(begun, progress=False)
    assert not [note for note in run.summary["notes"] if "state" in note]
    (begun / "summary.json").unlink()
    file.write_text(file.read_text().replace("rounds = 3", "rounds = 4"))
    shutil.rmtree(begun / "nodes")
    shutil.copytree(backup, begun / "nodes")
    run = fedgraph.resume(begun, progress=False)
    note = "had an older state, of round 1 ('personal-layers'), and went on from it"
    assert f"round 4: the nodes of {CLIENTS} {note}" in run.summary["notes"]


@pytest.mark.parametrize("method", ["ditto", "scaffold", "feddyn", "fedavg", "ipa", "private ipa"])
def test_runs_that_lose_nothing_note_nothing(digits_tables, tmp_path, method):
    digits_tables["experiment"] |= {"method": method.removeprefix("private "), "rounds": 3}
    digits_tables["train"] |= {"momentum": 0.5, "keep-optimizer": method in ("fedavg", "ipa")}
    if method == "private ipa":
        digits_tables["evaluation"] = {"splits": []}
        digits_tables["ipa"] = {"privacy": {"clip-norm": 1.0, "epsilon": 5.0, "delta": 1e-4, "releases": 6}}
    run = fedgraph.run(digits_tables, out=tmp_path, progress=False)
    assert not [note for note in run.summary.get("notes", ()) if "state" in note]


@pytest.mark.parametrize(
    ("method", "purpose", "tables"),
    [
        ("sfl", "optimiser", {"train": {"momentum": 0.5, "keep-optimizer": True}}),
        (
            "ipa",
            "releases",
            {
                "evaluation": {"splits": []},
                "ipa": {"privacy": {"clip-norm": 1.0, "epsilon": 5.0, "delta": 1e-4, "releases": 6}},
            },
        ),
    ],
)
def test_moments_of_optimisers_and_counts_of_releases_are_state_too(digits_tables, tmp_path, method, purpose, tables):
    digits_tables["experiment"] |= {"method": method, "rounds": 1}
    for name, table in tables.items():
        digits_tables[name] = digits_tables.get(name, {}) | table
    path = fedgraph.run(digits_tables, out=tmp_path, progress=False).path
    (path / "summary.json").unlink()
    shutil.rmtree(path / "nodes")
    file = path / "experiment.toml"
    file.write_text(re.sub(r"(?m)^rounds = 1$", "rounds = 2", file.read_text()))
    notes = fedgraph.resume(path, progress=False).summary["notes"]
    assert any(f"no longer had their state ('{purpose}')" in note for note in notes)


# ---- finished runs


def test_forecasts_and_personal_models_of_a_renamed_run_are_found(table_tables, tmp_path):
    path = fedgraph.run(table_tables, out=tmp_path, progress=False).path
    before = fedgraph.load_run(path).personal_models
    assert before
    assert fedgraph.load_run(path.rename(path.with_name("renamed"))).personal_models.keys() == before.keys()
