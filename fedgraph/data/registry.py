"""Data sets by name: ``[data] set = "..."`` chooses the settings and the source."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fedgraph.data.base import DataSource
from fedgraph.data.data_set import custom_class, custom_settings
from fedgraph.data.own import OwnData
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import Settings, parse

# set name -> (settings class, source class), below fedgraph.data; dotted paths so that reading one kind of data never
# imports the others.
_IMAGES = ("images.images:ImageSettings", "images.images:ImageSource")
_BUNDLED = ("tables.options:BundledTableSettings", "tables.tables:TableSource")
_TRAFFIC, _RUSH_HOUR = "series.traffic:TrafficSource", "owners.rush_hour:RushHourSource"
_SETS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("digits", "mnist", "fashion-mnist", "cifar10", "cifar100"), _IMAGES),
    "images": ("images.own_images:OwnImageSettings", "images.own_images:OwnImageSource"),
    **dict.fromkeys(("iris", "wine", "breast-cancer", "diabetes"), _BUNDLED),
    "table": ("tables.options:TableSettings", "tables.tables:TableSource"),
    "series": ("series.series:SeriesSettings", "series.series:SeriesSource"),
    "metr-la": ("series.traffic:MetrLaSettings", _TRAFFIC),
    "pems-bay": ("series.traffic:PemsBaySettings", _TRAFFIC),
    "pems04": ("series.traffic:Pems04Settings", _TRAFFIC),
    "pems08": ("series.traffic:Pems08Settings", _TRAFFIC),
    "synthetic-traffic": ("series.synthetic:SyntheticTrafficSettings", "series.synthetic:SyntheticTrafficSource"),
    "metr-la-rush-hour": ("owners.rush_hour:MetrLaRushHourSettings", _RUSH_HOUR),
    "pems-bay-rush-hour": ("owners.rush_hour:PemsBayRushHourSettings", _RUSH_HOUR),
    "image-patches": ("owners.image_patches:ImagePatchSettings", "owners.image_patches:ImagePatchSource"),
    "table-columns": ("owners.table_columns:TableColumnSettings", "owners.table_columns:TableColumnSource"),
    "grid-stability": ("owners.grid_stability:GridStabilitySettings", "owners.grid_stability:GridStabilitySource"),
    "panel": ("owners.panel:PanelSettings", "owners.panel:PanelSource"),
    "graphs": ("graphs.own_graphs:OwnGraphSettings", "graphs.own_graphs:OwnGraphSource"),
    "stochastic-blocks": ("graphs.planted:PlantedSettings", "graphs.planted:PlantedSource"),
    "cora": ("graphs.cora:CoraSettings", "graphs.cora:CoraSource"),
    "mixed-table": ("tables.mixed:MixedTableSettings", "tables.mixed:MixedTableSource"),
    "linked-deaths": ("tables.linked_deaths:LinkedDeathsSettings", "tables.linked_deaths:LinkedDeathsSource"),
    "bayesian-network": (
        "tables.bayesian_network:BayesianNetworkSettings",
        "tables.bayesian_network:BayesianNetworkSource",
    ),
}

OWN_FILE_SETS = ("series", "table", "mixed-table", "table-columns", "panel", "images", "graphs")
"""Data sets that read the user's own file, which may differ from node to node."""

_CATALOGUES = (
    "series.traffic:TRAFFIC",
    "owners.rush_hour:RUSH_HOUR",
    "series.synthetic:SYNTHETIC",
    "owners.grid_stability:GRID_STABILITY",
    "images.sets:IMAGES",
    "tables.tables:TABLES",
    "tables.linked_deaths:LINKED_DEATHS",
    "graphs.planted:PLANTED",
    "graphs.cora:CORA",
)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(f"fedgraph.data.{module}"), name)


def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Return all named data sets with licence, size and files. In the order in which ``fedgraph data`` prints them."""
    return tuple(entry for path in _CATALOGUES for entry in _load(path))


def settings_by_set() -> dict[str, type[Settings]]:
    """Return the settings class of each data set. By the value of ``[data] set``."""
    return {name: _load(path) for name, (path, _) in _SETS.items()}


def is_custom_class(name: object) -> bool:
    """Return whether the value of ``[data] set`` is the dotted path of a class."""
    return isinstance(name, str) and ":" in name


def parse_data(table: Mapping[str, Any]) -> Settings:
    """Validate a ``[data]`` table.

    Raises ExperimentError for an unknown set (the message lists the known ones) or an unknown key (the message lists
    the set's keys).

    Parameters
    ----------
    table : mapping
        Its key ``set`` chooses the settings class.
    """
    name = table.get("set")
    if isinstance(name, str) and is_custom_class(name):
        return parse(custom_settings(name), table, f"[data] (set {name})")
    if not isinstance(name, str) or name not in _SETS:
        raise ExperimentError(
            f"[data] set is {name!r}; known sets: {', '.join(sorted(_SETS))}, or 'package.module:Class' for your own "
            "data set"
        )
    return parse(_load(_SETS[name][0]), table, f"[data] (set {name})")


def open_source(settings: Settings, data_dir: Path, own: OwnData | None = None) -> DataSource:
    """Open the data set that validated settings describe.

    Raises DataError when own data is given for a data set that reads no file of the user's own.

    Parameters
    ----------
    settings : Settings
        As :func:`parse_data` returns them.
    data_dir : Path
        Folder in which files are looked for.
    own : OwnData, optional
        A node's own data, read instead of the file in the settings.
    """
    name: str = settings.set  # type: ignore[attr-defined]
    if own is not None and not is_custom_class(name) and name not in OWN_FILE_SETS:
        raise DataError(
            f"[data] set '{name}' is the same for all nodes, and the node config key 'data' gives this node its own "
            f"data: leave it out, or use one of the sets {', '.join(OWN_FILE_SETS)}"
        )
    kind = custom_class(name) if is_custom_class(name) else _load(_SETS[name][1])
    source: DataSource = kind(settings, data_dir) if own is None else kind(settings, data_dir, own)
    return source
