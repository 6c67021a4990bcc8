"""The commands ``fedgraph predict`` and ``export``: use the models of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedgraph.support.errors import ExperimentError, counted
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    from fedgraph.runs import RunFolder

TRUST = "Also import code from the folders that the run names: only for your own runs."
_USEFUL_BOUND = 0.5
"""Bounds on the error of probabilities above this are not reported."""


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Annotated[Path | None, typer.Option(help="New data: a file or folder like that of training.")] = None,
    client: Annotated[str | None, typer.Option(help="The client of the data, unless the data name it.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the predictions, .csv or .parquet; by default in the run folder. Not for f3."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="fedngm: the feature to predict.")] = None,
    samples: Annotated[str | None, typer.Option(help="f3: new (without a label), train, validation or test.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="f3: graphs to average over; by default the run's.")] = None,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Series: maximum number of windows, the latest (f3-forecast: 288).")
    ] = None,
    grid: Annotated[str, typer.Option(help="local: in this process; flower: `flwr run`, nodes on Ray.")] = "local",
    secret: Annotated[
        str | None,
        typer.Option(help="2-of-3: on secret shares of 3 nodes; any 2 of them could read the embeddings, 1 cannot."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 2,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: experiment.on-missing=skip")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
) -> None:
    """Predict new data with the models of a run, or samples and later windows with a run of f3 or f3-forecast.

    New data have the columns of the training data, in any order and the same units; the target and the client column
    may be missing. Each client's data is predicted by its own model and scale, that of unknown clients by the
    global model, if any. The file has a row per prediction. If the data have the target, metrics are printed.

    For a run of f3, predictions.csv has the probabilities of samples and their deviation over graph draws. Owners send
    embeddings of their frozen models to the fusion model of the run. Results are in a new run folder in `predictions`
    of the run. Sites of a rehearsal read their own columns of --data, or have a file each: --data 'new/{client}.csv'.

    For a run of f3-forecast, windows are forecast, up to the one that ends with the last reading. They are in new
    readings (--data later.csv), or after the training readings in the run's data file. Nodes write a file per client,
    here to nodes/forecasts/RUN in the run folder, with columns window, time (of the forecast step), forecast, reading
    (if known) and readings_in_window (number of readings among the input steps).

    With --secret, embeddings are split into shares, and the first layer is computed on shares in three exchanges:
    neither the server nor any single other node sees an owner's embedding. Here the nodes of owners also act as
    aggregators, or after a run over sites further nodes without data; for independent nodes and guarantees see
    `python -m pydoc fedgraph.privacy`.
    """
    from fedgraph.runs import RunFolder
    from fedgraph.starting.predicting import Prediction, has_fusion_model

    console = Console()
    with messages_for_people():
        trained = RunFolder.open(run, trust)
        if data is not None and not has_fusion_model(trained):
            refuse({"--samples": samples, "--draws": draws, "--secret": secret, "--set": set_}, "f3")
            _predict_new(console, trained, data, client, target, windows, out)
            return
        refuse({"--client": client, "--target": target, "--out": out}, "methods with client models")
        prediction = Prediction.of(trained, samples, draws, windows, secret, data)
        folder = prediction.make(set_ or (), grid, nodes, data_dir, console)
    summary = folder.summary()
    if prediction.method == "f3-forecast-inference":
        _tell_forecasts(console, summary, folder, trained)
    else:
        _tell_predictions(console, summary, folder, samples or "new", secret is not None)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    file: Annotated[Path, typer.Argument(help="The file to write: .onnx or .safetensors.")],
    client: Annotated[
        str | None, typer.Option(help="The client whose model to write; by default the global one.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
) -> None:
    """Write a trained model with its scaling for other programs.

    The model takes values in their original units, NaN where missing, and returns forecasts and numbers in their units,
    or the probability of each class. The metadata of the file contain the features in order, classes and units. ONNX
    files contain the whole computation, safetensors files the tensors of the model and of its scaling.
    """
    from fedgraph.runs import load_run

    console = Console()
    with messages_for_people():
        written = load_run(run, trust).export(file, client)
    console.print(f"Model: {written}", markup=False, soft_wrap=True, highlight=False)


def refuse(options: Mapping[str, object], method: str) -> None:
    """Raise ExperimentError for options that only apply to runs of another method."""
    used = [name for name, value in options.items() if value]
    if used:
        raise ExperimentError(f"{' and '.join(used)} only applies to runs of {method}: leave it out")


def _predict_new(
    console: Console,
    trained: RunFolder,
    data: Path,
    client: str | None,
    target: str | None,
    windows: int | None,
    out: Path | None,
) -> None:
    from fedgraph.runs import Run
    from fedgraph.support.csv_text import as_csv
    from fedgraph.support.files import replacing

    place = out or trained.path / "predictions" / f"{data.name.partition('.')[0]}.csv"
    if place.suffix not in (".csv", ".parquet"):
        raise ExperimentError(f"--out {place}: the suffix must be .csv or .parquet")
    prediction = Run(trained).predicted(data, client, windows, target)
    table = prediction.table
    with replacing(place) as temporary:
        if place.suffix == ".csv":
            rows = table.astype(object).where(table.notna(), None).to_numpy().tolist()
            temporary.write_bytes(as_csv([list(table.columns), *rows]).encode())
        else:
            table.to_parquet(temporary, index=False)
    clients = table["client"].nunique() if "client" in table else 1
    whose = f", of {clients:,} clients" if clients > 1 else ""
    console.print(f"{counted(len(table), 'prediction')}{whose}", soft_wrap=True)
    for name, values in prediction.metrics.items():
        console.print(f"{name}: {float(values.nanmean()):.3f}")
    for note in prediction.notes:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True, highlight=False)
    console.print(f"{place}", markup=False, soft_wrap=True, highlight=False)


def _tell_forecasts(console: Console, summary: Mapping[str, Any], folder: RunFolder, trained: RunFolder) -> None:
    from fedgraph.support.files import file_name

    windows, clients = (counted(summary[key], key.removesuffix("s")) for key in ("windows", "clients"))
    console.print(f"{windows} of {clients} forecast", soft_wrap=True)
    means = {name: values["mean"] for name, values in summary["metrics"].get("later", {}).items()}
    for name, mean in means.items():
        if mean is not None:
            console.print(f"{name}: {mean:.3f}")
    if not any(mean is not None for mean in means.values()):
        console.print(
            "No readings yet to compare with: add new readings after those of training, to the same file or to another "
            "(--data later.csv).", soft_wrap=True, markup=False,
        )  # fmt: skip
    for note in summary.get("notes", ()):
        console.print(f"Note: {note}.", markup=False, soft_wrap=True)
    console.print(f"{folder.path / 'nodes' / 'forecasts' / file_name(trained.run)}", soft_wrap=True, highlight=False)


def _smaller_bound(folder: RunFolder) -> str:
    """Say which keys make the bound on the error of predictions on shares smaller, and what they are now."""
    table = folder.tables["f3-secret"]
    return (
        "To make the bound smaller, lower largest (owners refuse embeddings beyond it), then raise map-bits as far as "
        f"there is room; now --set f3-secret.largest={table['largest']:g} "
        f"--set f3-secret.map-bits={table['map-bits']}"
    )


def _tell_predictions(
    console: Console, summary: Mapping[str, Any], folder: RunFolder, samples: str, secret: bool
) -> None:
    console.print(f"{counted(summary['predictions'], 'sample')} predicted; data: {summary['data']}", soft_wrap=True)
    for name, values in summary["metrics"].get(samples, {}).items():
        console.print(f"{name}: {values['mean']:.3f}")
    if secret:
        bound = summary["probability_error_bound"]
        error = "there is no useful bound on the error of probabilities"
        if bound < _USEFUL_BOUND:
            error = f"the error of probabilities is at most {bound:.2g}, usually far less"
        exchanges = counted(summary["exchanges"], "exchange")
        console.print(
            f"{exchanges}, {summary['bytes_per_owner'] / 1e6:.2f} MB of shares per owner; {error}. "
            f"{_smaller_bound(folder)}",
            soft_wrap=True,
            markup=False,
        )
    console.print(f"{folder.path / 'predictions.csv'}", soft_wrap=True, highlight=False)
