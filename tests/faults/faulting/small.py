"""The small experiments that scenarios are about: those of the fuzz suite, one for every method, or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuzzing.experiments import BEFORE, NAMES, ON_ONE_NODE, experiment

from faulting.in_process import InProcess
from faulting.scenario import Scenario
from faulting.trial import undisturbed_run
from fedgraph.experiment import load_experiment

__all__ = ["NAMED", "NAMES", "ROUNDS", "prepared"]

ROUNDS = ("sfl", "sfl-star", "scaffold", "fedper", "ipa", "fedavg", "adam", "cnfgnn")
"""Those that have rounds, and may have more of them."""

NAMED = {"f3": 4, "fedngm": 4}
"""Those whose nodes name their clients, with how many there are: a run without them would not know of them."""


def prepared(scenario: Scenario, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the tables of a scenario's experiment, and its node configs; what must be run before it is run now."""
    name = scenario.experiment
    if name not in NAMES:
        tables, configs = load_experiment(name).as_dict(), _divided(scenario.nodes)
    else:
        before, own = None, {}
        if name in BEFORE:
            before, own = _run_before(BEFORE[name], folder / "before")
        tables, configs = experiment(name, before)
        if name not in ON_ONE_NODE and all("partition-id" in config for config in configs):
            configs = _divided(scenario.nodes)
        configs = [{**own, **config} for config in configs]
    return load_experiment(tables, scenario.set).as_dict() if scenario.set else tables, configs


def _divided(nodes: int) -> list[dict[str, Any]]:
    return [{"partition-id": number, "num-partitions": nodes} for number in range(nodes)]


def _run_before(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    tables, configs = experiment(name)
    stage = InProcess(folder, tables=tables, configs=configs, data_dir=folder / "no-data")
    return undisturbed_run(stage).path, {"state-dir": str(folder / "state"), "model-dir": str(folder / "models")}
