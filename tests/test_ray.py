"""The same experiment through ``flwr run`` with simulated nodes on Ray."""

import json
import subprocess
from pathlib import Path

import pytest
import tomli_w

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.local_flower import (
    connection_file,
    free_port,
    process,
    run_on_flower,
    wait_for_superlink,
)
from fedgraph.federation.grids.programs import flower_environment, program
from fedgraph.runs.folder import RunFolder

REPOSITORY = Path(__file__).resolve().parent.parent


def summary(folder):
    return json.loads((folder.path / "summary.json").read_text())


def run_on_ray(tables, tmp_path, nodes):
    """The folder of a finished run."""
    folder = RunFolder.create(parse_experiment(tables), tmp_path / "ray")
    log = tmp_path / "flower.log"
    run_config = {"experiment": str(folder.path / "experiment.toml"), "set": f"'output.resume={folder.path}'"}
    run_on_flower(run_config, nodes, log, {"FEDGRAPH_STATE": str(folder.path / "nodes")})
    assert folder.is_finished, log.read_text(errors="replace")[-3000:]
    return folder


@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("method", ["sfl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "ipa"))])
def test_ray_gives_the_same_weights_as_the_in_process_grid(digits_tables, tmp_path, run_experiment, method):
    digits_tables["experiment"]["method"] = method
    if method == "ipa":
        digits_tables["data"]["test"], digits_tables["evaluation"] = "shared", {"compare-peers": True}
    here = summary(run_experiment(digits_tables, nodes=3))
    folder = run_on_ray(digits_tables, tmp_path, nodes=3)
    there = summary(folder)
    assert there["weights_sha256"] == here["weights_sha256"]
    assert there["per_client"] == here["per_client"]
    assert there.get("peers") == here.get("peers")
    assert ("peers" in here) == (method == "ipa")
    assert there["exchanges"] == here["exchanges"]


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.parametrize("method", ["f3", "vfl"])
def test_ray_gives_the_same_predictions_as_the_in_process_grid(patches_tables, tmp_path, run_experiment, method):
    patches_tables["experiment"]["method"] = method
    patches_tables["vfl"] = {**patches_tables.pop("f3"), "epochs": 1} if method == "vfl" else {}
    tables = {name: table for name, table in patches_tables.items() if table}
    here = run_experiment(tables, nodes=2)
    folder = run_on_ray(tables, tmp_path, nodes=2)
    assert (folder.path / "predictions.csv").read_bytes() == (here.path / "predictions.csv").read_bytes()
    assert summary(folder)["exchanges"] == summary(here)["exchanges"]
    assert summary(folder)["bytes_up"] == summary(here)["bytes_up"]


def flwr_run(tmp_path, settings, nodes):
    """What `flwr run .` of the repository streams, on a SuperLink of its own."""
    home, log = tmp_path / "home", tmp_path / "flower.log"
    port = free_port()
    connection_file(home, f"127.0.0.1:{port}")
    environment = flower_environment(home)
    superlink = [program("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
                 "--port", str(port)]  # fmt: skip
    with process(superlink, environment, log) as started:
        wait_for_superlink(port, started, log)
        flwr = [program("flwr"), "run", str(REPOSITORY), "here", "--stream", "-c", settings,
                "--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]  # fmt: skip
        return subprocess.run(flwr, env=environment, capture_output=True, text=True, check=False, timeout=480).stdout


@pytest.mark.xdist_group("flower")
@pytest.mark.process
def test_flwr_run_of_the_repository_itself(tmp_path):
    """``flwr run .`` as the guide has it: the app is the repository, the experiment travels in the bundle."""
    out = tmp_path / "runs"
    settings = f'experiment="simulations/sfl/digits.toml" set="experiment.rounds=1" output-dir="{out}" seed=3'
    streamed = flwr_run(tmp_path, settings, nodes=2)
    assert out.is_dir(), streamed[-4000:]
    (folder,) = out.iterdir()
    finished = json.loads((folder / "summary.json").read_text())
    assert (finished["method"], finished["clients"], finished["rounds"]) == ("sfl", 20, 1)
    assert "seed = 3" in (folder / "experiment.toml").read_text()
    assert "after round 1: validation/accuracy" in streamed, "progress is streamed"
    assert "On each client's own test data" in streamed, "and so is the table at the end"


OWN = """
from fedgraph.clients.sfl import SFLClient
from fedgraph.algorithms.sfl import SFL


class Patient(SFL):
    default_client = "own_method:PatientClient"


class PatientClient(SFLClient):
    def train(self):
        stacked, numbers = super().train()
        return {"parameters": (stacked["parameters"] + self.models) / 2}, numbers
"""


@pytest.mark.xdist_group("flower")
@pytest.mark.process
def test_flwr_run_finds_a_strategy_and_a_client_beside_the_experiment(digits_tables, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "own_method.py").write_text(OWN)
    tables = {**digits_tables, "experiment": {"name": "own", "strategy": "own_method:Patient", "rounds": 1}}
    (project / "own.toml").write_text(tomli_w.dumps({key: value for key, value in tables.items() if key != "sfl"}))
    out = tmp_path / "runs"
    streamed = flwr_run(tmp_path, f'experiment="{project / "own.toml"}" output-dir="{out}"', nodes=2)
    assert out.is_dir(), streamed[-3000:]
    (folder,) = out.iterdir()
    assert json.loads((folder / "summary.json").read_text())["method"] == "Patient", streamed[-3000:]
