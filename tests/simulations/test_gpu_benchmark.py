"""The benchmark of GPUs, on a CPU: parts that fail, that are cut off and that go on, and all of it with tiny sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import ClassVar

import psutil
import pytest
import torch
from typer.testing import CliRunner

from fedgraph.reproduce import ResultFile as Lines
from fedgraph.simulations.benchmarks.__main__ import app
from fedgraph.simulations.benchmarks.gpu import command
from fedgraph.simulations.benchmarks.gpu.agreement import LARGEST_DIFFERENCE
from fedgraph.simulations.benchmarks.gpu.found import Found, compared
from fedgraph.simulations.benchmarks.gpu.parts import PARTS, Part
from fedgraph.simulations.benchmarks.gpu.result_file import ResultFile
from fedgraph.simulations.benchmarks.gpu.worker import Worker
from fedgraph.simulations.benchmarks.measure import Timing
from fedgraph.support.errors import ExperimentError

CONDITIONS = {"device": "cpu", "rehearsal": True, "tiny": True}


def invoke(*arguments):
    result = CliRunner().invoke(app, ["gpu", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


class Stub:
    """In place of the process: what each part does, by its function, and which were asked for."""

    outcomes: ClassVar[dict] = {}
    asked: ClassVar[list] = []

    def __init__(self, log):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, work, arguments, seconds):
        name = work.rpartition(".")[2]
        self.asked.append(name)
        outcome = self.outcomes.get(name, Found({f"row of {name}": {"ms": 1.5}}, [f"said of {name}"]))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(command, "Worker", Stub)
    monkeypatch.setattr(command, "PARTS", {name: Part(name, name, 40) for name in ("a", "b", "c/1", "c/2")})
    monkeypatch.setattr(Stub, "outcomes", {})
    monkeypatch.setattr(Stub, "asked", [])
    return Stub


def test_a_part_that_fails_does_not_stop_the_rest_and_is_tried_again(stub, tmp_path):
    out = tmp_path / "there" / "gpu.json"
    stub.outcomes["b"] = "CudaError: no such kernel"
    said = invoke("--out", out, "--device", "cpu", "--tiny")
    assert stub.asked == ["a", "b", "c/1", "c/2"]
    assert "A rehearsal on a CPU" in said
    assert "failed: CudaError: no such kernel" in said
    assert "3 of 4 parts are in" in said
    assert "row of c/1" in said
    assert "said of a" in said
    written = json.loads(out.read_text())
    assert written["rehearsal"] is True
    assert written["parts"]["b"]["error"] == "CudaError: no such kernel"
    stub.asked.clear()
    stub.outcomes.clear()
    said = invoke("--out", out, "--device", "cpu", "--tiny")
    assert stub.asked == ["b"]
    assert "4 of 4 parts are in" in said


def test_what_the_budget_cuts_off_goes_on_with_the_next_call(stub, tmp_path):
    out = tmp_path / "gpu.json"
    stub.outcomes["c/1"] = TimeoutError()
    said = invoke("--out", out, "--device", "cpu", "--tiny", "--budget", 20)
    assert stub.asked == ["a", "b", "c/1"]
    assert "Left for the next call: c/1, c/2." in said
    assert list(json.loads(out.read_text())["parts"]) == ["a", "b"]
    stub.outcomes.clear()
    stub.asked.clear()
    invoke("--out", out, "--device", "cpu", "--tiny", "--budget", 20)
    assert stub.asked == ["c/1", "c/2"]


def test_a_part_that_takes_too_long_by_itself_has_failed(stub, tmp_path):
    stub.outcomes["a"] = TimeoutError()
    said = invoke("--out", tmp_path / "gpu.json", "--device", "cpu", "--tiny", "--budget", 400)
    assert "failed: it did not end within 40 seconds" in said
    assert stub.asked == ["a", "b", "c/1", "c/2"]


def test_parts_that_would_not_fit_into_the_budget_are_left_for_the_next_call(stub, tmp_path):
    said = invoke("--out", tmp_path / "gpu.json", "--device", "cpu", "--tiny", "--budget", 9)
    assert stub.asked == []
    assert "0 of 4 parts" in said


def test_some_parts_and_their_list(stub, tmp_path):
    invoke("--out", tmp_path / "gpu.json", "--device", "cpu", "--part", "c", "--part", "a")
    assert stub.asked == ["a", "c/1", "c/2"]
    assert "c/2: c/2, at most 40 s" in invoke("--out", tmp_path / "other.json", "--list")
    with pytest.raises(ExperimentError, match="--part d: there are a, b, c;"):
        invoke("--out", tmp_path / "gpu.json", "--part", "d")


def test_a_gpu_that_is_not_there_and_another_device(stub, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExperimentError, match="no CUDA device that PyTorch can use"):
        invoke("--out", tmp_path / "gpu.json")
    with pytest.raises(ExperimentError, match="it is cuda or cpu"):
        invoke("--out", tmp_path / "gpu.json", "--device", "tpu")
    assert stub.asked == []


def test_results_are_written_from_the_file_without_a_gpu(stub, tmp_path):
    out, results = tmp_path / "gpu.json", tmp_path / "results.csv"
    machine = {"packages": {"torch": "2.11.0"}}
    file = ResultFile(out, {"device": "H100", "rehearsal": False, "tiny": False}, machine)
    file.add("a", "a", Found({"loop": {"ms": [3.0, 1.0, 2.0], "said": "nothing"}}), 1.0)
    file.add("c/1", "c", Found({"one": {"ms": 7.12345}}), 1.0)
    file.add("b", "b", "an error", 1.0)
    before = out.read_text()
    said = invoke("--out", out, "--show", "--results", results)
    assert stub.asked == []
    assert out.read_text() == before
    assert "2.00 (1.00 to 3.00)" in said
    assert [(*line.place, line.value, line.source) for line in Lines(results).lines] == [
        ("loop", "a", "ms", "2", "benchmarks gpu, H100, PyTorch 2.11.0"),
        ("loop", "a", "ms, least", "1", "benchmarks gpu, H100, PyTorch 2.11.0"),
        ("loop", "a", "ms, most", "3", "benchmarks gpu, H100, PyTorch 2.11.0"),
        ("one", "c", "ms", "7.123", "benchmarks gpu, H100, PyTorch 2.11.0"),
    ]


def test_a_rehearsal_gives_no_results(stub, tmp_path):
    out, results = tmp_path / "gpu.json", tmp_path / "results.csv"
    with pytest.raises(ExperimentError, match="a rehearsal on a CPU says nothing about a GPU"):
        invoke("--out", out, "--device", "cpu", "--results", results)
    assert stub.asked == []
    with pytest.raises(ExperimentError, match="there is no such file"):
        invoke("--out", out, "--show")
    ResultFile(out, CONDITIONS, {}).add("a", "a", Found({"loop": {"ms": 1.0}}), 1.0)
    with pytest.raises(ExperimentError, match=r"gpu\.json is a rehearsal"):
        invoke("--out", out, "--show", "--results", results)
    assert not results.exists()


@pytest.mark.parametrize("content", ["{}", "not JSON", "[1]", '{"benchmark": "rounds", "parts": {}}'])
def test_other_files_are_not_overwritten(content, tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text(content)
    with pytest.raises(ExperimentError, match="name another"):
        ResultFile(path, CONDITIONS, {})
    assert path.read_text() == content


def test_parts_of_a_rehearsal_are_not_taken_for_those_of_a_gpu(tmp_path):
    path = tmp_path / "gpu.json"
    ResultFile(path, CONDITIONS, {}).add("a", "title", Found({}), 1.0)
    assert ResultFile(path, CONDITIONS, {}).done("a")
    with pytest.raises(ExperimentError, match="its parts were measured with"):
        ResultFile(path, {"device": "H100", "rehearsal": False, "tiny": False}, {})


def test_every_part_names_a_function_and_its_arguments():
    from importlib import import_module
    from inspect import signature

    for part in PARTS.values():
        module, _, function = part.work.partition(":")
        found = getattr(import_module(module), function)
        signature(found).bind(device="cuda", folder="", **part.sizes)
        signature(found).bind(device="cpu", folder="", **part.tiny)


def test_ratios_are_of_the_same_turn():
    turns = iter([Timing(1.0, 0), Timing(2.0, 0), Timing(10.0, 0), Timing(5.0, 0)])
    found = compared({"ours": lambda: [next(turns)], "loop": lambda: [next(turns)]}, 2, "loop")
    assert found.rows["ours"] == {"ms": [1000.0, 10_000.0], "to loop": [0.5, 2.0]}
    cells = [next(iter(column.cells)) for column in found.table("all").columns]
    assert cells == ["ours", "5,500 (1,000 to 10,000)", "1.25 (0.500 to 2.00)"]


def test_what_is_shown_and_what_is_a_number():
    found = Found({"row": {"text": "12", "true": True, "small": 4.2e-8, "whole": 3, "several": [3.0, 1.0, 2.0]}})
    assert [next(iter(column.cells)) for column in found.table("").columns[1:]] == [
        "12", "yes", "4.2e-08", "3", "2.00 (1.00 to 3.00)",
    ]  # fmt: skip
    assert list(found.numbers()) == [
        ("row", "true", 1.0), ("row", "small", 4.2e-8), ("row", "whole", 3.0), ("row", "several", 2.0),
        ("row", "several, least", 1.0), ("row", "several, most", 3.0),
    ]  # fmt: skip


def test_a_process_goes_on_after_a_part_that_failed_died_or_took_too_long(tmp_path):
    nothing = f"{Found.__module__}:Found", {"rows": {}}
    with Worker(tmp_path / "log") as worker:
        assert worker.run(*nothing, 60) == Found({})
        first = worker._process.pid
        assert worker.run("math:sqrt", {"of": 2}, 60).startswith("TypeError: ")
        assert worker.run("os:_exit", {"status": 3}, 60).startswith("the process ended with exit code 3; see ")
        assert worker.run(*nothing, 60) == Found({})
        assert worker._process.pid != first
        with pytest.raises(TimeoutError):
            worker.run("subprocess:run", {"args": ["sleep", "77.5"]}, 2)
        assert worker.run(*nothing, 60) == Found({})
        last = worker._process.pid
    assert not psutil.pid_exists(last)
    sleeping = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
    assert ["sleep", "77.5"] not in sleeping
    assert "TypeError" in (tmp_path / "log").read_text()


def command_line(out, *more):
    whole = [sys.executable, "-m", "fedgraph.simulations.benchmarks", "gpu", "--out", out, "--device", "cpu", "--tiny"]
    return [*map(str, whole), *map(str, more)]


def test_a_command_that_was_killed_goes_on(tmp_path):
    out, parts = tmp_path / "gpu.json", ("machine", "agreement/mlp", "agreement/gru")
    chosen = [word for part in parts for word in ("--part", part)]
    with subprocess.Popen(command_line(out, *chosen), stdout=subprocess.DEVNULL) as started:
        deadline = time.monotonic() + 120
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        started.kill()
    before = json.loads(out.read_text())["parts"]
    assert 1 <= len(before) < len(parts)
    done = subprocess.run(command_line(out, *chosen), capture_output=True, text=True, check=True)
    after = json.loads(out.read_text())["parts"]
    assert list(after) == list(parts)
    assert all("rows" in part for part in after.values())
    assert all(after[name] == part for name, part in before.items())
    assert "machine [" not in done.stdout  # it was not run again


def test_all_of_it_with_tiny_sizes(tmp_path):
    out = tmp_path / "gpu.json"
    environment = {name: value for name, value in os.environ.items() if name != "FEDGRAPH_DATA"}
    done = subprocess.run(
        command_line(out, "--budget", 1200), env=environment, capture_output=True, text=True, check=True
    )
    parts = json.loads(out.read_text())["parts"]
    assert list(parts) == list(PARTS)
    assert {name: part["error"] for name, part in parts.items() if "error" in part} == {}, done.stdout
    for kind in ("mlp", "gru", "resnet9", "gcn"):
        found = parts[f"agreement/{kind}"]["raw"]
        assert found["difference"] == 0.0
        assert found["rounding alone"] <= LARGEST_DIFFERENCE
        assert (found["rounding alone"] == 0) == (kind == "gcn")
    assert f"{len(PARTS)} of {len(PARTS)} parts are in" in done.stdout
