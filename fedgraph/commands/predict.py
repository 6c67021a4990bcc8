"""The command ``fedgraph predict``: predictions of other samples, or forecasts of later windows, by a run of F3."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

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
    from fedgraph.runs import RunFolder
    from fedgraph.starting.predicting import Prediction

    console = Console()
    with messages_for_people():
        trained = RunFolder.open(run)
        prediction = Prediction.of(trained, samples, draws, windows, secret)
        folder = prediction.make(set_ or [], grid, nodes, data_dir, console)
    summary = folder.summary()
    if prediction.method == "f3-forecast-inference":
        _tell_forecasts(console, summary, folder, trained)
    else:
        _tell_predictions(console, summary, folder, samples or "new", secret is not None)


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
