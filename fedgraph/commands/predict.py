"""The command ``fedgraph predict``: predictions of other samples, or forecasts of later windows, by a run of F3."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console

from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    from fedgraph.runs import RunFolder

_USEFUL_BOUND = 0.5
"""A guaranteed bound on the error of probabilities above this is useless."""


def predict(
    run: Annotated[Path, typer.Argument(help="The run folder of a finished run of f3 or f3-forecast.")],
    samples: Annotated[str | None, typer.Option(help="new: without a label; or train, validation, test.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Graphs to average over; by default as the run had.")] = None,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Of f3-forecast: windows to forecast at most, the latest (288).")
    ] = None,
    grid: Annotated[str, typer.Option(help="local: in this process; flower: `flwr run`, nodes on Ray.")] = "local",
    secret: Annotated[
        str | None,
        typer.Option(help="2-of-3: on secret shares held by 3 nodes; any 2 of them could read the embeddings, 1 not."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the owners are dealt out to.")] = 2,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: experiment.on-missing=skip")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
) -> None:
    """Predict samples, or forecast windows, by a run of f3 or f3-forecast.

    The frozen models that the run was trained with send embeddings to its fusion model. Results are in a run folder of
    its own, in the folder `predictions` of the run.

    With a run of f3, samples are predicted: predictions.csv has their probabilities, and the deviation of these over
    graph draws.

    With a run of f3-forecast, windows are forecast that came after those of the run, up to the one that ends with the
    last reading. New readings stand behind those that were there in training: in the same data file, or in another
    one with both (--set data.path=later.csv). Every node writes a file for each client, here to nodes/forecasts/RUN in
    the run folder. Its columns are window, time (of the step that is forecast), forecast, reading (where there is one
    yet) and readings_in_window (how many there are among the steps that the window is forecast from).

    With --secret, embeddings are split into shares and the first layer is computed on those, in three exchanges: no
    other node and not the server sees an owner's embedding. Here the nodes of owners also act as aggregators, for a
    trial; how independent nodes do it, and what stays hidden, is described by `python -m pydoc fedgraph.privacy`.
    """
    from fedgraph.data.owners import SampleSplit
    from fedgraph.experiment import load_experiment
    from fedgraph.fusion.owner_models import LocalModelSettings
    from fedgraph.methods.f3_forecast import EncoderSettings
    from fedgraph.runs import RunFolder
    from fedgraph.runs.running import run_one
    from fedgraph.support.plugins import add_plugin_paths

    console = Console()
    with messages_for_people():
        if grid not in ("local", "flower"):
            raise ExperimentError(f"--grid is 'local' or 'flower', not '{grid}'")
        trained = RunFolder.open(run)
        add_plugin_paths(trained.plugins)
        _check_has_fusion_model(trained)
        head = load_experiment(trained.path / "experiment.toml")
        options = {"--samples": samples, "--draws": draws, "--secret": secret, "--windows": windows}
        table: dict[str, object] = {"run": str(trained.path)}
        if head.method.name == "f3":
            _check_options(options, ("--windows",), "f3-forecast")
            if samples not in (None, *get_args(SampleSplit)):
                raise ExperimentError(f"--samples is one of {', '.join(get_args(SampleSplit))}, not '{samples}'")
            method = "f3-inference"
            known = {*LocalModelSettings.keys(), "noise", "draws"}
            table |= {key: value for key, value in head.method_table.items() if key in known}
            table |= {"samples": samples or "new", **({"draws": draws} if draws else {})}
            if secret is not None:
                method, (threshold, aggregators) = "f3-secret", _k_of_n(secret)
                table |= {"threshold": threshold, "aggregators": aggregators, "simulated-aggregators": aggregators}
                nodes = max(nodes, aggregators)
        else:
            _check_options(options, ("--samples", "--draws", "--secret"), "f3")
            method = "f3-forecast-inference"
            known = set(EncoderSettings.keys())
            table |= {key: value for key, value in head.method_table.items() if key in known}
            table |= {} if windows is None else {"windows": windows}
        overrides = [f"{method}.{key}={_toml(value)}" for key, value in table.items()]
        overrides += [f"output.dir={json.dumps(str(trained.path / 'predictions'))}", *(set_ or [])]
        experiment = load_experiment(trained.path / "experiment.toml", overrides, method)
        folder = RunFolder.create(experiment, Path(experiment.output.dir), trained.plugins, trained.node_config)
        # Resumed like any other run, it would look for the frozen models in its own folder.
        advice = "once that is mended, predict again"
        summary = run_one(folder, grid, nodes, data_dir, console, model_dir=_models_of(trained), advice=advice)
    if method == "f3-forecast-inference":
        _tell_forecasts(console, summary, folder, trained)
    else:
        _tell_predictions(console, summary, folder, samples or "new", secret is not None)


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


def _tell_forecasts(console: Console, summary: Mapping[str, Any], folder: RunFolder, trained: RunFolder) -> None:
    from fedgraph.support.files import file_name

    windows, clients = (f"{summary[key]} {key if summary[key] != 1 else key[:-1]}" for key in ("windows", "clients"))
    console.print(f"{windows} of {clients} forecast", soft_wrap=True)
    means = {name: values["mean"] for name, values in summary["metrics"].get("later", {}).items()}
    for name, mean in means.items():
        if mean is not None:
            console.print(f"{name}: {mean:.3f}")
    if not any(mean is not None for mean in means.values()):
        console.print(
            "There is no reading yet to compare with: new readings stand behind those of training, in the same file or "
            "in another with both (--set data.path=later.csv).", soft_wrap=True, markup=False,
        )  # fmt: skip
    for note in summary.get("notes", ()):
        console.print(f"Note: {note}.", markup=False, soft_wrap=True)
    console.print(f"{folder.path / 'nodes' / 'forecasts' / file_name(trained.name)}", soft_wrap=True, highlight=False)


def _tell_predictions(
    console: Console, summary: Mapping[str, Any], folder: RunFolder, samples: str, secret: bool
) -> None:
    console.print(f"{summary['predictions']} samples predicted; data: {summary['data']}", soft_wrap=True)
    for name, values in summary["metrics"].get(samples, {}).items():
        console.print(f"{name}: {values['mean']:.3f}")
    if secret:
        bound = summary["probability_error_bound"]
        error = "how far probabilities may be off those without shares is not bounded usefully"
        if bound < _USEFUL_BOUND:
            error = f"no probability is off that without shares by more than {bound:.2g}, usually far less"
        console.print(
            f"{summary['exchanges']} exchanges, {summary['bytes_per_owner'] / 1e6:.2f} MB of shares from an owner; "
            f"{error} (the bound is smaller with --set f3-secret.largest=..., as small as embeddings allow)",
            soft_wrap=True,
        )
    console.print(f"{folder.path / 'predictions.csv'}", soft_wrap=True, highlight=False)


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
            f"--secret is '{text}'; it is written like 2-of-3: of 3 nodes 2 are needed, at least 2 and at most all"
        )
    return k, n


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
