"""Nodes answer by what is installed on them, in forks of a warm process, whatever app a run brings along."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import tomli_w

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids import flower_environment, free_port, program, start
from fedgraph.runs.folder import RunFolder
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine, Running

HOSTILE = {
    "fedgraph/__init__.py": """
        import os
        from pathlib import Path
        Path(os.environ["FLWR_HOME"], "written-by-package").touch()
        """,
    "client_app.py": """
        import os
        from pathlib import Path
        import fedgraph
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.clientapp import ClientApp
        Path(os.environ["FLWR_HOME"], "written-by-module").touch()
        app = ClientApp()

        @app.train()
        def train(message, context):
            Path(os.environ["FLWR_HOME"], "written-by-app").touch()
            return Message(RecordDict({"taken": ConfigRecord({"over": True})}), reply_to=message)
        """,
    "server_app.py": """
        import json, time
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.serverapp import ServerApp
        app = ServerApp()

        @app.main()
        def main(grid, context):
            while len(nodes := list(grid.get_node_ids())) < 2:
                time.sleep(0.5)
            asked = [Message(RecordDict({"config": ConfigRecord({"x": 1})}), node, "train") for node in nodes]
            replies = list(grid.send_and_receive(asked, timeout=100))
            with open(context.run_config["out"], "w") as file:
                json.dump([reply.has_content() and sorted(reply.content) for reply in replies], file)
        """,
}
WRITTEN = ["written-by-app", "written-by-module", "written-by-package"]


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def in_a_process(text):
    """What a program prints. Flower's parts of a node are imported there only."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("\n")[0]


@pytest.mark.process
@pytest.mark.xdist_group("nodes")
def test_a_hostile_app_runs_nothing_on_a_node(digits_tables, tmp_path, write_flower_app):
    """It does on the node beside it, which runs the code of apps as Flower does."""
    app, out = write_flower_app(tmp_path / "fedgraph", HOSTILE, 'out = ""'), tmp_path / "replies.json"
    (tmp_path / "small.toml").write_text(tomli_w.dumps(digits_tables))
    with FederationOnThisMachine(tmp_path / "federation", ["mercy", "county"]) as federation:
        federation.start_node("county", {"clients": "client-1"}, app_code=True)
        home, own = tmp_path / "homes" / "mercy", federation.credentials
        command = [
            *(program("fedgraph"), "node", str(tmp_path / "small.toml"), "--client", "client-2"),
            *("--superlink", federation.address, "--root-certificates", str(own.authority), "--verbose"),
            *("--private-key", str(own.private_key("mercy")), "--port", str(free_port())),
            *("--state-dir", str(tmp_path / "state")),
        ]
        log = tmp_path / "mercy.log"
        node = Running(start(command, flower_environment(home), log, cwd=tmp_path))
        try:
            until(lambda: "SuperNode ID" in log.read_text() or node.process.poll() is not None)
            federation.submit_app(app, f'out="{out}"').process.wait(200)
            said = federation.log.read_text(errors="replace")[-3000:] + log.read_text(errors="replace")[-3000:]
            assert out.is_file(), said
            replies = json.loads(out.read_text())
            until(lambda: "refused" in log.read_text(), 10)
            started = [
                word for each in psutil.Process(node.process.pid).children(recursive=True) for word in each.cmdline()
            ]
        finally:
            node.end()
    assert sorted(map(tuple, replies)) == [("config",), ("taken",)], said
    assert sorted(path.name for path in (tmp_path / "federation/homes/county").glob("written-*")) == WRITTEN
    assert not list(home.glob("written-*"))
    assert not list(home.rglob("*.py")), "the files of the app are not even unpacked"
    assert not any(word.endswith(("flwr-clientapp", "bin/flower-superexec")) for word in started)


@pytest.mark.process
@pytest.mark.xdist_group("nodes")
def test_weights_are_those_of_flowers_own_way(digits_tables, tmp_path, run_experiment):
    digits_tables["experiment"]["rounds"], digits_tables["data"]["clients"] = 1, 4
    known = json.loads((run_experiment(digits_tables, nodes=2).path / "summary.json").read_text())
    for app_code in (False, True):
        sites, folder = ["site-0", "site-1"], RunFolder.create(parse_experiment(digits_tables), tmp_path / "runs")
        with FederationOnThisMachine(tmp_path / f"federation-{app_code}", sites) as federation:
            for place, site in enumerate(sites):
                federation.start_node(site, {"partition-id": place, "num-partitions": 2}, app_code=app_code)
            log = federation.run(folder)
        assert folder.is_finished, log[-4000:]
        assert json.loads((folder.path / "summary.json").read_text())["weights_sha256"] == known["weights_sha256"]


