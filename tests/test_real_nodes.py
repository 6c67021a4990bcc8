"""The same experiments over a real SuperLink and real SuperNodes: over TLS, with nodes that prove who they are."""

import json

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine


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
        agreed = tmp_path / "agreed.toml"
        agreed.write_text((folder.path / "experiment.toml").read_text() + "\n[agreement]\nleast-rows = 1\n")
        for site, config in zip(sites, nodes, strict=True):
            federation.start_node(site, {"agreement": str(agreed), **config})
        return folder, federation.run(folder)


def summary(folder, log=""):
    assert folder.is_finished, log[-4000:]
    return json.loads((folder.path / "summary.json").read_text())


@pytest.mark.slow
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
    # Who is there, the initial models, two rounds of three turns, and the final models, which move after their turn.
    assert real["exchanges"] == known["exchanges"] == 1 + 1 + 2 * 3 + 1


@pytest.mark.xdist_group("nodes")
def test_owners_on_real_nodes_give_the_same_predictions_as_the_in_process_grid(
    patches_tables, tmp_path, run_experiment
):
    owners = [("patch-0-0", "patch-0-1"), ("patch-1-0", "patch-1-1")]
    known = run_experiment(patches_tables, node_configs=[{"clients": ",".join(names)} for names in owners])
    folder, log = run_on_real_nodes(patches_tables, tmp_path, [{"clients": ",".join(names)} for names in owners])
    assert summary(folder, log)["exchanges"] == 1
    assert (folder.path / "predictions.csv").read_bytes() == (known.path / "predictions.csv").read_bytes()


@pytest.mark.slow
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


# ---- sites with files of their own


def same_as_in_process(tables, tmp_path, run_experiment, nodes):
    """Over TLS, expected by name and proven, it comes to what it comes to in one process; returns the run folder."""
    known = run_experiment(tables, node_configs=nodes)
    folder, log = run_on_real_nodes(tables, tmp_path, nodes)
    real, expected = summary(folder, log), known.summary()
    assert real["weights_sha256"] == expected["weights_sha256"]
    assert real["per_client"] == expected["per_client"]
    assert real["exchanges"] == expected["exchanges"]
    for file in folder.path.rglob("*"):
        assert not file.is_file() or b"own-file" not in file.read_bytes(), f"{file} names a file of a site"
    return folder


def own_file(tmp_path, name, header, rows):
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path = tmp_path / f"own-file-{name}.csv"
    path.write_text("\n".join(lines) + "\n")
    return {"clients": name, "data": str(path)}


@pytest.mark.slow
@pytest.mark.xdist_group("nodes")
def test_two_sites_with_graphs_of_their_own(blocks_tables, tmp_path, run_experiment):
    nodes = []
    for place, name in enumerate(("mercy", "county")):
        draws = torch.Generator().manual_seed(place)
        y = torch.arange(30) % 2
        graph = Data(
            x=torch.randn(30, 4, generator=draws) + y[:, None],
            edge_index=torch.randint(30, (2, 90), generator=draws),
            y=y,
        )
        torch.save(graph, tmp_path / f"own-file-{name}.pt")
        nodes.append({"clients": name, "data": str(tmp_path / f"own-file-{name}.pt")})
    tables = {**blocks_tables, "data": {"set": "graphs", "classes": 2}, "graph": {"source": "complete"}}
    same_as_in_process(tables, tmp_path, run_experiment, nodes)


@pytest.mark.slow
@pytest.mark.xdist_group("nodes")
def test_five_sensors_with_series_of_their_own(tmp_path, run_experiment):
    random = np.random.default_rng(0)
    daily = 5 + 3 * np.sin(np.arange(200) / 6)
    nodes = [own_file(tmp_path, name, name, (daily + random.normal(0, 0.5, 200)).round(2)[:, None]) for name in "abcde"]
    tables = {
        "experiment": {"method": "sfl", "rounds": 2},
        "data": {"set": "series", "input-steps": 6, "output-steps": 3},
        "model": {"name": "gru", "hidden": 8},
        "train": {"local-steps": 5, "optimizer": "adam", "learning-rate": 0.01},
        "graph": {"source": "complete"},
    }
    same_as_in_process(tables, tmp_path, run_experiment, nodes)


@pytest.mark.slow
@pytest.mark.xdist_group("nodes")
def test_three_tables_of_hospitals_become_one_graphical_model(table_tables, tmp_path, run_experiment):
    header, *lines = (tmp_path / "patients.csv").read_text().splitlines()
    names = ("east", "north", "west")
    nodes = [
        own_file(tmp_path, name, header, [line.split(",") for line in lines[place::3]])
        for place, name in enumerate(names)
    ]
    table_tables["data"] = {"set": "mixed-table"}
    table_tables["fedngm"]["scaling"] = {"source": "shared-ranges"}
    folder = same_as_in_process(table_tables, tmp_path, run_experiment, nodes)
    assert (folder.path / "graphical-model.safetensors").is_file()
    assert list((tmp_path / "federation" / "state").rglob("graphical/*/east.safetensors")), "personal models stay"


@pytest.mark.slow
@pytest.mark.xdist_group("nodes")
def test_three_owners_with_files_and_models_of_their_own(tmp_path, run_experiment):
    random = np.random.default_rng(0)
    label = random.integers(0, 2, 300)
    nodes = []
    for name in ("east", "north", "west"):
        features = (label[:, None] + random.normal(0, 1.5, (300, 2))).round(3)
        rows = [(f"patient-{row:03d}", *features[row], "ny"[label[row]]) for row in range(300)]
        node = own_file(tmp_path, name, f"key,{name}-1,{name}-2,ill", rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(len(nodes))
            own = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
        many = {0: torch.export.Dim("batch", min=1, max=4096)}
        model = tmp_path / f"own-file-{name}.pt2"
        torch.export.save(torch.export.export(own, (torch.zeros(5, 2),), dynamic_shapes=(many,)), model)
        nodes.append({**node, "model": str(model)})
    tables = {
        "experiment": {"method": "f3"},
        "data": {"set": "table-columns", "key-column": "key", "label": "ill", "categories": {"ill": ["n", "y"]}},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"workers": 1},
        "f3": {"epochs": 3, "learning-rates": [0.01], "draws": 2, "workers": 1, "device": "cpu"},
    }
    folder = same_as_in_process(tables, tmp_path, run_experiment, nodes)
    assert folder.summary()["exchanges"] == 1
