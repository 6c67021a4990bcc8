"""What goes wrong on separate machines, with real processes: nodes killed or slow, a server or network gone."""

import json
import os
import socket
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.folder import RunFolder
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("nodes")]

CLIENTS = ["client-0", "client-1", "client-2"]
PATIENCE = 300.0

# Before it trains, a client leaves a mark, and waits as long as there is something to hold it.
GATED = """
import os, time
from pathlib import Path

from fedgraph.clients.engine.stock import StockClient
from fedgraph.clients.sfl import SFLClient


class Waiting:
    def train(self):
        gate, turn = Path(os.environ["GATE"]), f"{self.request.clients[0]}-{self.request.round}"
        (gate / turn).touch()
        while (gate / f"hold-{turn}").exists():
            time.sleep(0.1)
        return super().train()


class Gated(Waiting, SFLClient):
    pass


class GatedStock(Waiting, StockClient):
    pass
"""


class Scene:
    """Three clients on nodes of their own, of which one is held in round 2 of 3, and then something happens."""

    def __init__(self, tables, folder, run_experiment, monkeypatch, **experiment):
        self.gate = folder / "gate"
        self.gate.mkdir()
        (folder / "plugins").mkdir()
        (folder / "plugins" / "gated.py").write_text(GATED)
        monkeypatch.syspath_prepend(folder / "plugins")
        monkeypatch.setenv("GATE", str(self.gate))
        tables["experiment"] |= {"rounds": 3, "client": "gated:Gated", "on-missing": "fail", "timeout": 120.0}
        tables["data"]["clients"] = 3
        tables["graph"] = {"source": "complete"}
        tables["train"] |= {"optimizer": "adam", "learning-rate": 0.01, "keep-optimizer": True}
        if experiment.get("method") == "fedavg":
            experiment = {"client": "gated:GatedStock", **experiment}
            tables["experiment"] |= experiment
            del tables["sfl"]
        self.undisturbed = run_experiment(tables, node_configs=[{"clients": name} for name in CLIENTS]).summary()
        for mark in self.gate.iterdir():
            mark.unlink()
        tables["experiment"] |= experiment
        environment = {"PYTHONPATH": os.pathsep.join([str(folder / "plugins"), os.environ.get("PYTHONPATH", "")])}
        self.federation = FederationOnThisMachine(folder / "federation", CLIENTS, environment)
        keys = str(self.federation.credentials.public_keys)
        tables["clients"] = {"expect": CLIENTS, "public-keys": keys}
        self.folder = RunFolder.create(parse_experiment(tables), folder / "runs")
        self.nodes = {}

    def __enter__(self):
        self.federation.__enter__()
        return self

    def __exit__(self, *error):
        self.federation.__exit__(*error)

    def start_nodes(self, **addresses):
        for name in CLIENTS:
            self.start_node(name, addresses.get(name.replace("-", "_")))

    def start_node(self, name, superlink=None):
        config = {"clients": name, "agreement": str(self.folder.path / "experiment.toml")}
        self.nodes[name] = self.federation.start_node(name, config, superlink)

    def restart_node(self, name):
        """As a supervisor would: again and again, until the server knows that the one before is dead."""

        def stays():
            self.start_node(name)
            try:
                self.nodes[name].process.wait(15)
            except subprocess.TimeoutExpired:
                return True
            return False

        self.wait_until(stays)

    def hold(self, turn):
        (self.gate / f"hold-{turn}").touch()

    def release(self, turn):
        (self.gate / f"hold-{turn}").unlink()

    def wait_for(self, turn):
        """Until a client has begun to train in a round."""
        self.wait_until(lambda: (self.gate / turn).exists())

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.log[-6000:]
            time.sleep(0.1)

    def submit(self):
        self.submitted = self.federation.submit(self.folder)

    def wait_for_the_end(self):
        self.submitted.process.wait(PATIENCE)

    @property
    def log(self):
        return self.federation.log.read_text(errors="replace")

    @property
    def lines(self):
        """Complete lines of ``metrics.jsonl``."""
        text = (self.folder.path / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def rounds_of(self, client, phase="training"):
        """Rounds in which something was heard of a client."""
        found = set()
        for line in self.lines:
            per_client = next(iter(line["per_client"].values()), {})
            if line["phase"] == phase and per_client.get(client) is not None:
                found.add(line["round"])
        return found


@pytest.fixture
def scene(digits_tables, tmp_path, run_experiment, monkeypatch):
    return lambda **experiment: Scene(digits_tables, tmp_path, run_experiment, monkeypatch, **experiment)


def test_a_node_killed_in_a_round_ends_a_run_that_needs_it_and_the_run_goes_on_when_it_is_back(scene):
    with scene(timeout=45.0) as at:
        at.hold("client-1-2")
        at.start_nodes()
        at.submit()
        at.wait_for("client-1-2")
        at.nodes["client-1"].kill()
        at.wait_for_the_end()
        assert not at.folder.is_finished
        assert "client-1" in (at.folder.path / "logs" / "run.log").read_text().rpartition("the run stopped")[2]
        assert at.rounds_of("client-1") == {1}, "what round 1 came to is still there"
        at.release("client-1-2")
        at.restart_node("client-1")
        at.submit()
        at.wait_for_the_end()
        assert at.folder.is_finished, at.log[-6000:]
        assert at.folder.summary()["weights_sha256"] == at.undisturbed["weights_sha256"], (
            "moments were kept by the node"
        )


def test_a_node_killed_in_a_round_is_left_out_of_it_and_takes_part_again_with_its_state(scene):
    with scene(**{"rounds": 4, "on-missing": "skip", "timeout": 150.0}) as at:
        at.hold("client-1-2")
        at.hold("client-0-3")
        at.start_nodes()
        at.submit()
        at.wait_for("client-1-2")
        at.nodes["client-1"].kill()
        at.release("client-1-2")
        at.wait_for("client-0-3")
        at.restart_node("client-1")
        at.release("client-0-3")
        at.wait_for_the_end()
        assert at.folder.is_finished, at.log[-6000:]
        assert at.rounds_of("client-0") == {1, 2, 3, 4}
        assert at.rounds_of("client-1") == {1, 4}
        state = at.federation.folder / "state" / "client-1"
        assert any(path.is_file() for path in state.rglob("*")), "moments of Adam"


def test_a_node_that_leaves_between_two_rounds_of_a_strategy_of_flower_is_absent(scene):
    with scene(method="fedavg", timeout=90.0) as at:
        at.hold("client-0-2")
        at.start_nodes()
        at.submit()
        at.wait_for("client-0-2")
        at.wait_for("client-2-2")
        time.sleep(5)  # until it has sent what it trained
        at.nodes["client-2"].process.terminate()
        at.nodes["client-2"].process.wait(60)
        at.release("client-0-2")
        at.wait_for_the_end()
        assert not at.folder.is_finished
        stopped = (at.folder.path / "logs" / "run.log").read_text().rpartition("the run stopped")[2]
        assert "client-2" in stopped, stopped
        assert "round 2" in stopped or "round 3" in stopped


def test_a_node_that_is_too_slow_is_left_out_of_the_round_and_its_late_answer_is_not_used(scene):
    with scene(**{"on-missing": "skip", "timeout": 45.0}) as at:
        at.hold("client-1-2")
        at.start_nodes()
        at.submit()
        at.wait_for("client-1-2")
        at.wait_until(lambda: 2 in at.rounds_of("client-0"))
        at.release("client-1-2")
        at.wait_for_the_end()
        assert at.folder.is_finished, at.log[-6000:]
        assert at.rounds_of("client-0") == {1, 2, 3}
        assert 2 not in at.rounds_of("client-1")
        assert 1 in at.rounds_of("client-1")


def test_a_server_that_is_killed_goes_on_with_the_run_folder_and_the_same_nodes(scene):
    with scene() as at:
        at.hold("client-1-2")
        at.start_nodes()
        at.submit()
        at.wait_for("client-1-2")
        at.federation.superlink.kill()
        at.submitted.end()
        at.release("client-1-2")
        assert not at.folder.is_finished
        assert at.rounds_of("client-1") == {1}
        at.federation.start_superlink()
        at.submit()
        at.wait_for_the_end()
        assert at.folder.is_finished, at.log[-6000:]
        assert at.folder.summary()["weights_sha256"] == at.undisturbed["weights_sha256"]


def test_a_network_that_is_gone_for_half_a_minute_costs_that_time_and_nothing_else(scene):
    with scene() as at, Cable(at.federation.port) as cable:
        at.hold("client-1-2")
        at.start_nodes(client_1=f"127.0.0.1:{cable.port}")
        at.submit()
        at.wait_for("client-1-2")
        cable.unplug()
        at.release("client-1-2")
        time.sleep(30)
        assert 2 not in at.rounds_of("client-0"), "the round waits"
        cable.plug_in()
        at.wait_for_the_end()
        assert at.folder.is_finished, at.log[-6000:]
        assert at.folder.summary()["weights_sha256"] == at.undisturbed["weights_sha256"]


class Cable:
    """Carries bytes to a port of this machine from another one. Unplugged, it holds them back, as a network does."""

    def __init__(self, port):
        self._to = port
        self._plugged = threading.Event()
        self._plugged.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._listening.close()
        self._plugged.set()

    def unplug(self):
        self._plugged.clear()

    def plug_in(self):
        self._plugged.set()

    def _accept(self):
        with suppress(OSError):
            while True:
                came, _ = self._listening.accept()
                self._plugged.wait()
                ends = came, socket.create_connection(("127.0.0.1", self._to))
                for source, target in (ends, ends[::-1]):
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source, target):
        with suppress(OSError):
            while data := source.recv(65536):
                self._plugged.wait()
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def test_the_cable_carries_and_holds_back():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Cable(server.getsockname()[1]) as cable,
        socket.create_connection(("127.0.0.1", cable.port)) as near,
    ):
        far, _ = server.accept()
        near.sendall(b"there")
        assert far.recv(5) == b"there"
        cable.unplug()
        far.sendall(b"back")
        near.settimeout(0.3)
        with pytest.raises(TimeoutError):
            near.recv(4)
        cable.plug_in()
        near.settimeout(10)
        assert near.recv(4) == b"back"
