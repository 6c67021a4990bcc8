"""A simulation spread over a Ray cluster, as `RAY_ADDRESS` asks for: two Ray nodes, here both on this machine."""

import json
import os
import shlex
import shutil
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.local_flower import free_port, process, run_on_flower
from fedgraph.federation.grids.programs import flower_environment
from fedgraph.runs.folder import RunFolder

RAY = Path(sys.executable).with_name("ray")

# Says on which Ray node a client was trained.
PLACED = """
import os
from pathlib import Path

import ray

from fedgraph.clients.sfl import SFLClient


class Placed(SFLClient):
    def train(self):
        name = f"{self.request.clients[0]}-{self.request.round}"
        (Path(os.environ["PLACED"]) / name).write_text(ray.get_runtime_context().get_node_id())
        return super().train()
"""


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not RAY.exists(), reason="the program ray is not installed beside Python")
def test_a_cluster_of_two_ray_nodes_gives_the_weights_of_one_process(
    digits_tables, tmp_path, run_experiment, monkeypatch
):
    places = tmp_path / "places"
    for folder in (places, tmp_path / "plugins"):
        folder.mkdir()
    (tmp_path / "plugins" / "placed.py").write_text(PLACED)
    expected = run_experiment(digits_tables, nodes=2).summary()
    digits_tables["experiment"]["client"] = "placed:Placed"
    monkeypatch.syspath_prepend(tmp_path / "plugins")
    folder = RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")
    # Ray's sockets need short paths.
    scratch = Path("/tmp") / f"fedgraph-ray-{os.getpid()}"
    port, log = free_port(), tmp_path / "ray.log"
    common = ["--num-cpus", "1", "--object-store-memory", "100000000", "--block"]
    head = ["start", "--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", str(scratch)]
    environment = flower_environment(tmp_path / "home", PLACED=str(places), RAY_raylet_start_wait_time_s="120")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.enter_context(process([str(RAY), *head, *common], environment, log))
        wait_until(lambda: is_open(port))
        worker = ["start", "--address", f"127.0.0.1:{port}"]
        stack.enter_context(process([str(RAY), *worker, *common], environment, log))
        wait_until(lambda: log.read_text(errors="replace").count("Ray runtime started") == 2)
        run_on_flower(
            {
                "experiment": str(folder.path / "experiment.toml"),
                "set": shlex.quote(f"output.resume={folder.path}"),
            },
            2,
            tmp_path / "flower.log",
            {
                "RAY_ADDRESS": f"127.0.0.1:{port}",
                "FEDGRAPH_STATE": str(tmp_path / "state"),
                "PLACED": str(places),
            },
        )
    assert folder.is_finished, (tmp_path / "flower.log").read_text(errors="replace")[-4000:]
    assert json.loads((folder.path / "summary.json").read_text())["weights_sha256"] == expected["weights_sha256"]
    assert len({place.read_text() for place in places.iterdir()}) == 2, "both Ray nodes have trained clients"


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the Ray cluster did not come about"
        time.sleep(0.2)
