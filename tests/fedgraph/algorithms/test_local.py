import json

import pytest
import torch
from flwr.app import Array

from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.models import build
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.training.client_state import ClientState


def rows(folder):
    clients, shared = load_models(folder.path / "models.safetensors")
    assert shared is None
    return {name: torch.cat([tensor.flatten() for tensor in state.values()]) for name, state in clients.items()}


@pytest.fixture
def tables(digits_tables):
    digits_tables["experiment"] = {"method": "local", "rounds": 3}
    return digits_tables


def test_nothing_is_shared(tables, run_experiment):
    together = rows(run_experiment(tables))
    alone = rows(run_experiment(tables, node_configs=[{"clients": "client-2"}]))
    assert list(alone) == ["client-2"]
    torch.testing.assert_close(alone["client-2"], together["client-2"], rtol=1e-5, atol=1e-7)
    assert not torch.allclose(together["client-2"], together["client-3"])


def test_clients_learn_their_own_data(tables, run_experiment):
    tables["experiment"]["rounds"] = 8
    tables["train"]["local-epochs"] = 5
    summary = json.loads((run_experiment(tables).path / "summary.json").read_text())
    assert summary["metrics"]["test"]["accuracy"]["mean"] > 0.85
    assert summary["exchanges"] == 1 + 8 + 1


# ---- clients with different architectures

SMALL = {"name": "mlp", "hidden": [4]}
SMALL_CLIENTS = ("client-1", "client-4")


@pytest.fixture
def mixed(tables):
    """Six clients, two of them with a smaller model; both nodes of two have clients of either kind."""
    tables["model"]["variants"] = [{"clients": ["*-1", "client-4"], **SMALL}]
    tables["train"] |= {"momentum": 0.5, "keep-optimizer": True, "learning-rate": 0.05}
    return tables


def summary(folder):
    return json.loads((folder.path / "summary.json").read_text())


def test_mixed_architectures_do_not_depend_on_the_packing(mixed, run_experiment):
    one, two = run_experiment(mixed, nodes=1), run_experiment(mixed, nodes=2)
    apart = run_experiment(mixed, node_configs=[{"clients": "client-4,client-1"}, {"clients": "client-5,client-0"},
                                                {"clients": "client-2,client-3"}])  # fmt: skip
    expected = rows(one)
    assert {name: len(row) for name, row in expected.items()} == {
        f"client-{i}": 310 if f"client-{i}" in SMALL_CLIENTS else 1210 for i in range(6)
    }
    for folder in (two, apart):
        for name, row in rows(folder).items():
            torch.testing.assert_close(row, expected[name], rtol=1e-5, atol=1e-6)
        for split, metrics in summary(one)["per_client"].items():
            for metric, values in metrics.items():
                assert summary(folder)["per_client"][split][metric] == pytest.approx(values, rel=1e-4)


def test_each_client_gets_what_it_gets_where_all_have_its_model(mixed, run_experiment):
    together = rows(run_experiment(mixed))
    del mixed["model"]["variants"]
    large = rows(run_experiment(mixed))
    small = rows(run_experiment({**mixed, "model": SMALL}))
    for name, row in together.items():
        alone = (small if name in SMALL_CLIENTS else large)[name]
        torch.testing.assert_close(row, alone, rtol=1e-5, atol=1e-6)


def test_mixed_architectures_resume_to_the_same_weights(mixed, run_experiment):
    mixed["experiment"]["rounds"] = 6
    mixed["evaluation"] = {"monitor": "validation/loss", "patience": 1000}
    whole = run_experiment(mixed)
    mixed["experiment"]["rounds"] = 3
    part = run_experiment(mixed)
    (part.path / "summary.json").unlink()
    mixed["experiment"]["rounds"] = 6
    (part.path / "experiment.toml").write_text(parse_experiment(mixed).as_toml())
    resumed = run_experiment(mixed, folder=RunFolder.open(part.path))
    assert summary(resumed)["weights_sha256"] == summary(whole)["weights_sha256"]
    assert summary(resumed)["metrics"] == summary(whole)["metrics"]


