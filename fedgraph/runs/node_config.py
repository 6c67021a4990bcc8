"""What the nodes of a simulation are told beside the experiment, as a node config tells a real one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph.data import open_source
from fedgraph.experiment import Experiment
from fedgraph.federation import listed
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import ExperimentError


def told_nodes(given: Mapping[str, Any] | None, models: Mapping[str, str | Path] | None) -> dict[str, Any]:
    """Return what nodes are told: keys of the node config, and the models that clients have already."""
    if not models:
        return dict(given or {})
    entries = [f"{name}={_absolute(str(model))}" for name, model in models.items()]
    return {**(given or {}), "models": ",".join(f'"{entry}"' if "," in entry else entry for entry in entries)}


def _absolute(model: str) -> str:
    """Return a model with an absolute path, as nodes may run in other folders; other forms stay as they are."""
    place, layer = model.partition("#")[::2]
    return f"{Path(place).absolute()}{'#' * bool(layer)}{layer}" if Path(place).is_file() else model


def check_owners(models: str, experiment: Experiment, data_dir: str | Path | None) -> None:
    """Raise ExperimentError for models of clients that the data does not have: nodes leave out those of other nodes."""
    folder = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
    known = open_source(experiment.data, folder).client_names()
    for entry in listed(models):
        if not any(entry.startswith(f"{name}=") for name in known):
            raise ExperimentError(f"model '{entry}' is of none of the clients of this data: {', '.join(known[:10])}")
