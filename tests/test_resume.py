"""A run that is killed and resumed ends with the weights of one that was never stopped."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import tomli_w

from fedgraph.federation.grids.programs import flower_environment


@pytest.fixture
def tables(digits_tables):
    """Momentum that clients keep between rounds, and early stopping that never fires: both must survive a kill."""
    digits_tables["experiment"]["rounds"] = 40
    digits_tables["train"] |= {"momentum": 0.5, "keep-optimizer": True, "learning-rate": 0.02}
    digits_tables["evaluation"] = {"monitor": "validation/loss", "patience": 1000}
    return digits_tables


def command(*arguments):
    return [sys.executable, "-c", "from fedgraph.commands.cli import app; app()", "run", *map(str, arguments)]


def rounds_done(folder, phase="training"):
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(f'"phase": "{phase}"' in line for line in lines)


def kill_after(rounds, extra_seconds, arguments, out, environment, phase="training"):
    """Start a run, SIGKILL it once so many rounds are recorded and a little later; returns its folder."""
    process = subprocess.Popen(
        command(*arguments), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        folders = [path.parent for path in out.glob("*/experiment.toml")]
        if folders and rounds_done(folders[0], phase) >= rounds:
            break
        time.sleep(0.002)
    time.sleep(extra_seconds)
    assert process.poll() is None, process.stderr.read().decode()[-3000:]
    for pid in [process.pid, *descendants(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    return folders[0]


def descendants(pid):
    """All children of a process, and theirs: on Ray the strategy does not run in the process that was started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children = {}
    for line in listed.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    found = list(children.get(pid, []))
    for child in found:
        found.extend(children.get(child, []))
    return found


def killed_three_times(tables, tmp_path, data_dir, grid, points, seed):
    """Kill a run at a round within each of ``points``, going on every time; returns the folder of the finished run."""
    draw = random.Random(seed)
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(tables))
    environment = flower_environment(tmp_path / "home", FEDGRAPH_DATA=str(data_dir))
    out = tmp_path / "out"
    arguments = [tmp_path / "experiment.toml", "--out", out, "--grid", grid]
    for first, last in points:
        folder = kill_after(draw.randrange(first, last), draw.random() * 0.05, arguments, out, environment)
        assert not (folder / "summary.json").exists()
        assert first <= rounds_done(folder) < tables["experiment"]["rounds"]
        arguments = ["--resume", folder, "--grid", grid]
    resumed = subprocess.run(command(*arguments), env=environment, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr[-3000:] + resumed.stdout[-3000:]
    return folder


def check(uninterrupted, tables, folder):
    whole, resumed = (json.loads((path / "summary.json").read_text()) for path in (uninterrupted.path, folder))
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["rounds"] == tables["experiment"]["rounds"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line["round"] for line in lines if line["phase"] == "training"]
    assert trained == list(range(1, resumed["rounds"] + 1)), "every round is recorded once"
    evaluated = [line["round"] for line in lines if line["phase"] == "evaluation" and line["split"] == "test"]
    assert evaluated[: resumed["rounds"] + 1] == list(range(resumed["rounds"] + 1))


@pytest.mark.process
def test_killed_in_process(tables, tmp_path, data_dir, run_experiment):
    folder = killed_three_times(tables, tmp_path, data_dir, "local", [(0, 10), (12, 22), (24, 35)], seed=1)
    check(run_experiment(tables), tables, folder)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_killed_on_ray(tables, tmp_path, data_dir, run_experiment):
    tables["experiment"]["rounds"] = 12
    folder = killed_three_times(tables, tmp_path, data_dir, "flower", [(0, 3), (4, 6), (7, 9)], seed=4)
    check(run_experiment(tables), tables, folder)


@pytest.mark.process
def test_killed_while_the_server_learns_from_embeddings(patches_tables, tmp_path, data_dir, run_experiment):
    """F3: what the owners have sent once is not asked for again."""
    patches_tables["f3"] |= {"epochs": 150, "patience": 150}
    (tmp_path / "experiment.toml").write_text(tomli_w.dumps(patches_tables))
    environment = flower_environment(tmp_path / "home", FEDGRAPH_DATA=str(data_dir))
    out = tmp_path / "out"
    folder = kill_after(2, 0.0, [tmp_path / "experiment.toml", "--out", out], out, environment, "fusion")
    assert 2 <= rounds_done(folder, "fusion") < 150
    exchanged = (folder / "checkpoint.safetensors").stat().st_mtime_ns
    resumed = subprocess.run(command("--resume", folder), env=environment, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr[-3000:] + resumed.stdout[-3000:]
    assert (folder / "checkpoint.safetensors").stat().st_mtime_ns == exchanged, "written after an exchange"
    whole = run_experiment(patches_tables)
    found, expected = json.loads((folder / "summary.json").read_text()), whole.summary()
    assert found["exchanges"] == expected["exchanges"] == 1
    for name in ("weights_sha256", "metrics", "fusion", "bytes_up"):
        assert found[name] == expected[name], name
    assert (folder / "predictions.csv").read_bytes() == (whole.path / "predictions.csv").read_bytes()
    assert rounds_done(folder, "fusion") == 150


@pytest.mark.process
def test_a_finished_run_is_not_run_again(digits_tables, tmp_path, run_experiment):
    folder = run_experiment(digits_tables)
    again = subprocess.run(command("--resume", folder.path), capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "is finished" in again.stderr
