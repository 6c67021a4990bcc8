"""Baselines of a forecast: simple forecasters, and the same method over a permuted client graph."""

from __future__ import annotations

import tomllib

from fedgraph.experiment.experiment import Experiment, load_experiment
from fedgraph.support.settings import selected

_FORECASTERS = ("last-reading", "weekly-profile", "ridge")
_HEAD = ("name", "seed", "min-clients", "on-missing", "wait", "timeout")
_MEASURED = ("splits", "horizons", "missing-as")


def yardsticks(experiment: Experiment, uses_graph: bool = True) -> list[Experiment]:
    """Return the experiments that ``[evaluation] yardsticks`` adds to one.

    Each client's last reading, weekly profile and ridge regression, with the same data and covariates; and, if the
    method uses a client graph from the data, a file or another run, the method over a permuted graph. Empty if the key
    is false.

    Parameters
    ----------
    experiment : Experiment
        The experiment.
    uses_graph : bool
        Whether its method uses the client graph.
    """
    if not experiment.evaluation.yardsticks:
        return []
    tables = tomllib.loads(experiment.as_toml())
    found = [
        {
            "experiment": {**selected(tables["experiment"], _HEAD), "method": "simple-forecast"},
            "simple-forecast": {"forecaster": forecaster},
            "evaluation": selected(tables["evaluation"], _MEASURED),
            **selected(tables, ("data", "clients", "model", "output")),
        }
        for forecaster in _FORECASTERS
    ]
    graph = experiment.graph
    if uses_graph and graph.source not in ("none", "complete") and graph.permute_seed is None:
        evaluation = {**tables["evaluation"], "yardsticks": False}
        found.append({**tables, "evaluation": evaluation, "graph": {**tables["graph"], "permute-seed": 0}})
    return [load_experiment(each) for each in found]
