import os

import pytest

import fedgraph
from fedgraph.runs import Run, RunFolder, compare
from fedgraph.runs.reports.page import report
from fedgraph.support.errors import ExperimentError, RunError

NOT_UTF_8 = bytes(range(256))


@pytest.fixture
def finished(digits_tables, run_experiment):
    """The folder of a finished run of sfl."""
    return run_experiment(digits_tables)


def without_summary(folder):
    (folder.path / "summary.json").unlink()
    return folder


def read_all(run):
    """Read what a run has as data frames and models, and write its page."""
    _ = run.metrics, run.client_metrics, run.clients, run.absences, run.experiment, run.models, run.graph
    _ = run.folder.tables
    report([run.path])


@pytest.mark.parametrize("content", [b"{", b"[1]", NOT_UTF_8])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("summary.json", r"summary\.json is damaged: .*; put a copy of it back, or remove summary"),
        ("models.safetensors", r"cannot read .*models\.safetensors .*: put a copy of it back, or remove summary\.json"),
        ("metrics.jsonl", r"metrics\.jsonl, line 1, is damaged \(.*\): remove this line"),
    ],
)
def test_a_damaged_file_of_a_finished_run_is_named_with_what_to_do(finished, name, message, content):
    (finished.path / name).write_bytes(content)
    with pytest.raises(RunError, match=message):
        read_all(fedgraph.load_run(finished.path))


@pytest.mark.parametrize("content", [b"", b"[1]\n", b"a = ", NOT_UTF_8])
def test_tables_of_a_damaged_experiment_are_an_error(finished, content):
    (finished.path / "experiment.toml").write_bytes(content)
    with pytest.raises(RunError, match=r"cannot read .*experiment\.toml \(.*\): put a copy of it back"):
        compare([finished.path, finished.path])


def test_models_that_were_removed_are_not_said_to_be_of_a_method_without_any(finished):
    finished.models.unlink()
    with pytest.raises(RunError, match=r"models\.safetensors was removed: put a copy of it back, or remove summary"):
        _ = Run(finished).models


def test_predictions_that_are_damaged_are_an_error(finished):
    (finished.path / "predictions.csv").touch()
    with pytest.raises(RunError, match=r"cannot read .*predictions\.csv \(.*\): put a copy of it back"):
        _ = Run(finished).predictions


def test_the_preprocessing_that_is_damaged_is_named(finished):
    run = Run(finished)
    file = next(finished.path.rglob("preprocessing/*.safetensors"))
    os.truncate(file, 50)
    with pytest.raises(RunError, match=rf"{file.name} cannot be read: .*; put a copy of it back"):
        run.module("client-1")


@pytest.mark.parametrize("content", [None, b"", b"[1]"])
def test_a_finished_run_is_read_without_its_environment(finished, content, caplog):
    file = finished.path / "environment.json"
    file.unlink() if content is None else file.write_bytes(content)
    read_all(fedgraph.load_run(finished.path))
    assert "environment.json" in caplog.text
    assert "code of its own in other folders may not be found" in caplog.text


def test_results_are_written_again_as_the_errors_say(finished):
    before = finished.summary()
    for name in ("summary.json", "models.safetensors"):
        (finished.path / name).write_bytes(b"")
    with pytest.raises(RunError, match=rf"remove summary\.json, and `fedgraph run --resume {finished.path}` writes"):
        fedgraph.resume(finished.path, progress=False)
    run = fedgraph.resume(without_summary(finished), progress=False)
    assert len(run.models) == before["clients"]
    assert all(run.summary[key] == before[key] for key in ("weights_sha256", "metrics", "per_client"))


# ---- what a resumed run reads


def test_a_folder_that_lost_its_experiment_is_told_where_it_is(finished):
    (finished.path / "experiment.toml").rename(finished.begun_with)
    with pytest.raises(RunError, match=r"it has no experiment\.toml; logs/begun-with\.toml is the one that it began"):
        fedgraph.load_run(finished.path)


def test_a_run_goes_on_without_an_environment_that_said_nothing(finished):
    (without_summary(finished).path / "environment.json").unlink()
    with pytest.raises(RunError, match=r"If the run had no .*, you may also write \{\} into the file"):
        fedgraph.resume(finished.path, progress=False)
    (finished.path / "environment.json").write_text("{}")
    assert fedgraph.resume(finished.path, progress=False).summary["rounds"] == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[1]"])
def test_damaged_digests_of_code_are_noted(finished, content, caplog):
    (without_summary(finished).path / "logs" / "code.json").write_bytes(content)
    run = fedgraph.resume(finished.path, progress=False)
    note = "code.json is damaged: it is not known whether code has changed since the run began"
    assert note in run.summary["notes"]
    assert note in caplog.text
    assert compare([run.path]).labels == ["sfl"]


@pytest.mark.parametrize("content", [b"a = ", NOT_UTF_8])
def test_a_damaged_record_of_the_experiment_is_named_with_what_to_do(finished, content):
    without_summary(finished).begun_with.write_bytes(content)
    with pytest.raises(ExperimentError, match=r"cannot read .*begun-with\.toml, .*: put a copy of it back, or remove"):
        fedgraph.resume(finished.path, progress=False)
    finished.begun_with.unlink()
    assert fedgraph.resume(finished.path, progress=False).summary["rounds"] == 2


def test_a_damaged_checkpoint_of_a_method_of_phases_is_named_with_what_to_do(patches_tables, run_experiment):
    folder = without_summary(run_experiment(patches_tables))
    os.truncate(folder.checkpoint, 100)
    with pytest.raises(RunError, match="remove this file, and the run begins anew"):
        fedgraph.resume(folder.path, progress=False)
    folder.checkpoint.unlink()
    assert RunFolder(fedgraph.resume(folder.path, progress=False).path).is_finished
