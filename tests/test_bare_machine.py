"""On a machine with neither git nor a C++ compiler, from any folder: everything works, and what lacks is said once."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import tomli_w

from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.federation.grids.local_flower import (
    connection_file,
    free_port,
    start,
    write_app,
)
from fedgraph.federation.grids.programs import flower_environment, program
from fedgraph.simulations.benchmarks.real_nodes import Running

_LACKING = re.compile(r"git.*|(.*-)?(c\+\+|g\+\+|gcc|clang(\+\+)?)(-.*)?|cc")
NO_COMPILER = "there is no C++ compiler"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The environment of a machine that has all the programs of this one but git and compilers."""
    programs = tmp_path_factory.mktemp("programs")
    for folder in os.environ["PATH"].split(os.pathsep):
        for found in Path(folder).glob("*") if folder else ():
            if found.is_file() and not _LACKING.fullmatch(found.name) and not (programs / found.name).exists():
                (programs / found.name).symlink_to(found)
    assert shutil.which("sh", path=str(programs))
    assert not any(shutil.which(name, path=str(programs)) for name in ("git", "c++", "g++", "cc", "clang++"))
    home = tmp_path_factory.mktemp("home")
    places = {"PATH": str(programs), "HOME": str(home), "XDG_CACHE_HOME": str(home), "COLUMNS": "200"}
    return {**flower_environment(), **places, "FEDGRAPH_DATA": str(home / "no-data")}


@pytest.fixture
def file(digits_tables, tmp_path):
    digits_tables["train"] |= {"compile": "native"}
    digits_tables["model"] = {"name": "mlp", "hidden": [4]}
    digits_tables["experiment"] |= {"rounds": 1}
    (tmp_path / "small.toml").write_text(tomli_w.dumps(digits_tables))
    return tmp_path / "small.toml"


def fedgraph(environment, *arguments, cwd="/", status=0):
    command = [program("fedgraph"), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == status, said[-3000:]
    assert "Traceback" not in said
    return said


def weights(out):
    (summary,) = out.glob("*/summary.json")
    return json.loads(summary.read_text())["weights_sha256"]


@pytest.mark.process
def test_a_run_says_once_that_there_is_no_compiler_and_comes_to_the_same(bare, file, tmp_path):
    said = fedgraph(bare, "run", file, "--out", tmp_path / "bare")
    assert said.count(NO_COMPILER) == 1
    (environment,) = (tmp_path / "bare").glob("*/environment.json")
    assert json.loads(environment.read_text())["commit"] is None
    said = fedgraph(os.environ, "run", file, "--out", tmp_path / "plain", "--set", "train.compile=false")
    assert NO_COMPILER not in said
    assert weights(tmp_path / "bare") == weights(tmp_path / "plain")


@pytest.mark.process
def test_where_nothing_can_be_written_this_is_what_is_said(bare, file):
    assert "cannot create the run folder /proc/runs" in fedgraph(bare, "run", file, cwd="/proc", status=1)
    node = ("node", file, "--client", "client-1", "--insecure", "--check")
    assert "Checked, not started." in fedgraph(bare, *node, cwd="/proc")
    server = ("server", "--insecure", "--host", "127.0.0.1", "--port", free_port())
    assert "cannot write" in fedgraph(bare, *server, cwd="/proc", status=1)


@pytest.mark.process
def test_a_table_of_a_paper(bare, file, tmp_path):
    table = {
        "table": {"title": "Small", "seeds": [0], "metrics": [{"title": "mean", "value": "test/accuracy"}]},
        "columns": [{"key": "digits", "title": "Digits", "experiment": str(file), "differs": "{data}"}],
        "profiles": {"small": {"differs": "one round"}},
        "rows": [{"label": "FedAvg", "method": "fedavg", "published": {"digits": [12.5]}}],
    }
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(table))
    said = fedgraph(bare, "reproduce", tmp_path / "tiny.toml", "--out", tmp_path / "tables")
    assert said.count(NO_COMPILER) == 1
    assert "FedAvg" in said


