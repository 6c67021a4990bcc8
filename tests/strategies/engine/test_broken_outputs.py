"""Clients whose models put out values that are not finite are named once, with the round."""

import sys
import types

import pytest
import torch

from fedgraph.algorithms import GlobalModel, filled
from fedgraph.models import TaskSpec
from fedgraph.strategies.engine.broken_outputs import note_broken, notes_of

NAMES = ("a", "b", "c", "d")


class TurnsVarianceNegative(GlobalModel):
    """From round 2 on, as a server optimiser may that takes running variances for parameters."""

    def round(self, clients, state, number):
        state = yield from super().round(clients, state, number)
        if number > 1:
            model = self.readout(clients, state).clone()
            model[clients.layout.columns(clients.layout.part(["norm.running_var"]))] = -0.2
            state = {**state, "models": filled(state["models"], model)}
        return state


@pytest.fixture
def normed(tmp_path, monkeypatch):
    (tmp_path / "their_normed_model.py").write_text(
        "from torch import nn\n\n\n"
        "class Normed(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.norm, self.last = nn.BatchNorm1d(64), nn.Linear(64, 10)\n\n"
        "    def forward(self, inputs):\n"
        "        return self.last(self.norm(inputs.flatten(1)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return {"name": "their_normed_model:Normed"}


def test_a_run_says_once_after_which_round_and_has_no_metrics(
    digits_tables, normed, run_experiment, caplog, monkeypatch
):
    module = types.ModuleType("their_server_optimiser")
    module.TurnsVarianceNegative = TurnsVarianceNegative
    monkeypatch.setitem(sys.modules, module.__name__, module)
    digits_tables.pop("sfl")
    digits_tables["experiment"] = {"rounds": 4, "strategy": f"{module.__name__}:TurnsVarianceNegative"}
    folder = run_experiment({**digits_tables, "model": normed})
    summary = folder.summary()
    for metrics in summary["per_client"].values():
        assert all(value is None for values in metrics.values() for value in values.values())
    first = next(line for line in folder.evaluations("test") if line["round"] == 1)
    assert all(value is not None for values in first["per_client"].values() for value in values.values())
    (said,) = (record.getMessage() for record in caplog.records if "infinite" in record.getMessage())
    assert said.startswith("after round 2, outputs of the model are NaN or infinite for 'client-0', 'client-1', ")
    assert said in summary["notes"]


def federation(kind="classification"):
    counts = {"test": torch.tensor([5, 5, 0, 5])}
    task = TaskSpec(kind, (3,), (2,))
    return types.SimpleNamespace(names=NAMES, task=task, num_examples=counts)


def test_clients_without_examples_or_with_some_metrics_are_not_named(caplog):
    noted = {}
    nothing = torch.full((3,), torch.nan)
    some = torch.tensor([torch.nan, torch.nan, 0.5])
    present = torch.tensor([0, 2, 3])
    note_broken(federation(), present, {"test/loss": nothing, "test/f1": some}, 3, noted)
    assert noted == {"a": 3}
    note_broken(federation(), present, {"test/loss": nothing}, 4, noted)
    note_broken(federation(), present, {"test/loss": nothing}, 5, noted)
    assert noted == {"a": 3, "d": 4}
    said = [record.getMessage() for record in caplog.records]
    assert said == notes_of(noted, federation())
    assert [text.partition(";")[0] for text in said] == [
        "after round 3, outputs of the model are NaN or infinite for 'a'",
        "after round 4, outputs of the model are NaN or infinite for 'd'",
    ]
    (of_series,) = notes_of({"a": 0}, federation("forecast"))
    assert "or no reading of a split is known" in of_series


def test_series_without_readings_of_one_split_have_not_diverged(caplog):
    some, unknown = torch.tensor([4.0, 4.0, 4.0, torch.nan]), torch.tensor([torch.nan, 4.0, 4.0, torch.nan])
    for kind, named in (("forecast", {"d": 1}), ("regression", {"a": 1, "d": 1})):
        noted = {}
        note_broken(federation(kind), torch.arange(4), {"validation/mae": some, "test/mae": unknown}, 1, noted)
        assert noted == named
