"""The screen and the log of a node and of a server, of a program that writes what Flower writes."""

import io
import json
import logging
import os
import sys

import pytest
from rich.console import Console

from fedgraph.commands.deployment.foreground import run_to_the_end
from fedgraph.commands.deployment.node_command import node_screen
from fedgraph.commands.deployment.screen import Screen
from fedgraph.commands.deployment.server_command import Names, server_screen
from fedgraph.support.errors import RunError
from fedgraph.support.status import STATUS_FILE

START = ["\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode", "INFO:     Started server process [28870]"]
READY = "\x1b[92mINFO \x1b[0m:      SuperNode ID: 2112001317784745073"
LOST = "\x1b[93mWARNING \x1b[0m:   Connection attempt failed, retrying in 0.74 seconds"
AGAIN = "\x1b[92mINFO \x1b[0m:      Connection successful after 19.45 seconds and 6 tries."
AMISS = ["\x1b[91mERROR \x1b[0m:     no such key", "Traceback (most recent call last):", "KeyError: 'x'"]


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """``seen(make, lines)``: what the screen shows of lines of a program; tuples are status lines of a process."""

    monkeypatch.setattr("fedgraph.federation.grids.program", lambda name: name)

    def run(make, lines, out=()):
        shown = io.StringIO()
        screen = make(Console(file=shown, width=200), tmp_path / "logs" / "flower.log")
        steps = [
            f"import os, sys, time; status = open(os.environ['{STATUS_FILE}'], 'a')",
            *(f"print({line!r})" for line in out),
        ]
        for line in lines:
            if isinstance(line, tuple):
                text = json.dumps({"text": line[0], "level": line[1], "once": ""}) + "\n"
                steps += ["time.sleep(0.7)", f"status.write({text!r}); status.flush()", "time.sleep(0.7)"]
            else:
                steps.append(f"print({line!r}, file=sys.stderr)")
        program = [sys.executable, "-c", "\n".join(steps)]
        assert run_to_the_end(program, dict(os.environ), screen=screen) == 0
        return shown.getvalue().splitlines()

    return run


def of_a_node(console, log):
    return node_screen(console, log, False, "lab.example:8443", "mercy")


def test_a_node_says_that_it_is_connected_what_it_did_and_that_it_lost_the_server(seen, tmp_path):
    did = ("trained round 2 on 210 rows (1.3 s)", logging.INFO)
    lines = [*START, READY, did, LOST, LOST, LOST, AGAIN, ("refused: no such client", logging.ERROR)]
    assert seen(of_a_node, lines, out=["Successfully installed fedgraph-run"]) == [
        "connected to lab.example:8443 as mercy, waiting for a run",
        "trained round 2 on 210 rows (1.3 s)",
        "lost the server, trying again",
        "connected again",
        "refused: no such client",
    ]
    log = (tmp_path / "logs" / "flower.log").read_text()
    assert log.count("Connection attempt failed") == 3
    for text in ("Starting Flower SuperNode", "Successfully installed", "trained round 2", "refused: no such client"):
        assert text in log
    assert "\x1b" not in log


def test_a_node_whose_flower_has_other_words_is_connected_once_it_answers(seen):
    lines = [*START, "INFO : Node 2112 is up", ("evaluated test after round 3", logging.INFO)]
    assert seen(of_a_node, lines) == [
        "connected to lab.example:8443 as mercy, waiting for a run",
        "evaluated test after round 3",
    ]
    assert seen(of_a_node, [*START, "WARNING : the server is gone"]) == ["WARNING : the server is gone"]


def test_a_node_that_has_not_been_connected_yet_cannot_reach_the_server(seen):
    assert seen(of_a_node, [*START, LOST, LOST]) == ["cannot reach the server, trying again"]


def test_errors_warnings_and_what_nobody_knows_are_shown(seen):
    assert seen(of_a_node, [*START, *AMISS, "Killed"]) == [
        "ERROR :     no such key", "Traceback (most recent call last):", "KeyError: 'x'", "Killed"
    ]  # fmt: skip


def test_with_verbose_everything_is_shown(seen):
    shown = seen(lambda console, log: node_screen(console, log, True, "lab:1", "mercy"), [*START, LOST], ["installed"])
    assert sorted(shown) == sorted([
        "INFO :      Starting Flower SuperNode", "INFO:     Started server process [28870]",
        "WARNING :   Connection attempt failed, retrying in 0.74 seconds", "installed",
    ])  # fmt: skip


def test_a_server_shows_nodes_by_name_and_what_runs_tell(seen, tmp_path):
    Names(tmp_path / "superlink.db.nodes.json").add({"12": "mercy"})

    def of_a_server(console, log):
        return server_screen(console, log, False, Names(tmp_path / "superlink.db.nodes.json"))

    lines = [
        "2026-11-24T15:00:34.163Z INFO [uvicorn.access] 127.0.0.1:40818 - \"POST /v1/fleet/get-run HTTP/1.1\" 200",
        "\x1b[92mINFO \x1b[0m:      [Fleet.ActivateNode] Activated node_id=12",
        "\x1b[92mINFO \x1b[0m:      [Fleet.ActivateNode] Activated node_id=13",
        "\x1b[91mERROR \x1b[0m:     Public key already in use",
        ("round 2 of 10: 3 of 3 clients (1.0 s)", logging.INFO),
        "\x1b[92mINFO \x1b[0m:      [Fleet.DeactivateNode] Deactivated node_id=12",
        LOST,
    ]  # fmt: skip
    assert seen(of_a_server, lines) == [
        "mercy connected",
        "node 13 connected",
        "round 2 of 10: 3 of 3 clients (1.0 s)",
        "mercy left",
        "WARNING :   Connection attempt failed, retrying in 0.74 seconds",
    ]
    (tmp_path / "superlink.db.nodes.json").write_text("{")
    assert seen(of_a_server, lines)[0] == "node 12 connected"


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write the log .*file/flower.log .*--log"):
        Screen(Console(quiet=True), tmp_path / "file" / "flower.log", False, {})
