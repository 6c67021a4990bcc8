import json

import pytest
import torch

from fedgraph.runs.result_files import load_models


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
