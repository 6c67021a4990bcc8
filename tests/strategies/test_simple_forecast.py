"""Runs of simple forecasters: nothing but errors leaves the clients."""

import numpy as np
import pytest

from fedgraph.clients.app import app as client_app
from fedgraph.support.errors import FedgraphError


@pytest.fixture
def tables(tmp_path):
    random = np.random.default_rng(0)
    hours = np.arange(500)
    series = 50 + 9 * np.sin(2 * np.pi * hours / 24)[:, None] + random.standard_normal((500, 3))
    path = tmp_path / "hours.npz"
    np.savez(path, data=series.astype(np.float32), names=np.array(["a", "b", "c"]))
    return {
        "experiment": {"name": "hours", "method": "simple-forecast"},
        "data": {
            "set": "series", "path": str(path), "names": ["a", "b", "c"], "input-steps": 4, "output-steps": 2,
            "start": "2024-05-06T00:00", "step-minutes": 60,
        },
        "model": {"name": "rnn", "hidden": 2},
    }  # fmt: skip


def test_each_client_measures_its_own_forecaster(tables, run_experiment):
    sent = []

    def client(message, context):
        reply = client_app(message, context)
        sent.append({name: dict(records) for name, records in reply.content.items() if "stacked" in name})
        return reply

    found = {}
    for forecaster in ("last-reading", "ridge"):
        tables["simple-forecast"] = {"forecaster": forecaster}
        summaries = [run_experiment(tables, nodes=nodes, client=client).summary() for nodes in (1, 3)]
        assert summaries[0]["metrics"] == summaries[1]["metrics"]
        found[forecaster] = summaries[0]["metrics"]["test"]["mae"]["mean"]
        assert summaries[0]["exchanges"] == 2
    assert found["ridge"] < 0.9 * found["last-reading"]
    assert not any(records for message in sent for records in message.values())


def test_data_without_time_is_refused(tables, run_experiment):
    tables["data"], tables["model"] = {"set": "digits", "clients": 3}, {"name": "mlp"}
    with pytest.raises(FedgraphError, match="simple-forecast forecasts time series"):
        run_experiment(tables)
