"""Options of the nodes of a simulation, as in the node config of real nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph.data import CLIENT
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

SITES = "sites"
"""Key under which the options hold a node config for each site."""

_NAMES_IN_FILES = ("series", "panel")
"""Data sets whose files name their clients."""


def node_options(given: Mapping[str, Any] | None, models: Mapping[str, str | Path] | None) -> dict[str, Any]:
    """Return the options of all nodes: keys of the node config, and the models that clients have already."""
    if not models:
        return dict(given or {})
    entries = [f"{name}={_absolute(str(model))}" for name, model in models.items()]
    return {**(given or {}), "models": ",".join(f'"{entry}"' if "," in entry else entry for entry in entries)}


def site_options(
    sites: Mapping[str, str | Path],
    given: Mapping[str, Any] | None,
    models: Mapping[str, str | Path] | None,
    data: Settings,
) -> dict[str, Any]:
    """Return the options of sites, nodes with their own files as in a deployment: ``sites``, the node config of each.

    Raises ExperimentError for a missing file, and for models and keys of an unknown site.

    Parameters
    ----------
    sites : file or folder of each site. A site is the client with its name, unless its file names clients.
    given : keys of the node config of all sites; under the name of a site, a mapping for this one.
    models : existing models by site.
    data : the table ``[data]``.
    """
    common = {key: value for key, value in (given or {}).items() if not isinstance(value, Mapping)}
    own = {key: value for key, value in (given or {}).items() if isinstance(value, Mapping)}
    for what, named in (("--node-config", own), ("--model", models or {})):
        unknown_names = [name for name in named if name not in sites]
        if unknown_names:
            raise ExperimentError(f"{what} is given for the site '{unknown_names[0]}'; sites are {', '.join(sites)}")
    names_in_files = getattr(data, "set", "") in _NAMES_IN_FILES or getattr(data, "client_column", None) is not None
    configs = {}
    for name, file in sites.items():
        place = Path(file).expanduser().absolute()
        if CLIENT not in str(place) and not place.exists():
            raise ExperimentError(f"--site {name}: there is no {place}")
        own_name = {"site": name} if names_in_files else {"clients": f'"{name}"' if "," in name else name}
        config = {"data": str(place), **own_name}
        if models and name in models:
            config["model"] = _absolute(str(models[name]))
        configs[name] = {**config, **own.get(name, {})}
    return {**common, SITES: configs}


def with_data_of_sites(options: Mapping[str, Any], data: Mapping[str, Path]) -> dict[str, Any]:
    """Return the options of those sites of which there is new data, with that in place of their own."""
    configs = {name: {**options[SITES][name], "data": str(place)} for name, place in data.items()}
    return {**options, SITES: configs}


def with_aggregators(options: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the options of sites, with further nodes that have no data and aggregate secret shares."""
    own = {f"aggregator-{place:03d}": {"aggregator": f"aggregator-{place:03d}"} for place in range(number)}
    return {**options, SITES: {**own, **options[SITES]}}


def node_configs(options: Mapping[str, Any], nodes: int, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the node config of each node of a simulation: a node for each site, or ``nodes`` that divide the clients.

    Parameters
    ----------
    options : as :func:`node_options` and :func:`site_options` return them.
    nodes : number of nodes, without sites.
    common : keys of all nodes, in place of those of ``options``; keys of a single site come before them.
    """
    every = {key.replace("_", "-"): value for key, value in options.items() if key != SITES} | dict(common)
    if SITES in options:
        return [{**every, **own} for own in options[SITES].values()]
    return [{"partition-id": index, "num-partitions": nodes, **every} for index in range(nodes)]


def _absolute(model: str) -> str:
    """Make the path of a model absolute, as nodes may run in other folders; ``package.module:Class`` is unchanged."""
    place, layer = model.partition("#")[::2]
    is_path = Path(place).is_file() or (place and ":" not in place)
    return f"{Path(place).absolute()}{'#' * bool(layer)}{layer}" if is_path else model
