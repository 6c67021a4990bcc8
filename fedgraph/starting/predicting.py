"""Predictions by a finished run: of new data, by the models of any method; of other samples and windows, by F3."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
from rich.console import Console

from fedgraph.algorithms.f3_forecast_settings import EncoderSettings
from fedgraph.data import as_file
from fedgraph.data.columns import FileSettings
from fedgraph.data.owners import SampleSplit
from fedgraph.experiment import Overrides, load_experiment, overrides_by_key
from fedgraph.fusion.owner_models import LocalModelSettings
from fedgraph.runs import Run, RunFolder
from fedgraph.starting.running import check_grid, run_one
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import file_name
from fedgraph.support.plugins import add_plugin_paths
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
) -> Any:
    """Predict new data by a run of any method, or samples and later windows by one of ``f3`` or ``f3-forecast``.

    Methods that end with models predict new data as :meth:`fedgraph.Run.predict` does. With ``f3`` and ``f3-forecast``
    the frozen models that the run was trained with send embeddings to its fusion model. That is a separate run, whose
    folder is in the folder ``predictions`` of the run.

    Parameters
    ----------
    run : Run, RunFolder, str or Path
        A finished run, or its folder.
    data : data frame, array, str or Path, optional
        New data, with the columns of training in any order. Without it, those of the run: of ``f3`` the samples
        without a label, of ``f3-forecast`` the windows behind those of training.
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
    trained = run.folder if isinstance(run, Run) else run if isinstance(run, RunFolder) else RunFolder.open(run)
    console = Console(quiet=not progress)
    options = {"samples": samples, "draws": draws, "secret": secret, "set": set or None}
    if data is not None and not has_fusion_model(trained):
        _check_options(options, tuple(options), "f3")
        # The models of a Run that is given are read once for all of its predictions.
        return (run if isinstance(run, Run) else Run(trained)).predict(data, client, windows, target)
    about = {"client": client, "target": target}
    _check_options(about, tuple(about), "methods with client models")
    given = () if data is None else (data_key(trained, data),)
    every = {**overrides_by_key({}, set), **dict(given)}
    made = Run(Prediction.of(trained, samples, draws, windows, secret).make(every, grid, nodes, data_dir, console))
    if data is None:
        return made
    return made.forecasts if "windows" in made.summary else made.predictions


def data_key(trained: RunFolder, data: Any) -> tuple[str, str]:
    """Return the key that names new data of a run of F3, without labels: what has one is not new to it."""
    folder = trained.path / "predictions" / "data"
    place = as_file(data, folder, f"new-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}").absolute()
    if _method_of(trained) == "f3-forecast":
        return "f3-forecast-inference.data", str(place)
    settings: Any = load_experiment(trained.path / "experiment.toml").data
    if not hasattr(settings, "path"):
        raise ExperimentError(
            f"[data] set '{settings.set}' does not read files of yours, so it cannot predict another one: "
            "--samples new, train, validation or test are those of the set"
        )
    label = getattr(settings, "label", None)
    if label is None or not isinstance(settings, FileSettings):
        return "data.path", str(place)
    table = settings.read(place)
    if label not in table.names:
        return "data.path", str(place)
    if settings.columns:
        raise ExperimentError(
            f"{place} has no header and a column of labels: rows with a label are not new to f3; leave the column empty"
        )
    others = {name: column for name, column in table.columns.items() if name != label}
    return "data.path", str(as_file(pa.table(others), folder, f"{place.stem}-without-{file_name(label)}").absolute())


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
    least_nodes : int
        Fewest nodes that it needs.
    """

    trained: RunFolder
    method: str
    table: dict[str, object]
    least_nodes: int = 1

    @classmethod
    def of(
        cls,
        trained: RunFolder,
        samples: str | None = None,
        draws: int | None = None,
        windows: int | None = None,
        secret: str | None = None,
    ) -> Prediction:
        """Check what is asked, as for :func:`predict`."""
        add_plugin_paths(trained.plugins)
        _check_has_fusion_model(trained)
        head = load_experiment(trained.path / "experiment.toml")
        options = {"samples": samples, "draws": draws, "secret": secret, "windows": windows}
        table: dict[str, object] = {"run": str(trained.path)}
        if head.method.name == "f3-forecast":
            _check_options(options, ("samples", "draws", "secret"), "f3")
            known = {*EncoderSettings.keys()}
            table |= selected(head.method_table, known)
            return cls(trained, "f3-forecast-inference", table | ({} if windows is None else {"windows": windows}))
        _check_options(options, ("windows",), "f3-forecast")
        if samples not in (None, *get_args(SampleSplit)):
            raise ExperimentError(f"samples is one of {', '.join(get_args(SampleSplit))}, not '{samples}'")
        known = {*LocalModelSettings.keys(), "noise", "draws"}
        table |= selected(head.method_table, known)
        table |= {"samples": samples or "new", **({"draws": draws} if draws else {})}
        if secret is None:
            return cls(trained, "f3-inference", table)
        threshold, aggregators = _k_of_n(secret)
        table |= {"threshold": threshold, "aggregators": aggregators, "simulated-aggregators": aggregators}
        return cls(trained, "f3-secret", table, aggregators)

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
        keys = overrides_by_key(own, overrides)
        experiment = load_experiment(self.trained.path / "experiment.toml", keys, self.method)
        folder = RunFolder.create(
            experiment, Path(experiment.output.dir), self.trained.plugins, self.trained.node_config
        )
        # Resumed like any other run, it would look for the frozen models in its own folder.
        run_one(
            folder, grid, max(nodes, self.least_nodes), None if data_dir is None else Path(data_dir), console,
            model_dir=_models_of(self.trained), advice="once that is mended, predict again",
        )  # fmt: skip
        return folder


def has_fusion_model(trained: RunFolder) -> bool:
    """Return whether a run is of F3, or of its forecasts."""
    return _method_of(trained) in ("f3", "f3-forecast")


def _method_of(trained: RunFolder) -> str:
    """Return the method of a run, whose class need not be there any more; none where its experiment is damaged."""
    try:
        head = trained.tables.get("experiment", {})
    except ValueError:  # loading the file raises the error
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
