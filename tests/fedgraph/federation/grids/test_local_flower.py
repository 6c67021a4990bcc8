import os
import signal
import socket
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

from fedgraph.federation.grids import local_flower
from fedgraph.federation.grids.local_flower import (
    connection_file,
    end_group,
    free_port,
    kill_all,
    offered,
    process,
    run_on_flower,
    start,
    wait_for_superlink,
    write_app,
)
from fedgraph.federation.grids.programs import flower_environment
from fedgraph.support.errors import RunError


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_free_port_can_be_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))


@pytest.mark.process
def test_the_app_names_components_that_exist(tmp_path):
    write_app(tmp_path / "app")
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    server, client = (component.partition(":")[::2] for component in app["components"].values())
    code = (
        f"import {server[0]}, {client[0]}; print(type({'.'.join(server)}).__name__, type({'.'.join(client)}).__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "app",
        env=flower_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["ServerApp", "ClientApp"]
    assert set(app["config"]) == {"experiment", "set", "data-dir", "output-dir", "seed"}


def test_connection_file(tmp_path):
    for authority, how in (
        (None, {"insecure": True}),
        (tmp_path / "ca.crt", {"root-certificates": f"{tmp_path}/ca.crt"}),
    ):
        connection_file(tmp_path, "127.0.0.1:1234", authority)
        link = tomllib.loads((tmp_path / "config.toml").read_text())["superlink"]
        assert link[link["default"]] == {"address": "127.0.0.1:1234", **how}


@pytest.mark.process
def test_a_process_ends_with_its_children_when_the_block_ends(tmp_path):
    code = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    with process([sys.executable, "-c", code], os.environ, log) as started:
        assert wait_until(lambda: log.read_text().endswith("\n"))
        child = int(log.read_text())
        assert alive(started.pid)
        assert alive(child)
    assert started.poll() is not None
    assert wait_until(lambda: not alive(child))


@pytest.mark.process
def test_a_process_ends_when_the_block_fails_or_it_ended_before(tmp_path):
    with pytest.raises(ZeroDivisionError), process(["sleep", "60"], os.environ, tmp_path / "log") as started:
        raise ZeroDivisionError
    assert started.poll() == -signal.SIGTERM
    with process(["true"], os.environ, tmp_path / "log") as started:
        started.wait()
    assert started.poll() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.process
def test_a_process_ends_when_its_parent_is_killed(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path; from fedgraph.federation.grids.local_flower import process\n"
        "with process(['sleep', '60'], os.environ, Path(sys.argv[1])) as p: print(p.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.communicate()
    assert wait_until(lambda: not alive(child))


@pytest.mark.process
def test_a_superlink_that_does_not_start_shows_its_log(tmp_path):
    log = tmp_path / "log"
    with process(["sh", "-c", "echo the port is taken; exit 3"], os.environ, log) as started:
        started.wait()
        with pytest.raises(RunError, match="the SuperLink did not start:\nthe port is taken"):
            wait_for_superlink(free_port(), started, log)


def stand_ins(folder, monkeypatch, flwr):
    """Programs in place of Flower's: a SuperLink that answers, and ``flwr`` as given."""
    folder.mkdir()
    superlink = (
        f"#!{sys.executable}\nimport http.server, sys\nport = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', port), Answer).serve_forever()\n"
    )
    for name, text in (("flower-superlink", superlink), ("flwr", f"#!/bin/sh\n{flwr}\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setattr(local_flower, "program", lambda name: str(folder / name))


CONFIG = {"experiment": "e.toml", "set": "output.resume='/x y'", "data-dir": "/data"}


def test_what_flower_is_started_with(tmp_path, monkeypatch):
    stand_ins(
        tmp_path / "bin", monkeypatch, 'printf "%s\\n" "$@"; echo state=$FEDGRAPH_STATE; cat $FLWR_HOME/config.toml'
    )
    log = tmp_path / "flower.log"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(local_flower.tempfile, "tempdir", str(scratch))
    run_on_flower(CONFIG, 5, log, {"FEDGRAPH_STATE": str(tmp_path / "state")})
    said = log.read_text()
    assert "num-supernodes=5 client-resources-num-cpus=1" in said
    (settings,) = (line for line in said.splitlines() if line.startswith("experiment="))
    assert tomllib.loads(settings.replace('" ', '"\n')) == CONFIG
    assert f"state={tmp_path / 'state'}" in said
    assert 'address = "127.0.0.1:' in said
    assert list(scratch.iterdir()) == []


def test_places_of_the_nodes_go_before_what_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", "/another")
    stand_ins(tmp_path / "bin", monkeypatch, "echo data=$FEDGRAPH_DATA")
    run_on_flower(CONFIG, 1, tmp_path / "log", {"FEDGRAPH_DATA": "/data"})
    assert "data=/data" in (tmp_path / "log").read_text()


@pytest.mark.process
def test_a_child_with_a_session_of_its_own_does_not_outlive_the_process_that_started_it(tmp_path):
    """As Flower's own programs start their children."""
    code = (
        "import subprocess, time\n"
        "p = subprocess.Popen(['sh', '-c', 'trap \"\" TERM; sleep 60'], start_new_session=True)\n"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    for end in (end_group, kill_all):
        log = tmp_path / f"{end.__name__}.log"
        started = start([sys.executable, "-c", code], dict(os.environ), log)
        while not log.read_text().strip():
            time.sleep(0.05)
        pid = int(log.read_text())
        assert alive(pid)
        end(started)
        assert wait_until(lambda pid=pid: not alive(pid))
        end(started)


def test_options_are_found_by_what_the_installed_version_offers():
    assert offered("flower-superlink", "--port", "--no-such-option", "--database") == ["--port", "--database"]


@pytest.mark.parametrize(
    ("gpus", "cores", "nodes", "share"),
    [(0, 16, 4, None), (1, 16, 1, 0.9999), (1, 16, 4, 0.2499), (1, 16, 10, 0.0999), (1, 16, 207, 0.0624),
     (4, 16, 2, 2.0), (3, 16, 2, 0.9999)],
)  # fmt: skip
def test_nodes_on_ray_share_the_gpus(gpus, cores, nodes, share, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    told = local_flower._gpu_resources(nodes)
    assert told == ("" if share is None else f"client-resources-num-gpus={share}")
    if share is not None:
        # As Flower counts, which reads it as float32.
        assert int(gpus / np.float32(share)) >= min(nodes, cores)
