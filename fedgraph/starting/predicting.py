"""Predictions of other samples, or forecasts of later windows, by a finished run of F3."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from fedgraph.algorithms.f3_forecast_settings import EncoderSettings
from fedgraph.data.owners import SampleSplit
from fedgraph.experiment import Overrides, load_experiment, overrides_by_key
from fedgraph.fusion.owner_models import LocalModelSettings
from fedgraph.runs import Run, RunFolder
from fedgraph.starting.running import check_grid, run_one
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import add_plugin_paths
from fedgraph.support.settings import selected


def predict(
    run: Run | RunFolder | str | Path,
    *,
    samples: str | None = None,
    draws: int | None = None,
    windows: int | None = None,
    secret: str | None = None,
    set: str | Iterable[str] | Mapping[str, Any] = (),
    grid: str = "local",
    nodes: int = 2,
    data_dir: str | Path | None = None,
    progress: bool = True,
) -> Run:
    """Predict samples by a run of ``f3``, or forecast windows by one of ``f3-forecast``.

    The frozen models that the run was trained with send embeddings to its fusion model. The predictions are a run of
    their own, whose folder is in the folder ``predictions`` of the run.

    Parameters
    ----------
    run : Run, RunFolder, str or Path
        A finished run, or its folder.
    samples : {"new", "train", "validation", "test"}, optional
        Of ``f3``: the samples. By default those without a label.
    draws : int, optional
        Of ``f3``: graphs to average over; by default as the run had.
    windows : int, optional
        Of ``f3-forecast``: windows to forecast at most, the latest; by default 288.
    secret : str, optional
        Of ``f3``: ``"2-of-3"`` computes the first layer on secret shares held by 3 nodes, of which any 2 suffice.
    set : str, mapping or iterable of str, optional
        Keys to override: ``{"data.path": "new.csv"}``.
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
    Run
        Its ``predictions``, or ``forecasts``, are a data frame.

    Raises
    ------
    FedgraphError
        For a run of another method, options that it does not have, and where the predictions cannot be made.
    """
    trained = run.folder if isinstance(run, Run) else run if isinstance(run, RunFolder) else RunFolder.open(run)
    console = Console(quiet=not progress)
    return Run(Prediction.of(trained, samples, draws, windows, secret).make(set, grid, nodes, data_dir, console))


@dataclass(frozen=True)
class Prediction:
    """What is to be predicted by a run.

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


def _check_has_fusion_model(trained: RunFolder) -> None:
    """Raise ExperimentError for a run of another method, whose class need not be there any more."""
    try:
        head = trained.tables.get("experiment", {})
    except ValueError:  # what is wrong with the file is said when it is loaded
        return
    name = head.get("method") or str(head.get("strategy")).rpartition(":")[2]
    if name not in ("f3", "f3-forecast"):
        raise ExperimentError(
            f"{trained.path} is a run of {name}; only runs of f3 and f3-forecast have a fusion model to predict with"
        )


def _check_options(options: Mapping[str, object], foreign: Sequence[str], method: str) -> None:
    """Raise ExperimentError when options are given that are about runs of another method."""
    given = [name for name in foreign if options[name] is not None]
    if given:
        raise ExperimentError(f"{' and '.join(given)} is about runs of {method}: leave it out")


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
