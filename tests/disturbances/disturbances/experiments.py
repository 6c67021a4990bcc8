"""The experiments that are disturbed: a tiny one for every method, on data that needs no files, or that of a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from disturbances.in_process import InProcess
from disturbances.scenario import Scenario
from disturbances.trial import undisturbed_run
from fedgraph.experiment import load_experiment

_HEAD = {"on-missing": "skip", "wait": 0, "rounds": 2, "seed": 3}
_DIGITS = {
    "experiment": _HEAD,
    "data": {"set": "digits", "clients": 6, "partition": "shards", "shards": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"optimizer": "sgd", "learning-rate": 0.05, "batch-size": 64, "local-steps": 2, "threads": 1},
    "graph": {"source": "labels"},
}
_TRAFFIC = {
    "experiment": _HEAD,
    "data": {"set": "synthetic-traffic", "sensors": 6, "days": 2, "step-minutes": 30, "input-steps": 4,
             "output-steps": 2},
    "model": {"name": "gru", "hidden": 4},
    "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 16, "local-steps": 2, "threads": 1},
    "graph": {"source": "data"},
    "evaluation": {"horizons": [1]},
}  # fmt: skip
_PATCHES = {
    "experiment": _HEAD,
    "data": {"set": "image-patches", "images": "digits", "grid": [2, 2], "new-share": 0.05, "lacking-share": 0.1},
    "model": {"name": "mlp", "hidden": [6, 4]},
    "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 400, "local-epochs": 1, "workers": 1,
              "threads": 1},
}  # fmt: skip
_FUSION = {
    "epochs": 1, "learning-rates": [0.01], "draws": 1, "batch-size": 2000, "hidden": 2, "workers": 1, "device": "cpu"
}  # fmt: skip
_ASIA = {
    "experiment": _HEAD,
    "data": {"set": "bayesian-network", "path": "asia", "rows": 150, "public-rows": 60,
             "clients": ["east", "north", "south", "west"]},
}  # fmt: skip
_NGM = {
    "targets": ["lung"],
    "ngm": {"epochs": 4, "hidden": 4, "batch-size": 128, "patience": 2},
    "ngr": {"epochs": 4, "hidden": 4, "batch-size": 128, "patience": 2},
    "distillation": {"samples": 100},
    "sampling": {"sweeps": 1},
}
_SHARING = {"aggregators": 4, "threshold": 2, "map-bits": 9, "random-bits": 24, "largest": 8.0, "draws": 1}
_OWNERS = [{"clients": "patch-0-0,patch-0-1"}, {"clients": "patch-1-0"}, {"clients": "patch-1-1"}]


def _changed(tables: dict[str, Any], method: str, **changes: Any) -> dict[str, Any]:
    result = copy.deepcopy(tables)
    result["experiment"]["method"] = method
    for name, table in changes.items():
        result.setdefault(name, {}).update(table)
    return result


def _tables(name: str, before: Path | None) -> dict[str, Any]:
    """The tables of an experiment; ``before`` is the folder of the run that inference continues from."""
    own = {"run": str(before)}
    tables = {
        "ipa-at-once": _changed(_DIGITS, "ipa", ipa={"turns": "simultaneous"}),
        "sfl-cold-start": _changed(_DIGITS, name, **{name: {"cold-below": 1.0}}),
        "f3-vote": _changed(_PATCHES, "f3", f3={"fusion": "vote"}),
        "f3": _changed(_PATCHES, name, f3=_FUSION),
        "vfl": _changed(_PATCHES, name, vfl=_FUSION),
        "f3-inference": _changed(_PATCHES, name, **{name: {**own, "draws": 1}}),
        "f3-secret": _changed(_PATCHES, name, **{name: {**own, **_SHARING}}),
        "fedngm": _changed(_ASIA, name, fedngm=_NGM),
        "fedngm-average": _changed(_ASIA, "fedngm", fedngm={**_NGM, "global-model": "average"}),
        "fedngm-sums": _changed(
            _ASIA, "fedngm", fedngm={**_NGM, "scaling": {"source": "shared-ranges"},
                                     "recovery": {"source": "summed-statistics"}}
        ),
        "fedngm-masks": _changed(
            _ASIA, "fedngm", fedngm={**_NGM, "recovery": {"source": "summed-statistics", "masks": True}}
        ),
        "f3-forecast": _changed(
            _TRAFFIC, name, **{name: {"local-rounds": 1, "aligned-size": 4, "hidden": 4, "steps": 2,
                                      "evaluate-every": 1}}
        ),
        "f3-forecast-private": _changed(
            _TRAFFIC, "f3-forecast", **{"f3-forecast": {"local-rounds": 1, "aligned-size": 4, "hidden": 4, "steps": 2,
                                                        "evaluate-every": 1, "targets": "private"}}
        ),
        "f3-forecast-inference": _changed(
            _TRAFFIC, name, **{name: {**own, "local-rounds": 1, "windows": 10, "hidden": 4}}
        ),
        "cnfgnn": _changed(
            _TRAFFIC, "fedgraph.simulations.forecasting.cnfgnn:CNFGNN",
            CNFGNN={"windows": 8, "server-steps": 2, "server-batch-size": 4, "hidden": 4, "layers": 1},
        ),
        "simple-forecast": _changed(_TRAFFIC, name),
        "joint-forecast": _changed(
            _TRAFFIC, "fedgraph.simulations.forecasting.joint_forecast:JointForecast",
            JointForecast={"network": "perceptron", "steps": 2, "evaluate-every": 1},
        ),
        "cold-scale": _changed(_TRAFFIC, "sfl", data={"scaling": "pooled"}),
        "adam": _changed(_DIGITS, "flwr.serverapp.strategy:FedAdam"),
    }  # fmt: skip
    found = tables.get(name) or _changed(_DIGITS, name)
    if ":" in found["experiment"]["method"]:
        found["experiment"]["strategy"] = found["experiment"].pop("method")
    found["experiment"]["name"] = name
    found["output"] = {"report": False}
    return found


BEFORE = {"f3-inference": "f3", "f3-secret": "f3", "f3-forecast-inference": "f3-forecast"}
"""Inference, and what trains for it."""

LIVE = ("f3-secret", "fedngm-masks")
"""Where answers depend on keys that are made anew in each run, so that recorded ones would not fit."""

ON_ONE_NODE = ("centralised", "joint-forecast")
"""Where a bad reply leaves nobody, so that the run ends."""

NAMES = (
    "sfl", "sfl-star", "sfl-per", "sfl-lg", "sfl-ft", "sfl-cold-start", "cold-scale", "fedavg", "adam", "fedprox",
    "fedavg-own-start", "fedavg-ft", "fedatt", "feddc", "feddyn", "scaffold", "cgsv", "pfedgraph", "ditto", "fedper",
    "lg-fedavg", "local", "centralised", "ipa", "ipa-at-once", "f3", "f3-vote", "f3-inference", "f3-secret", "vfl",
    "fedngm", "fedngm-average", "fedngm-sums", "fedngm-masks", "f3-forecast", "f3-forecast-private",
    "f3-forecast-inference", "cnfgnn", "simple-forecast", "joint-forecast",
)  # fmt: skip


ROUNDS = ("sfl", "sfl-star", "scaffold", "fedper", "ipa", "fedavg", "adam", "cnfgnn")
"""Those that have rounds, and may have more of them."""

NAMED = {"f3": 4, "fedngm": 4}
"""Those whose nodes name their clients, with how many there are: a run without them would not know of them."""


def experiment(name: str, before: Path | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Tables of an experiment, and the node configs."""
    tables = _tables(name, before)
    kind = tables["data"]["set"]
    if name in ON_ONE_NODE:
        nodes: list[dict[str, Any]] = [{"partition-id": 0, "num-partitions": 1}]
    elif kind == "image-patches":
        aggregators = ("east", "north", "south", "west") if name == "f3-secret" else ()
        nodes = [*_OWNERS, *({"aggregator": each} for each in aggregators)]
    elif kind == "bayesian-network":
        nodes = [{"clients": each} for each in tables["data"]["clients"]]
    else:
        nodes = [{"partition-id": number, "num-partitions": 4} for number in range(4)]
    return tables, nodes


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