@pytest.mark.process
@pytest.mark.xdist_group("nodes")
@pytest.mark.parametrize("victim", ["the node", "its executor"])
def test_nothing_is_left_when_one_of_them_is_killed(tmp_path, victim):
    with FederationOnThisMachine(tmp_path / "federation", ["site-0"]) as federation:
        node = federation.start_node("site-0", {"partition-id": 0, "num-partitions": 1})
        family = []

        def ready():
            family[:] = psutil.Process(node.process.pid).children(recursive=True)
            return len(family) == 2 and "SuperNode ID" in federation.log.read_text(errors="replace")

        until(ready)
        executor = next(each for each in family if "flower-superexec" in each.cmdline())
        until(lambda: executor.num_threads() and "fedgraph" in " ".join(executor.cmdline()))
        time.sleep(1)
        os.kill(node.process.pid if victim == "the node" else executor.pid, signal.SIGKILL)
        node.process.wait(60)
        assert victim == "the node" or "the executor of flower-supernode has ended" in federation.log.read_text()
        until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family), 20)


def test_flower_is_as_known_here_and_what_is_not_is_named():
    known = (
        "from fedgraph.commands.deployment import resident as r; print([r.unknown_part(), r.unknown_part(r._PAUSES)])"
    )
    assert in_a_process(known) == "['', '']"
    other = """
        from fedgraph.commands.deployment import resident
        import flwr.supernode.runtime.run_clientapp as runtime
        def run_clientapp(app):
            pass
        runtime.run_clientapp = run_clientapp
        print(resident.unknown_part())
        """
    assert in_a_process(other) == "install_from_fab in flwr.supernode.runtime.run_clientapp.run_clientapp"


def test_with_another_flower_its_own_way_is_gone_and_said(tmp_path):
    text = """
        import logging, sys
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        import flwr.supernode.cli as cli
        from fedgraph.commands.deployment import resident
        cli.flower_supernode = lambda: print(sys.argv)
        resident.unknown_part = lambda *uses: "shape"
        resident.run_node(["--insecure"])
        """
    said = in_a_process(text)
    assert said.startswith("the code that a run brings along runs on this node, because this version of Flower")


@pytest.mark.process
def test_a_process_that_was_forked_trains_as_any_other():
    """With several threads, too: the one that it was forked from has one, and had PyTorch start no other."""
    text = """
        import os, threading
        from fedgraph.commands.deployment import resident
        resident._import_all()
        resident._use_installed_app()
        import torch
        assert threading.active_count() == 1 and not torch.cuda.is_initialized()
        def trained():
            torch.set_num_threads(2)
            torch.manual_seed(0)
            x, w = torch.randn(512, 512), torch.randn(512, 512, requires_grad=True)
            for _ in range(20):
                loss = torch.tanh(x @ w).pow(2).sum().sqrt()
                (grad,) = torch.autograd.grad(loss, w)
                w = (w - grad).detach().requires_grad_()
            return str(float(w.sum()))
        found = []
        for _ in range(2):
            end, begin = os.pipe()
            if not os.fork():
                os.write(begin, trained().encode())
                os._exit(0)
            found.append(os.read(end, 100).decode())
        print(found[0] == found[1] == trained())
        """
    assert in_a_process(text) == "True"


def test_a_task_that_asks_too_early_waits():
    text = """
        from types import SimpleNamespace
        from fedgraph.commands.deployment.resident import _soon
        answers = [[], [], ["message"]]
        print(_soon(lambda request: SimpleNamespace(messages_list=answers.pop(0)), None, lambda f: f.messages_list))
        """
    assert in_a_process(text) == "namespace(messages_list=['message'])"


def test_there_are_a_few_tasks_at_once_and_a_task_ends_no_other():
    text = """
        import os, signal, subprocess, sys
        from fedgraph.commands.deployment import resident
        executor = resident._Executor(forking=True)
        children = [subprocess.Popen(["sleep", "60"]) for _ in range(resident._MOST_TASKS)]
        full = []
        for child in children:
            full.append(executor.get_eligible_capacity({"clientapp"}) == (set(), set()))
            executor._running.append(child.pid)
        full.append(executor.get_eligible_capacity({"clientapp"}) == (set(), set()))
        executor._owner += 1
        executor.close()
        alive = [child.poll() is None for child in children]
        executor._owner -= 1
        os.kill(children[0].pid, signal.SIGKILL)
        os.waitid(os.P_PID, children[0].pid, os.WEXITED | os.WNOWAIT)
        executor.reconcile()
        full.append(len(executor._running) < resident._MOST_TASKS)
        executor.close()
        print(full, alive, [child.wait(10) for child in children[1:]])
        """
    most = 4
    expected = [[False] * most + [True, True], [True] * most, [-signal.SIGTERM] * (most - 1)]
    assert in_a_process(text) == " ".join(map(str, [expected[0], expected[1], [int(each) for each in expected[2]]]))
