"""Several methods are looked at before the first of them trains."""

import pytest

from fedgraph.starting.running import run_methods
from fedgraph.support.errors import DataError, ExperimentError, FedgraphError

DIGITS = {
    "experiment": {"method": "fedavg", "rounds": 1},
    "data": {"set": "digits", "clients": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"local-steps": 1},
}


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("f3", "f3 cannot run here: .*different features"),
        ("vfl", "vfl cannot run here: .*different features"),
        ("f3-forecast", "f3-forecast cannot run here: .*time series"),
        ("sfl", "sfl cannot run here: .*client graph"),
    ],
)
def test_a_method_that_cannot_run_ends_all_before_anything_is_trained(tmp_path, method, problem, monkeypatch):
    trained = []
    monkeypatch.setattr("fedgraph.starting.running.run_one", lambda *args, **named: trained.append(args))
    with pytest.raises(FedgraphError, match=problem) as caught:
        run_methods(DIGITS, [None, "local", method], out=tmp_path, progress=False)
    assert isinstance(caught.value, (DataError, ExperimentError))
    assert not trained
    assert not list(tmp_path.glob("[!.]*"))


def test_data_that_are_not_there_end_all_in_the_words_of_one(tmp_path):
    tables = {**DIGITS, "data": {"set": "table", "path": "gone.csv", "label": "y"}}
    with pytest.raises(FedgraphError, match=r"table.*gone\.csv"):
        run_methods(tables, [None, "local"], out=tmp_path, progress=False)
    assert not list(tmp_path.glob("[!.]*"))


def test_methods_that_can_run_do_so_as_if_they_were_alone(tmp_path):
    both = run_methods(DIGITS, [None, "local"], out=tmp_path / "both", progress=False)
    for method, run in zip(("fedavg", "local"), both, strict=True):
        alone = run_methods(DIGITS, [method], out=tmp_path / method, progress=False)
        assert next(iter(alone)).summary["weights_sha256"] == run.summary["weights_sha256"]
        assert run.summary["exchanges"] == next(iter(alone)).summary["exchanges"]


def test_files_outside_the_data_folder_are_read_as_in_the_runs(tmp_path):
    rows = "".join(f"{row % 7},{row % 5},{'yes' if row % 2 else 'no'}\n" for row in range(60))
    (tmp_path / "table.csv").write_text(f"a,b,label\n{rows}")
    tables = {**DIGITS, "data": {"set": "table", "path": str(tmp_path / "table.csv"), "label": "label", "clients": 3}}
    compared = run_methods(tables, ["fedavg", "local"], out=tmp_path / "runs", progress=False)
    assert [run.summary["clients"] for run in compared] == [3, 3]
