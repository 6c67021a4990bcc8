"""The command ``fedgraph``: run experiments, reproduce tables, list methods, see to data, start nodes and servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgraph.commands.deployment.credentials import credentials_for_testing
from fedgraph.commands.deployment.node_command import node
from fedgraph.commands.deployment.server_command import server
from fedgraph.commands.keys import describe, setting_tables
from fedgraph.commands.peers import peers
from fedgraph.commands.predict import predict
from fedgraph.data import OF_ONES_OWN, CatalogueEntry, catalogue_entries, data_folder, downloads, find
from fedgraph.experiment import find_experiment, load_experiment
from fedgraph.methods import built_ins
from fedgraph.reproduce import reproduce
from fedgraph.runs import RunFolder
from fedgraph.runs.reports import PICTURES, plot_runs, results_table, sentence
from fedgraph.runs.running import add_plugin_paths, run_one
from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import messages_for_people
from strategies.engine.chosen import ChosenMethod

_OURS = ("sfl", "f3", "ipa", "fedngm")

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__)

_DEFAULT = "sfl/digits.toml"


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="TOML file; those that come along are found by name.")] = _DEFAULT,
    grid: Annotated[str, typer.Option(help="local: in this process; flower: `flwr run`, nodes on Ray.")] = "local",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the clients are dealt out to.")] = 2,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: train.learning-rate=0.05")] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Also run this method (name or path), for one table.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for run folders, instead of [output] dir.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the summaries to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw graph and learning curves into this file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
) -> None:
    """Run an experiment, or continue one that was stopped."""
    console = Console()
    with messages_for_people():
        if grid not in ("local", "flower"):
            raise ExperimentError(f"--grid is 'local' or 'flower', not '{grid}'")
        for file, suffixes in ((json_, None), (plot, PICTURES)):
            _check_writable(file, suffixes)
        if resume is not None:
            if set_ or compare or out:
                raise ExperimentError("--resume goes on with a run as it was, without --set, --compare or --out")
            folders = [RunFolder.open(resume)]
            folders[0].check_unfinished()
            add_plugin_paths(folders[0].plugins)
        else:
            plugins = [str(find_experiment(experiment).parent), str(Path.cwd())]
            add_plugin_paths(plugins)
            overrides = [*(set_ or []), *([f"output.dir={json.dumps(str(out))}"] if out else [])]
            experiments = [load_experiment(experiment, overrides, method) for method in (None, *(compare or []))]
            for each in experiments:
                ChosenMethod(each)
            folders = [RunFolder.create(each, Path(each.output.dir), plugins) for each in experiments]
        summaries = [run_one(folder, grid, nodes, data_dir, console) for folder in folders]
    console.print(results_table(summaries))
    console.print(sentence(summaries))
    for folder, summary in zip(folders, summaries, strict=True):
        for note in summary.get("notes", ()):
            console.print(f"Note: {note}.", markup=False, soft_wrap=True)
        if "model_file" in summary:
            console.print(f"Model: {folder.path / summary['model_file']}", markup=False, soft_wrap=True)
        console.print(f"Run folder: {folder.path}", soft_wrap=True)
    if json_ is not None:
        json_.write_text(json.dumps(summaries if len(summaries) > 1 else summaries[0], indent=2) + "\n")
    if plot is not None:
        with messages_for_people():
            plot_runs(folders, plot)


app.command()(reproduce)
app.command()(predict)
app.command()(peers)
app.command()(node)
app.command()(server)
app.command("test-credentials")(credentials_for_testing)


@app.command()
def methods() -> None:
    """List the built-in methods and what they need."""
    table = Table()
    for column in ("method", "what it is", "needs", "paper"):
        table.add_column(column, overflow="fold")
    # Methods for graphs first, then the baselines.
    for name, found in sorted(built_ins().items(), key=lambda item: item[0].split("-")[0] not in _OURS):
        told: list[str] = [getattr(found, key) for key in ("title", "needs", "paper")]
        table.add_row(name, *map(escape, told))
    console = Console()
    console.print(table)
    console.print(
        "Any strategy of flwr.serverapp.strategy, and your own, by dotted path: "
        '[experiment] strategy = "package.module:Class"',
        markup=False,
    )


@app.command()
def keys(table: Annotated[str | None, typer.Argument(help="experiment, graph, metr-la, gru, sfl, ...")] = None) -> None:
    """List the keys of an experiment's tables, and of those of `reproduce`: types, defaults and what they mean."""
    console = Console()
    tables = setting_tables()
    with messages_for_people():
        if table is not None and table not in tables:
            raise ExperimentError(f"there is no table '{table}'; known: {', '.join(tables)}")
    for name, (heading, kind) in tables.items():
        if table is None or name == table:
            console.print(f"[bold]{escape(heading)}[/bold]")
            for line in describe(kind, name):
                console.print(f"    {line}", markup=False, soft_wrap=True, highlight=False)


