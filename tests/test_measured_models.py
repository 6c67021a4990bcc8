"""The models that a finished run gives are those that its table measured, with every method that ends with models."""

import copy
import shutil

import pytest
import torch
from torch.nn.functional import cross_entropy

import fedgraph
from fedgraph.algorithms.phases import has_phases
from fedgraph.data import open_source, parse_data
from fedgraph.experiment import built_ins
from fedgraph.support.errors import RunError

METHODS = sorted(name for name, found in built_ins().items() if not has_phases(found))
NO_GLOBAL_MODULE = {"fedper", "lg-fedavg", "sfl-per", "sfl-lg"}
SETTINGS = {
    "sfl-cold-start": {"sfl-cold-start": {"cold-below": 1.0}},
    "cgsv": {"cgsv": {"update-norm": 5.0}},
    "ipa": {"ipa": {"moves-others": False, "noise": 0.5}},
    "ipa-moving": {"experiment": {"method": "ipa"}},
    "ipa-at-once": {"experiment": {"method": "ipa"}, "ipa": {"turns": "simultaneous"}},
    "ditto-stopped": {
        "experiment": {"method": "ditto", "rounds": 9},
        "train": {"learning-rate": 0.5},
        "evaluation": {"monitor": "validation/loss", "patience": 1, "restore-best": False},
    },
    "sfl-ft-restored": {
        "experiment": {"method": "sfl-ft", "rounds": 4},
        "evaluation": {"monitor": "validation/loss", "patience": 1, "restore-best": True},
        "train": {"learning-rate": 2.0},
    },
    "fedavg-ft-restored": {
        "experiment": {"method": "fedavg-ft", "rounds": 12},
        "evaluation": {"monitor": "validation/loss", "patience": 2, "restore-best": True},
        "train": {"learning-rate": 2.0},
    },
    "fedavg-ft-mean": {"experiment": {"method": "fedavg-ft", "rounds": 3}, "evaluation": {"average-last": 2}},
}
CASES = sorted({*METHODS, *SETTINGS})


def changed(tables, name):
    tables = copy.deepcopy(tables)
    tables.pop("sfl")
    tables["experiment"]["method"] = name
    for table, values in SETTINGS.get(name, {}).items():
        tables.setdefault(table, {}).update(values)
    return tables


def losses(run, data_dir):
    """The mean loss of ``run.module`` on each client's test data, in plain PyTorch."""
    source = open_source(parse_data(run.experiment.data.as_table()), data_dir)
    found = {}
    for name in run.clients.index:
        split = source.load([name]).splits["test"]
        batch = split.batch(torch.arange(int(split.num_examples[0]))[None])
        with torch.no_grad():
            found[name] = float(cross_entropy(run.module(name, raw=False)(batch.inputs[0]), batch.targets[0]))
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_module_has_the_loss_of_the_table(case, digits_tables, run_experiment, data_dir):
    folder = run_experiment(changed(digits_tables, case), nodes=1 if case == "centralised" else 2)
    run = fedgraph.load_run(folder.path)
    assert losses(run, data_dir) == pytest.approx(run.clients["test/loss"].to_dict(), rel=1e-4)
    if run.method in NO_GLOBAL_MODULE:
        with pytest.raises(RunError, match="lacks .*name a client"):
            run.module()
    elif run.global_model is not None:
        run.module()


@pytest.mark.parametrize("method", ["ditto", "sfl-ft", "fedper"])
def test_models_of_other_machines_are_asked_for_and_found_once_copied(
    method, digits_tables, run_experiment, data_dir, tmp_path
):
    """Nodes with state folders of their own, one of which is copied into the run folder after the other."""
    places = [tmp_path / f"node-{number}" for number in range(2)]
    configs = [
        {"partition-id": number, "num-partitions": 2, "state-dir": str(place)} for number, place in enumerate(places)
    ]
    folder = run_experiment(changed(digits_tables, method), node_configs=configs)
    run = fedgraph.load_run(folder.path)
    told = f"runs/{folder.run}/measured"
    for look_up in (run.module, run.models.__getitem__):
        with pytest.raises(
            RunError, match=f"is at its node, since '{method}' does not send it: copy .*{told}"
        ) as error:
            look_up("client-0")
    assert str(folder.path / "nodes" / told) in str(error.value)
    assert list(run.models) == list(run.clients.index)
    for place in places:
        shutil.copytree(place / told, folder.path / "nodes" / told, dirs_exist_ok=True)
    moved = folder.path.rename(tmp_path / "elsewhere")
    run = fedgraph.load_run(moved)
    assert losses(run, data_dir) == pytest.approx(run.clients["test/loss"].to_dict(), rel=1e-4)


def test_a_client_that_was_not_measured_has_no_model_of_an_earlier_round(digits_tables, run_experiment, data_dir):
    from flwr.app import Message

    from fedgraph.clients.app import app as client_app
    from fedgraph.messages import error_content

    def client(message, context):
        config = message.content.config_records.get("config", {})
        away = config.get("server-round", 0) >= 2 and "client-1" in config.get("clients", ())
        return Message(error_content("away"), reply_to=message) if away else client_app(message, context)

    tables = changed(digits_tables, "ditto")
    tables["experiment"]["on-missing"] = "skip"
    names = [f"client-{number}" for number in range(6)]
    folder = run_experiment(tables, node_configs=[{"clients": name} for name in names], client=client)
    run = fedgraph.load_run(folder.path)
    with pytest.raises(RunError, match="'client-1' .*measured"):
        run.module("client-1")
    assert run.module("client-2") is not None


def test_without_an_evaluation_personal_models_are_not_guessed(digits_tables, run_experiment):
    tables = changed(digits_tables, "ditto")
    tables["evaluation"] = {"splits": []}
    run = fedgraph.load_run(run_experiment(tables).path)
    with pytest.raises(RunError, match="'ditto' leaves"):
        run.module("client-0")


@pytest.mark.parametrize("method", ["fedavg", "local", "ditto"])
def test_a_model_with_more_than_its_tensors(method, digits_tables, run_experiment, data_dir, tmp_path, monkeypatch):
    """Two layers with one weight, a counter, and a permutation that the constructor draws."""
    (tmp_path / "their_tied_model.py").write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Tied(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)\n"
        "        self.second.weight = self.first.weight\n"
        "        self.register_buffer('seen', torch.zeros((), dtype=torch.int64))\n"
        "        self.register_buffer('order', torch.randperm(64))\n"
        "        self.norm = nn.BatchNorm1d(64)\n\n"
        "    def forward(self, inputs):\n"
        "        if self.training:\n            self.seen += len(inputs)\n"
        "        hidden = self.second(self.first(inputs.flatten(1)[:, self.order]).relu())\n"
        "        return self.last(self.norm(hidden))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tables = changed(digits_tables, method)
    tables["model"] = {"name": "their_tied_model:Tied"}
    run = fedgraph.load_run(run_experiment(tables).path)
    assert losses(run, data_dir) == pytest.approx(run.clients["test/loss"].to_dict(), rel=1e-4)
    assert "second.weight" not in run.models["client-0"]
