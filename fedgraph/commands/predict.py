"""The commands ``fedgraph predict`` and ``export``: the models of a finished run, used here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    from fedgraph.runs import RunFolder

_USEFUL_BOUND = 0.5
"""A guaranteed bound on the error of probabilities above this is useless."""


def predict(
    run: Annotated[Path, typer.Argument(help="The run folder of a finished run.")],
    data: Annotated[Path | None, typer.Option(help="New data: a file like that of training, or a folder.")] = None,
    client: Annotated[str | None, typer.Option(help="Whose data it is, where the data do not say so.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for predictions of new data, .csv or .parquet; by default in the run.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of fedngm: the feature to predict.")] = None,
    samples: Annotated[
        str | None, typer.Option(help="Of f3: new (without a label), train, validation or test.")
    ] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Of f3: graphs to average over, as many as the run.")] = None,
    windows: Annotated[
        int | None, typer.Option(min=1, help="Of series: windows to forecast at most, the latest (f3-forecast: 288).")
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
    """Predict new data by the models of a run, or samples and later windows by a run of f3 or f3-forecast.

    New data have the columns that those of training had, in any order and in the same units; what is to be predicted,
    and the column of clients, may be missing. Each client's data are predicted by its own model, on its own scale;
    those of a client that the run does not know by the global model, where there is one. The file has a row for each
    prediction; where the data have what is predicted, errors are told too.

    With a run of f3, samples are predicted: predictions.csv has their probabilities, and the deviation of these over
    graph draws. The frozen models that the run was trained with send embeddings to its fusion model. Results are in a
    run folder of its own, in the folder `predictions` of the run.

    With a run of f3-forecast, windows are forecast, up to the one that ends with the last reading: those of new
    readings (--data later.csv), or without --data those behind the readings of training, in the data file of the run.
    Every node writes a file for each client, here to nodes/forecasts/RUN in the run folder. Its columns are
    window, time (of the step that is forecast), forecast, reading (where there is one yet) and readings_in_window (how
    many there are among the steps that the window is forecast from).

    With --secret, embeddings are split into shares and the first layer is computed on those, in three exchanges: no
    other node and not the server sees an owner's embedding. Here the nodes of owners also act as aggregators, for a
    trial; how independent nodes do it, and what stays hidden, is described by `python -m pydoc fedgraph.privacy`.
    """
    from fedgraph.experiment import overrides_by_key
    from fedgraph.runs import RunFolder
    from fedgraph.starting.predicting import Prediction, data_key, has_fusion_model

    console = Console()
    with messages_for_people():
        trained = RunFolder.open(run)
        if data is not None and not has_fusion_model(trained):
            refuse({"--samples": samples, "--draws": draws, "--secret": secret, "--set": set_}, "f3")
            _predict_new(console, trained, data, client, target, windows, out)
            return
        refuse({"--client": client, "--target": target, "--out": out}, "methods whose clients have models of their own")
        given = list(set_ or [])
        every = {**overrides_by_key(given), **dict([] if data is None else [data_key(trained, data)])}
        prediction = Prediction.of(trained, samples, draws, windows, secret)
        folder = prediction.make(every, grid, nodes, data_dir, console)
    summary = folder.summary()
    if prediction.method == "f3-forecast-inference":
        _tell_forecasts(console, summary, folder, trained)
    else:
        _tell_predictions(console, summary, folder, samples or "new", secret is not None)


def export(
    run: Annotated[Path, typer.Argument(help="The run folder of a finished run.")],
    file: Annotated[Path, typer.Argument(help="The file to write: .onnx or .safetensors.")],
    client: Annotated[str | None, typer.Option(help="Whose model; by default the global one.")] = None,
) -> None:
    """Write a trained model with its scaling for other programs.

    It takes values in their own units, NaN where missing, and returns forecasts and numbers in theirs, or the
    probability of each class. Names of features in order, classes and units are in the metadata of the file. ONNX has
    the whole computation; safetensors has the tensors of the model, and those of its scaling beside them.
    """
    from fedgraph.runs import load_run

    console = Console()
    with messages_for_people():
        written = load_run(run).export(file, client)
    console.print(f"Model: {written}", markup=False, soft_wrap=True, highlight=False)


def refuse(options: Mapping[str, object], method: str) -> None:
    """Raise ExperimentError for options that are about runs of another method."""
    given = [name for name, value in options.items() if value]
    if given:
        raise ExperimentError(f"{' and '.join(given)} is about runs of {method}: leave it out")


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
    from fedgraph.support.files import replacing

    place = out or trained.path / "predictions" / f"{data.name.partition('.')[0]}.csv"
    if place.suffix not in (".csv", ".parquet"):
        raise ExperimentError(f"--out {place}: predictions are written as .csv or .parquet")
    found = Run(trained).predicted(data, client, windows, target)
    table = found.table
    with replacing(place) as temporary:
        if place.suffix == ".csv":
            table.to_csv(temporary, index=False)
        else:
            table.to_parquet(temporary, index=False)
    clients = table["client"].nunique() if "client" in table else 1
    whose = f", of {clients:,} clients" if clients > 1 else ""
    console.print(f"{len(table):,} predictions{whose}", soft_wrap=True)
    for name, values in found.metrics.items():
        console.print(f"{name}: {float(values.nanmean()):.3f}")
    for note in found.notes:
        console.print(f"Note: {note}.", markup=False, soft_wrap=True, highlight=False)
    console.print(f"{place}", markup=False, soft_wrap=True, highlight=False)


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
            "in one of their own (--data later.csv).", soft_wrap=True, markup=False,
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
