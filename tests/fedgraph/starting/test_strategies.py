"""Strategies of this package in an app of somebody else's: here, on Ray, and over SuperNodes with TLS."""

import pytest

import fedgraph
from fedgraph.federation.grids import run_app_on_flower
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine

SERVER = """
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp

from fedgraph import ClientGraph
from fedgraph.strategies import SFL, SFLStar

app = ServerApp()


@app.main()
def main(grid, context):
    told = []
    for strategy in (
        SFL(ClientGraph.from_edges([(0, 1), (1, 2, 0.5)]), alpha=0.6, hops=2, fraction_evaluate=0.0),
        SFLStar(neighbours=1, fraction_evaluate=0.0, min_available_nodes=3),
    ):
        config = ConfigRecord({"lr": context.run_config["lr"]})
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=2, train_config=config)
        told += [f"{name} {found['w'].numpy().tobytes().hex()}" for name, found in strategy.client_arrays.items()]
    if context.run_config["out"]:
        Path(context.run_config["out"]).write_text("\\n".join(told))
    return "\\n".join(told)
"""


@pytest.mark.process
@pytest.mark.xdist_group("flower")
def test_weights_of_every_client_are_the_same_here_on_ray_and_over_nodes_with_tls(write_app, tmp_path):
    folder = write_app(server_app=SERVER)
    client = (folder / "client_app.py").read_text().replace("ClientApp()", "ClientApp(mods=[client_name])")
    write_app(server_app=SERVER, client_app=f"from fedgraph.clients import client_name\n{client}")
    here = fedgraph.simulate(folder, num_nodes=3).returned
    assert len(here.splitlines()) == 6
    out, log = tmp_path / "ray.txt", tmp_path / "ray.log"
    run_app_on_flower(folder, {"out": str(out)}, 3, log, {})
    assert out.is_file(), log.read_text(errors="replace")[-3000:]
    assert out.read_text() == here
    out = tmp_path / "nodes.txt"
    with FederationOnThisMachine(tmp_path / "federation", ["0", "1", "2"]) as federation:
        for place in range(3):
            federation.start_node(str(place), {"partition-id": place, "num-partitions": 3}, app_code=True)
        federation.submit_app(folder, f'out="{out}"').process.wait(200)
        assert out.is_file(), federation.log.read_text(errors="replace")[-3000:]
    assert out.read_text() == here
