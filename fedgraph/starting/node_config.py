"""Options of the nodes of a simulation, which real nodes read from their node config."""

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
    """Return the options of nodes that are sites, each with a file of its own, as in a deployment.

    With the key ``sites``: the node config of each. Raises ExperimentError for a missing file, and for models and keys
    of an unknown site.

    Parameters
    ----------
    sites : file or folder of each site. A site is the client of its name, unless its file names clients.
    given : keys of the node config of all sites; under the name of a site, a mapping with those of that one.
    models : models that sites have already, by site.
    data : the table ``[data]``.
    """
    common = {key: value for key, value in (given or {}).items() if not isinstance(value, Mapping)}
    own = {key: value for key, value in (given or {}).items() if isinstance(value, Mapping)}
    for what, named in (("--node-config", own), ("--model", models or {})):
        strangers = [name for name in named if name not in sites]
        if strangers:
            raise ExperimentError(f"{what} is given for the site '{strangers[0]}'; sites are {', '.join(sites)}")
    names_in_files = getattr(data, "set", "") in _NAMES_IN_FILES or getattr(data, "client_column", None) is not None
    configs = {}
    for name, file in sites.items():
        place = Path(file).expanduser().absolute()
        if CLIENT not in str(place) and not place.exists():
            raise ExperimentError(f"--site {name}: there is no {place}")
        config = {"data": str(place), **({} if names_in_files else {"clients": f'"{name}"' if "," in name else name})}
        if models and name in models:
            config["model"] = _absolute(str(models[name]))
        configs[name] = {**config, **own.get(name, {})}
    return {**common, SITES: configs}


def _absolute(model: str) -> str:
    """Return a model with an absolute path, as nodes may run in other folders; ``package.module:Class`` stays as it is.

    That of a file that is not there says where it was looked for.
    """
    place, layer = model.partition("#")[::2]
    is_path = Path(place).is_file() or (place and ":" not in place)
    return f"{Path(place).absolute()}{'#' * bool(layer)}{layer}" if is_path else model
