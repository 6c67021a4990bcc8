"""The same experiments over a real SuperLink and real SuperNodes: over TLS, with nodes that prove who they are."""

import json

import pytest

from fedgraph.deployment.on_this_machine import FederationOnThisMachine
from fedgraph.experiment import parse_experiment
from fedgraph.run import RunFolder


def run_on_real_nodes(tables, tmp_path, nodes):
    """Run over a SuperLink and a SuperNode per node config; returns the run folder and the log.

    Runs whose clients all have a node of their own expect them by name, and have them prove that they are theirs.
    """
    sites = [
        config["clients"] if len(config.get("clients", ",").split(",")) == 1 else f"site-{i}"
        for i, config in enumerate(nodes)
    ]
    with FederationOnThisMachine(tmp_path / "federation", sites) as federation:
        if all(not site.startswith("site-") for site in sites):
            tables = {**tables, "clients": {"expect": sites, "public-keys": str(federation.credentials.public_keys)}}
        folder = RunFolder.create(parse_experiment(tables), tmp_path / "runs")
        for site, config in zip(sites, nodes, strict=True):
            federation.start_node(site, config)
        return folder, federation.run(folder)


def summary(folder, log=""):
    assert folder.is_finished, log[-4000:]
    return json.loads((folder.path / "summary.json").read_text())


@pytest.mark.xdist_group("nodes")
def test_real_nodes_give_the_same_weights_as_the_in_process_grid(digits_tables, tmp_path, run_experiment):
    names = [f"client-{i:02d}" for i in range(6)]
    digits_tables["data"]["clients"] = 6
    known = json.loads((run_experiment(digits_tables, nodes=3).path / "summary.json").read_text())
    clients = list(known["per_client"]["test"]["accuracy"])
    assert len(clients) == len(names)
    configs = [{"clients": f"{clients[i]},{clients[i + 1]}"} for i in (0, 2, 4)]
    folder, log = run_on_real_nodes(digits_tables, tmp_path, configs)
    real = summary(folder, log)
    assert real["weights_sha256"] == known["weights_sha256"]
    assert real["per_client"] == known["per_client"]
    assert real["exchanges"] == known["exchanges"]


@pytest.mark.slow
@pytest.mark.xdist_group("nodes")
def test_peers_of_ipa_on_real_nodes_take_turns_with_the_same_weights_as_in_process(
    digits_tables, tmp_path, run_experiment
):
    """Moments of Adam stay on the nodes from round to round; everything else goes from peer to peer by the server."""
    digits_tables["data"] |= {"clients": 3, "test": "shared"}
    digits_tables["experiment"] |= {"method": "ipa", "rounds": 2}
    digits_tables["train"] |= {"optimizer": "adam", "learning-rate": 0.001, "keep-optimizer": True}
    digits_tables["evaluation"] = {"splits": ["test"]}
    known = json.loads((run_experiment(digits_tables, nodes=2).path / "summary.json").read_text())
    clients = list(known["per_client"]["test"]["accuracy"])
    configs = [{"clients": name} for name in clients]
    real = summary(*run_on_real_nodes(digits_tables, tmp_path, configs))
    assert real["weights_sha256"] == known["weights_sha256"]
    assert real["per_client"] == known["per_client"]
    assert real["exchanges"] == known["exchanges"] == 1 + 1 + 2 * 3


@pytest.mark.xdist_group("nodes")
def test_owners_on_real_nodes_give_the_same_predictions_as_the_in_process_grid(
    patches_tables, tmp_path, run_experiment
):
    owners = [("patch-0-0", "patch-0-1"), ("patch-1-0", "patch-1-1")]
    known = run_experiment(patches_tables, node_configs=[{"clients": ",".join(names)} for names in owners])
    folder, log = run_on_real_nodes(patches_tables, tmp_path, [{"clients": ",".join(names)} for names in owners])
    assert summary(folder, log)["exchanges"] == 1
    assert (folder.path / "predictions.csv").read_bytes() == (known.path / "predictions.csv").read_bytes()


@pytest.mark.xdist_group("nodes")
def test_aggregators_on_real_nodes_give_the_same_predictions_as_in_process(patches_tables, tmp_path, run_experiment):
    """One of them hosts nobody."""
    # Flower starts a process per message, and that is what takes the time: no more nodes than it takes.
    configs = [{"clients": "patch-0-0,patch-0-1,patch-1-0,patch-1-1", "aggregator": "east"}, {"aggregator": "west"}]
    nodes = [{**config, "state-dir": str(tmp_path / "state")} for config in configs]
    patches_tables["f3"] |= {"hidden": 2}
    trained = run_experiment(patches_tables, node_configs=nodes)
    tables = {name: table for name, table in patches_tables.items() if name != "f3"}
    tables["experiment"] = {"name": "secret", "method": "f3-secret", "min-clients": 4}
    tables["f3-secret"] = {"run": str(trained.path), "samples": "test", "aggregators": 2, "map-bits": 8}
    known = run_experiment(tables, node_configs=nodes)
    folder, log = run_on_real_nodes(tables, tmp_path, nodes)
    found = summary(folder, log)
    assert found["exchanges"] == 3
    assert found["aggregators"] == known.summary()["aggregators"], "the nodes keep their keys"
    assert (folder.path / "predictions.csv").read_bytes() == (known.path / "predictions.csv").read_bytes()