@pytest.mark.process
@pytest.mark.xdist_group("flower")
def test_nodes_on_ray_say_it_once_too(bare, file, tmp_path):
    said = fedgraph(bare, "run", file, "--grid", "flower", "--nodes", "2", "--out", tmp_path / "bare")
    assert said.count(NO_COMPILER) == 1
    fedgraph(os.environ, "run", file, "--out", tmp_path / "plain", "--set", "train.compile=false")
    assert weights(tmp_path / "bare") == weights(tmp_path / "plain")


# ---- a server and a node that are watched


def wait_for(screen, text, started, seconds=120):
    deadline = time.monotonic() + seconds
    while text not in screen.read_text():
        assert started.poll() is None, screen.read_text()
        assert time.monotonic() < deadline, f"no '{text}' in:\n{screen.read_text()}"
        time.sleep(0.3)


@pytest.mark.process
@pytest.mark.xdist_group("nodes")
def test_a_server_and_a_node_say_in_short_lines_what_they_do(bare, file, tmp_path):
    """From the first connection over a run, a lost server and its return to the end."""
    made, port = make_test_credentials(tmp_path / "made", ["127.0.0.1"], ["mercy"]), free_port()
    address, here = f"127.0.0.1:{port}", tmp_path / "a folder"
    here.mkdir()
    keys = ["--certificate", made.certificate, "--key", made.key, "--authority", made.authority]
    keys += ["--public-keys", made.public_keys, "--host", "127.0.0.1", "--port", port]
    hosted = [name for index in range(4) for name in ("--client", f"client-{index}")]
    node = [*hosted, "--root-certificates", made.authority, "--private-key", made.private_key("mercy")]
    node += ["--superlink", address, "--port", free_port(), "--state-dir", here / "state"]
    running = []

    def begin(screen, *arguments):
        command = [program("fedgraph"), *map(str, arguments)]
        running.append(Running(start(command, bare, tmp_path / screen, cwd=here)))
        return running[-1].process

    served, shown = tmp_path / "server.txt", tmp_path / "node.txt"
    try:
        server = begin("server.txt", "server", *keys)
        wait_for(served, f"listening on {address}", server)
        site = begin("node.txt", "node", file, *node)
        wait_for(served, "mercy connected", server)
        wait_for(shown, f"connected to {address} as client-0, client-1, client-2, client-3, waiting for a run", site)
        write_app(tmp_path / "app")
        connection_file(tmp_path / "researcher", address, made.authority)
        settings = f'experiment="{file}" output-dir="{here / "runs"}"'
        submit = [program("flwr"), "run", str(tmp_path / "app"), "here", "--stream", "-c", settings]
        environment = {**bare, "FLWR_HOME": str(tmp_path / "researcher")}
        subprocess.run(submit, env=environment, capture_output=True, check=True, timeout=240)
        wait_for(served, " ended: ", server)
        running[0].end()
        wait_for(shown, "lost the server, trying again", site)
        server = begin("server.txt", "server", *keys)
        wait_for(shown, "connected again", site)
        running[1].end()
        wait_for(served, "mercy left", server)
    finally:
        for each in running:
            each.end()
    said, told = shown.read_text(), served.read_text()
    assert re.search(r"^answered the roll call as client-0, client-1, client-2, client-3 \(", said, re.MULTILINE)
    assert re.search(r"^(evaluated .*, )?trained round 1 on [\d,]+ rows \(\d+\.\d s\)$", said, re.MULTILINE)
    assert re.search(r"^evaluated .* after round 1 \(", said, re.MULTILINE)
    assert said.count(NO_COMPILER) == 1, "of several processes"
    assert re.search(r"^run \d+ started: small, sfl$", told, re.MULTILINE)
    assert re.search(r"^round 1 of 1: 4 of 4 clients \(", told, re.MULTILINE)
    assert told.count("mercy: may join") == told.count("mercy: known already") == 1
    for text, log in ((said, next(here.glob("state/logs/node-*.log"))), (told, here / "superlink.log")):
        assert f"Flower's output is in {log}" in text or f"Flower's output is in {log.name}" in text
        assert "INFO" not in text
        assert "ERROR" not in text
        assert "INFO" in log.read_text()
