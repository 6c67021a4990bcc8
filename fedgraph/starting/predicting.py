"""Predictions by a finished run: of new data, by the models of any method; of other samples and windows, by F3."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, get_args

import pyarrow as pa
from rich.console import Console

from fedgraph.algorithms.f3_forecast_settings import EncoderSettings
from fedgraph.data import CLIENT, as_file
from fedgraph.data.columns import FileSettings
from fedgraph.data.owners import PanelSettings, SampleSplit, without_labels
from fedgraph.experiment import Experiment, Overrides, load_experiment, overrides_by_key
from fedgraph.fusion.owner_models import LocalModelSettings
from fedgraph.runs import Run, RunFolder
from fedgraph.starting.node_config import SITES, with_aggregators, with_data_of_sites
from fedgraph.starting.running import check_grid, check_sites_grid, run_one
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import file_name
from fedgraph.support.settings import selected


def predict(
    run: Run | RunFolder | str | Path,
    data: Any = None,
    *,
    client: str | None = None,
    target: str | None = None,
    samples: str | None = None,
    draws: int | None = None,
    windows: int | None = None,
    secret: str | None = None,
    set: str | Iterable[str] | Mapping[str, Any] = (),
    grid: str = "local",
    nodes: int = 2,
    data_dir: str | Path | None = None,
    progress: bool = True,
    trust: bool = False,
) -> Any:
    """Predict new data by a run of any method, or samples and later windows by one of ``f3`` or ``f3-forecast``.

    Methods that end with models predict new data as :meth:`fedgraph.Run.predict` does. With ``f3`` and ``f3-forecast``
    the frozen models that the run was trained with send embeddings to its fusion model. That is a separate run, whose
    folder is in the folder ``predictions`` of the run.

    Parameters
    ----------
    run : Run, RunFolder, str or Path
        A finished run, or its folder.
    data : data frame, array, str or Path, or mapping, optional
        New data, with the columns of training in any order. Without it, those of the run: of ``f3`` the samples
        without a label, of ``f3-forecast`` the windows behind those of training. For a run of ``f3`` over sites, each
        site reads its own columns; they may have a file each, a path with ``{client}`` or a mapping by site.
    client : str, optional
        The client whose data it is, where the data do not say so.
    target : str, optional
        Of graphical models: the feature to predict.
    samples : {"new", "train", "validation", "test"}, optional
        Of ``f3``: the samples. By default those without a label.
    draws : int, optional
        Of ``f3``: graphs to average over; by default as the run had.
    windows : int, optional
        Of series: windows to forecast at most, the latest; by default all, and 288 of ``f3-forecast``.
    secret : str, optional
        Of ``f3``: ``"2-of-3"`` computes the first layer on secret shares held by 3 nodes; any 2 of them suffice.
    set : str, mapping or iterable of str, optional
        Of ``f3`` and ``f3-forecast``: keys to override.
    grid : {"local", "flower"}, default "local"
        In this process, or through ``flwr run`` with nodes on Ray.
    nodes : int, default 2
        Number of nodes among which clients are dealt out.
    data_dir : str or Path, optional
        Data folder; by default that of ``FEDGRAPH_DATA``.
    progress : bool, default True
        Whether to show progress.
    trust : bool, default False
        Whether code in the folders that the run names is imported, see :meth:`fedgraph.runs.RunFolder.open`.

    Returns
    -------
    data frame or Run
        A row for each prediction of new data; without ``data`` a run, whose ``predictions``, or ``forecasts``, are a
        data frame.

    Raises
    ------
    FedgraphError
        For options that the method does not have, and where the predictions cannot be made.
    """
    trained = run.folder if isinstance(run, Run) else run if isinstance(run, RunFolder) else RunFolder.open(run, trust)
    console = Console(quiet=not progress)
    options = {"samples": samples, "draws": draws, "secret": secret, "set": set or None}
    if data is not None and not has_fusion_model(trained):
        _check_options(options, tuple(options), "f3")
        # The models of a Run that is given are read once for all of its predictions.
        return (run if isinstance(run, Run) else Run(trained)).predict(data, client, windows, target)
    about = {"client": client, "target": target}
    _check_options(about, tuple(about), "methods with client models")
    prediction = Prediction.of(trained, samples, draws, windows, secret, data)
    made = Run(prediction.make(set, grid, nodes, data_dir, console))
    if data is None:
        return made
    return made.forecasts if "windows" in made.summary else made.predictions


@dataclass(frozen=True)
class Prediction:
    """The predictions to be made by a run.

    Attributes
    ----------
    trained : RunFolder
        Folder of the run that trained the models.
    method : str
        The method that predicts.
    table : dict
        Its settings.
    node_config : dict
        Of the nodes that predict: that of the run, with new data of its sites if there are any.
    new_data : dict
        The key that names other new data.
    least_nodes : int
        Fewest nodes that it needs.
    """

    trained: RunFolder
    method: str
    table: dict[str, object]
    node_config: dict[str, Any]
    new_data: dict[str, str]
    least_nodes: int = 1

    @classmethod
    def of(
        cls,
        trained: RunFolder,
        samples: str | None = None,
        draws: int | None = None,
        windows: int | None = None,
        secret: str | None = None,
        data: Any = None,
    ) -> Prediction:
        """Check what is asked, as for :func:`predict`, and write new data to a file."""
        trained.find_code()
        _check_has_fusion_model(trained)
        head = load_experiment(trained.path / "experiment.toml")
        options = {"samples": samples, "draws": draws, "secret": secret, "windows": windows}
        table: dict[str, object] = {"run": str(trained.path)}
        if head.method.name == "f3-forecast":
            _check_options(options, ("samples", "draws", "secret"), "f3")
            known = {*EncoderSettings.keys()}
            table |= selected(head.method_table, known)
            table |= {} if windows is None else {"windows": windows}
            new = {} if data is None else {"f3-forecast-inference.data": str(_as_file(data, trained, "new"))}
            return cls(trained, "f3-forecast-inference", table, trained.node_config, new)
        _check_options(options, ("windows",), "f3-forecast")
        if samples not in (None, *get_args(SampleSplit)):
            raise ExperimentError(f"samples is one of {', '.join(get_args(SampleSplit))}, not '{samples}'")
        known = {*LocalModelSettings.keys(), "noise", "draws"}
        table |= selected(head.method_table, known)
        table |= {"samples": samples or "new", **({"draws": draws} if draws else {})}
        node_config, new = trained.node_config, dict[str, str]()
        if data is not None and SITES in node_config:
            node_config = with_data_of_sites(node_config, _samples_by_site(data, trained, head))
        elif data is not None:
            new = {"data.path": str(_samples(data, trained, head))}
        if secret is None:
            return cls(trained, "f3-inference", table, node_config, new)
        threshold, aggregators = _k_of_n(secret)
        table |= {"threshold": threshold, "aggregators": aggregators}
        if SITES in node_config:
            # There may be fewer sites than aggregators.
            node_config = with_aggregators(node_config, aggregators)
        else:
            table["simulated-aggregators"] = aggregators
        return cls(trained, "f3-secret", table, node_config, new, aggregators)

    def make(
        self,
        overrides: Overrides,
        grid: str,
        nodes: int,
        data_dir: str | Path | None,
        console: Console,
    ) -> RunFolder:
        """Make the predictions, as for :func:`predict`; return their run folder."""
        check_grid(grid)
        own = {f"{self.method}.{key}": value for key, value in self.table.items()}
        own["output.dir"] = str(self.trained.path / "predictions")
        keys = {**overrides_by_key(own, overrides), **self.new_data}
        if SITES in self.node_config:
            if "data.path" in keys:
                raise ExperimentError(
                    "the sites of this run have their own files, and data.path is not read: name new data by --data "
                    "(in Python data)"
                )
            check_sites_grid(grid)
        experiment = load_experiment(self.trained.path / "experiment.toml", keys, self.method)
        folder = RunFolder.create(experiment, Path(experiment.output.dir), self.trained.plugins, self.node_config)
        # Resumed like any other run, it would look for the frozen models in its own folder.
        run_one(
            folder, grid, max(nodes, self.least_nodes), None if data_dir is None else Path(data_dir), console,
            model_dir=_models_of(self.trained), advice="once that is mended, predict again",
        )  # fmt: skip
        return folder


def _as_file(data: Any, trained: RunFolder, name: str) -> Path:
    """Return the file of new data, in the folder of a run where they are in memory."""
    place = _new_place(trained, name)
    return as_file(data, place.parent, place.name).absolute()


def _new_place(trained: RunFolder, name: str) -> Path:
    """Return the path of a new file of data, without suffix, in the folder of a run."""
    return trained.path / "predictions" / "data" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{token_hex(4)}"


def _samples(data: Any, trained: RunFolder, head: Experiment, site: str = "") -> Path:
    """Return the file of new samples of F3, without labels: a sample that has one is not new to it."""
    settings: Any = head.data
    name = f"new-{file_name(site)}" if site else "new"
    place = _as_file(data, trained, name)
    if not hasattr(settings, "path"):
        raise ExperimentError(
            f"[data] set '{settings.set}' does not read files of yours, so it cannot predict another one: "
            "--samples new, train, validation or test are those of the set"
        )
    if isinstance(settings, PanelSettings):
        made = _new_place(trained, f"{name if site else place.stem}-without-labels")
        return without_labels(place, made.with_name(f"{made.name}.npz")).absolute()
    label = getattr(settings, "label", None)
    if label is None or not isinstance(settings, FileSettings):
        return place
    table = settings.read(place)
    if label not in table.names:
        return place
    if settings.columns:
        raise ExperimentError(
            f"{place} has no header and a column of labels: rows with a label are not new to f3; leave the column empty"
        )
    others = {column: values for column, values in table.columns.items() if column != label}
    return _as_file(pa.table(others), trained, f"{name if site else place.stem}-without-{file_name(label)}")


def _samples_by_site(data: Any, trained: RunFolder, head: Experiment) -> dict[str, Path]:
    """Return the file of each site: one for all, or one each where ``data`` is a mapping or a path with ``{client}``.

    Raises ExperimentError for an unknown site, and for windows of owners in one file for all.
    """
    sites = trained.node_config[SITES]
    if isinstance(data, str | Path) and CLIENT in str(data):
        data = {name: str(data).replace(CLIENT, name) for name in sites}
    if not isinstance(data, Mapping):
        if isinstance(head.data, PanelSettings) and len(sites) > 1:
            raise ExperimentError(
                "each site hosts all owners in its file of windows: name a file for each, --data 'new/{client}.npz', "
                "in Python a mapping by site"
            )
        return dict.fromkeys(sites, _samples(data, trained, head))
    unknown = [str(name) for name in data if name not in sites]
    if unknown or not data:
        named = f"unknown sites: {', '.join(unknown[:8])}" if unknown else "no sites"
        raise ExperimentError(f"new data of {named}; the sites of the run are {', '.join(sites)}")
    return {name: _samples(rows, trained, head, name) for name, rows in data.items()}


def has_fusion_model(trained: RunFolder) -> bool:
    """Return whether a run is of F3, or of its forecasts."""
    return _method_of(trained) in ("f3", "f3-forecast")


def _method_of(trained: RunFolder) -> str:
    """Return the method of a run, whose class need not be there any more; none where its experiment is damaged."""
    try:
        head = trained.tables.get("experiment", {})
    except RunError:  # loading the file raises the error
        return ""
    return str(head.get("method") or str(head.get("strategy")).rpartition(":")[2])


def _check_has_fusion_model(trained: RunFolder) -> None:
    """Raise ExperimentError for a run of another method."""
    name = _method_of(trained)
    if name and not has_fusion_model(trained):
        raise ExperimentError(
            f"{trained.path} is a run of {name}: name the data that it shall predict (--data new.csv, in Python data); "
            "only runs of f3 and f3-forecast predict samples and windows of their own data"
        )


def _check_options(options: Mapping[str, object], foreign: Sequence[str], method: str) -> None:
    """Raise ExperimentError for options that only apply to runs of another method."""
    given = [name for name in foreign if options[name] is not None]
    if given:
        raise ExperimentError(f"{' and '.join(given)} only applies to runs of {method}: leave it out")


def _models_of(trained: RunFolder) -> Path | None:
    """Return the folder of the owners' frozen models if the run has one; None for that of ``FEDGRAPH_MODELS``."""
    own = trained.path / "nodes" / "local-models"
    return own if own.is_dir() or not os.environ.get("FEDGRAPH_MODELS") else None


def _k_of_n(text: str) -> tuple[int, int]:
    """Parse ``2-of-3`` to ``(2, 3)``."""
    found = re.fullmatch(r"(\d+)-of-(\d+)", text)
    k, n = (int(part) for part in found.groups()) if found else (0, 0)
    if not 2 <= k <= n:
        raise ExperimentError(
            f"secret is '{text}'; it is written like 2-of-3: of 3 nodes 2 are needed, at least 2 and at most all"
        )
    return k, n