@app.command()
def data(
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    download: Annotated[str | None, typer.Option(help="Fetch the files of this data set.")] = None,
) -> None:
    """List the data sets: licence, size, where their files are looked for and whether they are there."""
    console = Console()
    folder = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
    with messages_for_people():
        if download is not None:
            _download(download, folder, console)
            return
    console.print(f"Data folder: {folder}\n", soft_wrap=True)
    for entry in catalogue_entries():
        console.print(f"[bold]{entry.name}[/bold]  {escape(entry.title)}, {escape(entry.size)}")
        console.print(f"    licence: {entry.licence}", markup=False)
        if entry.notes:
            console.print(f"    {entry.notes}", markup=False)
        for line in _where(entry, folder):
            console.print(f"    {line}", markup=False, soft_wrap=True)
    console.print(
        f"\nData of your own: {', '.join(OF_ONES_OWN)}, from what [data] path names, or at each node from a file of "
        "its own (node config key data); `fedgraph keys series` and so on have the details.",
        soft_wrap=True,
        markup=False,
    )


def _where(entry: CatalogueEntry, folder: Path) -> list[str]:
    """Return where the files of a data set are, or where they are looked for and how to get them."""
    if not entry.alternatives:
        return ["needs no files"]
    found = find(entry, folder)
    if found is not None:
        return ["found: " + ", ".join(map(str, found))]
    wanted = [" + ".join(str(folder / file.path) for file in files) for files in entry.alternatives]
    served = downloads(entry)
    how = f"fedgraph data --download {entry.name}" if all(file.download for file in served) else "by hand from"
    return [
        "not found; looked for: " + ", or ".join(wanted),
        f"get it: {how} ({', '.join(dict.fromkeys(file.url for file in served))})",
    ]


def _download(name: str, folder: Path, console: Console) -> None:
    from rich.progress import Progress

    from fedgraph.data import fetch

    entries = {entry.name: entry for entry in catalogue_entries()}
    if name not in entries:
        raise ExperimentError(f"no data set '{name}'; known: {', '.join(entries)}")
    entry = entries[name]
    if not entry.alternatives:
        console.print(f"{name} needs no download.")
        return
    if all((folder / file.path).exists() for file in downloads(entry)):
        console.print(f"{name} is already in {folder}.")
        return
    for file in downloads(entry):
        target = folder / file.path
        if target.exists():
            continue
        if not file.download:
            console.print(f"{file.url} does not serve the file itself: fetch it by hand and put it at {target}")
            continue
        with Progress(console=console) as progress:
            task = progress.add_task(file.path.name, total=file.size_bytes)
            fetch(
                file.url,
                target,
                sha256=file.sha256,
                progress=lambda done, total: progress.update(task, completed=done, total=total),  # noqa: B023
            )


def _check_writable(file: Path | None, suffixes: tuple[str, ...] | None) -> None:
    """Check before a run that its results can be written."""
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperimentError(f"cannot write {file}: {error}") from None
    if file.is_dir():
        raise ExperimentError(f"cannot write {file}: it is a folder")
    if suffixes is not None and file.suffix.lower() not in suffixes:
        raise ExperimentError(f"cannot draw into {file}: known kinds are {', '.join(suffixes)}")