def test_saved_models_of_different_architectures_reproduce_the_metrics(mixed, run_experiment, data_dir):
    folder = run_experiment(mixed)
    states, shared = load_models(folder.path / "models.safetensors")
    assert shared is None
    assert list(states) == [f"client-{i}" for i in range(6)]
    data = open_source(parse_experiment(mixed).data, data_dir).load(list(states))
    split, reported = data.splits["test"], summary(folder)["per_client"]["test"]
    for position, (name, state) in enumerate(states.items()):
        twin = build(SMALL if name in SMALL_CLIENTS else {"name": "mlp", "hidden": [16]}, data.task).twin()
        twin.load_state_dict(state)
        count = int(split.num_examples[position])
        indices = torch.full((6, count), -1)
        indices[position] = torch.arange(count)
        batch = split.batch(indices)
        outputs = twin(batch.inputs[position]).detach()
        right = (outputs.argmax(1) == batch.targets[position]).double().mean().item()
        loss = torch.nn.functional.cross_entropy(outputs, batch.targets[position]).item()
        assert right == pytest.approx(reported["accuracy"][name])
        assert loss == pytest.approx(reported["loss"][name], rel=1e-4)


def test_moments_of_a_client_do_not_depend_on_who_is_asked_with_it(mixed, run_experiment):
    folder = run_experiment(mixed).path
    clients = [f"client-{i}" for i in range(6)]
    missing = {"momentum": torch.full((1210,), torch.nan)}
    moments = ClientState(folder / "nodes", folder.name, "optimiser").load(clients, 4, missing)["momentum"]
    kept = dict(zip(clients, moments, strict=True))
    assert not moments.isnan().any()
    assert (kept["client-1"][310:] == 0).all()
    assert (kept["client-1"][:310] != 0).any()


def test_a_reply_that_is_longer_than_the_clients_model_is_not_used(mixed, run_experiment):
    def spoil(message, context):
        reply = client_app(message, context)
        if message.metadata.message_type == "train" and "client-1" in message.content["config"]["clients"]:
            record = reply.content["stacked"]
            values = record["parameters"].numpy().copy()
            values[1, 500] = 1e-3
            record["parameters"] = Array(values)
        return reply

    mixed["experiment"]["on-missing"] = "skip"
    folder = run_experiment(mixed, client=spoil)
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    absent = [line["absent"] for line in lines if line["phase"] == "training"]
    reason = "its parameters go on behind the 310 that its model has, where zeros are expected"
    assert absent == [{"client-1": reason}] * 3
    assert len(rows(folder)["client-1"]) == 310


def test_a_variant_for_nobody_is_refused_when_the_clients_are_known(mixed, run_experiment):
    mixed["model"]["variants"].append({"clients": ["station-*"], "name": "mlp", "hidden": [5]})
    with pytest.raises(ExperimentError, match=r"number 2, clients: .*'station-\*'; it has client-0, .*\(6 clients\)"):
        run_experiment(mixed)


def test_a_plugin_without_a_read_out_of_its_own_has_none_for_different_architectures(
    mixed, run_experiment, tmp_path, monkeypatch
):
    code = (
        "from fedgraph.algorithms import Algorithm\n\n"
        "class Halves(Algorithm):\n"
        "    mixes_models = False\n"
        "    def aggregate(self, clients, state, answers):\n"
        "        return answers.parameters / 2\n"
    )
    (tmp_path / "halves_each_model.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    halved = run_experiment({**mixed, "experiment": {"strategy": "halves_each_model:Halves", "rounds": 1}})
    plain = rows(run_experiment({**mixed, "experiment": {"method": "local", "rounds": 1}}))
    for name, row in rows(halved).items():
        assert torch.equal(row, plain[name] / 2)


def test_a_plugin_that_mixes_although_it_says_it_does_not_is_found_out(mixed, run_experiment, tmp_path, monkeypatch):
    code = (
        "from fedgraph.algorithms.bounds import LocalOnly\n\n"
        "class Mean(LocalOnly):\n"
        "    def aggregate(self, clients, state, answers):\n"
        "        return answers.parameters.mean(dim=0).expand_as(answers.parameters)\n"
    )
    (tmp_path / "mixes_after_all.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match="Mean made a model for client 'client-1' that is not of its architecture"):
        run_experiment({**mixed, "experiment": {"strategy": "mixes_after_all:Mean", "rounds": 1}})
