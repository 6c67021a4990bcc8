"""A few of the runs with faults that ``python -m disturbances`` makes by the hundred, and all scenarios."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
import tomli_w
from disturbances.in_process import InProcess
from disturbances.scenario import Fault, Holds, Scenario, read_scenario
from disturbances.suites import InProcessScenes, messages, play
from disturbances.system import compiler
from disturbances.trial import leftovers, try_scenario, unreadable

from fedgraph.support.errors import ExperimentError

HERE = Path(__file__).parent
SCENARIOS = sorted((HERE / "scenarios").glob("*.toml"))
OFTEN = {"server-killed", "clock-set-back", "executor-killed"}
METHODS = ("sfl", "fedavg", "ipa", "f3", "fedngm")


@pytest.mark.process
@pytest.mark.parametrize("name", METHODS)
def test_every_kind_of_message_may_be_lost(name):
    lines = list(messages([name]))
    assert len(lines) >= 6, "each kind, as request and as reply, under two policies"
    assert [line for line in lines if not line.startswith("ok")] == []


@pytest.mark.process
@pytest.mark.parametrize("name", ["sfl", "f3", pytest.param("fedngm", marks=pytest.mark.slow)])
@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_any_write_may_fail(name):
    command = [sys.executable, "-m", "disturbances", "writes", "--only", name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert all(f"ok      {name}: {action}: " in done.stdout for action in ("no-space", "io-error", "short-write"))


@pytest.mark.process
@pytest.mark.xdist_group("nodes")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.name not in OFTEN)) for path in SCENARIOS],
)
def test_scenarios(path, tmp_path):
    scenario = read_scenario(path)
    if any(fault.action == "step-clock" for fault in scenario.faults) and compiler() is None:
        pytest.skip("no C compiler")
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    found = play(scenario, tmp_path)
    assert found.problems == []
    assert found.happened == len(scenario.faults)
    left = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
    assert psutil.wait_procs(left, timeout=20)[1] == []


def test_a_fault_is_seen_and_what_does_not_hold_is_named(tmp_path):
    scenes = InProcessScenes("sfl", tmp_path, ['experiment.on-missing="fail"'])
    lost = Fault(when={"message": 3, "kind": "train"}, action="lose-reply")
    found = scenes.play([lost], Holds(end="resumed"))
    assert (found.problems, found.happened, len(found.attempts)) == ([], 1, 2)
    assert "no reply in time" in found.attempts[0].error
    assert "it was to be finished" in scenes.play([lost], Holds(end="finished")).problems[0]
    assert scenes.play([], Holds(end="finished")).problems == []
    scenes.undisturbed = {**scenes.undisturbed, "weights_sha256": "other"}
    assert "weights_sha256 is " in scenes.play([lost], Holds()).problems[0]
    assert scenes.play([lost], Holds(weights="finite")).problems == []


def test_a_run_that_cannot_be_gone_on_with_is_found_out(tmp_path):
    class Broken(InProcess):
        def attempt(self, resumed, faults):
            found = super().attempt(resumed, faults)
            if resumed is None:
                (path,) = self.runs.glob("*/checkpoint.safetensors")
                path.write_bytes(path.read_bytes()[:100])
                (path.parent / ".half.part").touch()
            return found

    scenes = InProcessScenes("sfl", tmp_path, ['experiment.on-missing="fail"'])
    calm = scenes.stage()
    stage = Broken(calm.folder, tables=calm.tables, configs=calm.configs, data_dir=calm.data_dir)
    lost = Fault(when={"message": 4, "kind": "train"}, action="lose-request")
    found = try_scenario(stage, [lost], Holds(), scenes.undisturbed)
    assert "it cannot be gone on with: RunError: cannot read the saved state" in found.problems[0]
    (tmp_path / "none").mkdir()
    assert "is not a run folder" in unreadable(tmp_path)[0]
    (tmp_path / ".more.part").touch()
    assert leftovers(tmp_path)[0].name in (".more.part", ".half.part")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_can_be_read(path):
    assert read_scenario(path).title


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": "local"}, 'lose-reply .*"local"'),
        ({"grid": "moon"}, "grid: Input should be"),
        ({"faults": [{"when": {"lines": 1}, "action": "no-space"}]}, "goes with kill, pause, step-clock, not with"),
        ({"faults": [{"when": {}, "action": "kill"}]}, "give one of lines, message and write"),
        ({"after": 1}, "'after'; .*faults"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(change, message, tmp_path):
    table = tomllib.loads('title = "a"\nexperiment = "sfl"\n[[faults]]\nwhen = {message = 1}\naction = "lose-reply"')
    (tmp_path / "a.toml").write_text(tomli_w.dumps({**table, **change}))
    with pytest.raises(ExperimentError, match=message):
        read_scenario(tmp_path / "a.toml")


def test_an_experiment_of_ones_own(tmp_path):
    (tmp_path / "own.toml").write_text(
        '[experiment]\nmethod = "fedavg"\nrounds = 2\n[data]\nset = "digits"\nclients = 4\n[model]\nname = "mlp"\n'
        "hidden = [4]\n"
    )
    lost = Fault(when={"message": 2, "kind": "train"}, action="lose-request")
    scenario = Scenario(title="", experiment=str(tmp_path / "own.toml"), faults=[lost], holds=Holds(end="resumed"))
    assert play(scenario, tmp_path).problems == []
