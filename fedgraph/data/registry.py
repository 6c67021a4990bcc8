"""Data sets by name: ``[data] set = "..."`` chooses the settings and the source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph.data.base import DataSource
from fedgraph.data.data_set import custom_class, custom_settings
from fedgraph.data.own import OwnData
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.plugins import load_object
from fedgraph.support.settings import Settings, parse

# set name -> (settings class, source class); dotted paths so that reading one kind of data never imports the others.
_IMAGES = ("fedgraph.data.images.images:ImageSettings", "fedgraph.data.images.images:ImageSource")
_BUNDLED = ("fedgraph.data.tables.options:BundledTableSettings", "fedgraph.data.tables.tables:TableSource")
_SETS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("digits", "mnist", "fashion-mnist", "cifar10", "cifar100"), _IMAGES),
    "images": ("fedgraph.data.images.own_images:OwnImageSettings", "fedgraph.data.images.own_images:OwnImageSource"),
    **dict.fromkeys(("iris", "wine", "breast-cancer", "diabetes"), _BUNDLED),
    "table": ("fedgraph.data.tables.options:TableSettings", "fedgraph.data.tables.tables:TableSource"),
    "series": ("fedgraph.data.series.series:SeriesSettings", "fedgraph.data.series.series:SeriesSource"),
    "metr-la": ("fedgraph.data.series.traffic:MetrLaSettings", "fedgraph.data.series.traffic:TrafficSource"),
    "pems-bay": ("fedgraph.data.series.traffic:PemsBaySettings", "fedgraph.data.series.traffic:TrafficSource"),
    "pems04": ("fedgraph.data.series.traffic:Pems04Settings", "fedgraph.data.series.traffic:TrafficSource"),
    "pems08": ("fedgraph.data.series.traffic:Pems08Settings", "fedgraph.data.series.traffic:TrafficSource"),
    "synthetic-traffic": (
        "fedgraph.data.series.synthetic:SyntheticTrafficSettings",
        "fedgraph.data.series.synthetic:SyntheticTrafficSource",
    ),
    "metr-la-rush-hour": (
        "fedgraph.data.owners.rush_hour:MetrLaRushHourSettings",
        "fedgraph.data.owners.rush_hour:RushHourSource",
    ),
    "pems-bay-rush-hour": (
        "fedgraph.data.owners.rush_hour:PemsBayRushHourSettings",
        "fedgraph.data.owners.rush_hour:RushHourSource",
    ),
    "image-patches": (
        "fedgraph.data.owners.image_patches:ImagePatchSettings",
        "fedgraph.data.owners.image_patches:ImagePatchSource",
    ),
    "table-columns": (
        "fedgraph.data.owners.table_columns:TableColumnSettings",
        "fedgraph.data.owners.table_columns:TableColumnSource",
    ),
    "grid-stability": (
        "fedgraph.data.owners.grid_stability:GridStabilitySettings",
        "fedgraph.data.owners.grid_stability:GridStabilitySource",
    ),
    "panel": ("fedgraph.data.owners.panel:PanelSettings", "fedgraph.data.owners.panel:PanelSource"),
    "graphs": ("fedgraph.data.graphs.own_graphs:OwnGraphSettings", "fedgraph.data.graphs.own_graphs:OwnGraphSource"),
    "stochastic-blocks": ("fedgraph.data.graphs.planted:PlantedSettings", "fedgraph.data.graphs.planted:PlantedSource"),
    "cora": ("fedgraph.data.graphs.cora:CoraSettings", "fedgraph.data.graphs.cora:CoraSource"),
    "mixed-table": ("fedgraph.data.tables.mixed:MixedTableSettings", "fedgraph.data.tables.mixed:MixedTableSource"),
    "linked-deaths": (
        "fedgraph.data.tables.linked_deaths:LinkedDeathsSettings",
        "fedgraph.data.tables.linked_deaths:LinkedDeathsSource",
    ),
    "bayesian-network": (
        "fedgraph.data.tables.bayesian_network:BayesianNetworkSettings",
        "fedgraph.data.tables.bayesian_network:BayesianNetworkSource",
    ),
}

OWN_FILE_SETS = ("series", "table", "mixed-table", "table-columns", "panel", "images", "graphs")
"""Data sets that read the user's own file, which may differ from node to node."""

_CATALOGUES = (
    "fedgraph.data.series.traffic:TRAFFIC",
    "fedgraph.data.owners.rush_hour:RUSH_HOUR",
    "fedgraph.data.series.synthetic:SYNTHETIC",
    "fedgraph.data.owners.grid_stability:GRID_STABILITY",
    "fedgraph.data.images.sets:IMAGES",
    "fedgraph.data.tables.tables:TABLES",
    "fedgraph.data.tables.linked_deaths:LINKED_DEATHS",
    "fedgraph.data.graphs.planted:PLANTED",
    "fedgraph.data.graphs.cora:CORA",
)


def catalogue_entries() -> tuple[CatalogueEntry, ...]:
    """Return all named data sets with licence, size and files. In the order in which ``fedgraph data`` prints them."""
    return tuple(entry for path in _CATALOGUES for entry in load_object(path, "catalogue"))


def settings_by_set() -> dict[str, type[Settings]]:
    """Return the settings class of each data set. By the value of ``[data] set``."""
    return {name: load_object(path, "[data] set") for name, (path, _) in _SETS.items()}


def is_custom_class(name: object) -> bool:
    """Return whether the value of ``[data] set`` is the dotted path of a class."""
    return isinstance(name, str) and ":" in name


def parse_data(table: Mapping[str, Any]) -> Settings:
    """Validate a ``[data]`` table.

    Raises ExperimentError for an unknown set (the message
    lists the known ones) or an unknown key (the message lists the set's keys).

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
    return parse(load_object(_SETS[name][0], "[data] set"), table, f"[data] (set {name})")


def open_source(settings: Settings, data_dir: Path, own: OwnData | None = None) -> DataSource:
    """Open the data set that validated settings describe.

    Raises DataError when own data is given for a data set that reads no file of the
    user's own.

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
    if is_custom_class(name):
        made = custom_class(name)
        found: DataSource = made(settings, data_dir) if own is None else made(settings, data_dir, own)
        return found
    if own is not None and name not in OWN_FILE_SETS:
        raise DataError(
            f"[data] set '{name}' is the same for all nodes, and the node config key 'data' gives this node its own "
            f"data: leave it out, or use one of the sets {', '.join(OWN_FILE_SETS)}"
        )
    kind = load_object(_SETS[name][1], "[data] set")
    source: DataSource = kind(settings, data_dir) if own is None else kind(settings, data_dir, own)
    return source
