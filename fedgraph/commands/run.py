"""The command ``fedgraph run``: run an experiment, or several methods beside each other, or go on with a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgraph.commands.deployment.node_command import pairs
from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import ended_by_hand, messages_for_people

_DEFAULT = "sfl/digits.toml"
_NOTHING_LEFT = "Stopped.\nNothing was computed yet, and nothing is left."


def run(
    experiment: Annotated[str, typer.Argument(help="TOML file; those that come along are found by name.")] = _DEFAULT,
    grid: Annotated[str, typer.Option(help="local: in this process; flower: `flwr run`, nodes on Ray.")] = "local",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that the clients are dealt out to.")] = 2,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: train.learning-rate=0.05")] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Also run this method (name or path), for one table.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for run folders, instead of [output] dir.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the summaries to this file, a list.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw graph and learning curves into this file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    site: Annotated[
        list[str] | None, typer.Option(help="A node with a file of its own, as in a deployment: mercy=mercy.csv.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model that a client, or a site, has already: client=path.")
    ] = None,
    node_config: Annotated[
        list[str] | None, typer.Option(help="A key of every node's config: key=value; of one site: mercy:key=value.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run folder.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live display, only the results.")] = False,
) -> None:
    """Run an experiment, or go on with one that was stopped.

    `fedgraph runs` lists the runs afterwards, `fedgraph compare` puts finished ones into one table.

    With --site, once for each site, the run is a rehearsal of a deployment in this process: a node for each, with its
    own file in place of [data] path. A site is the client of its name, unless its file names clients.
    """
    from fedgraph.runs import compare as side_by_side
    from fedgraph.runs.reports import PICTURES
    from fedgraph.runs.reports.page import place_of_report
    from fedgraph.starting.running import resume as go_on
    from fedgraph.starting.running import run_methods

    console = Console()
    with messages_for_people(), ended_by_hand(console, _NOTHING_LEFT):
        for file, suffixes in ((json_, None), (plot, PICTURES)):
            _check_writable(file, suffixes)
        if resume is not None:
            if set_ or compare or out or model or node_config or site:
                raise ExperimentError(
                    "--resume goes on with a run as it was, without --set, --compare, --out and the like"
                )
            runs = side_by_side([go_on(resume, grid=grid, nodes=nodes, data_dir=data_dir, progress=not quiet)])
        else:
            runs = run_methods(
                experiment,
                [None, *(compare or [])],
                set=set_ or [],
                grid=grid,
                nodes=nodes,
                data_dir=data_dir,
                out=out,
                progress=not quiet,
                models=pairs("--model", model or []),
                node_config=_by_site(pairs("--node-config", node_config or [])),
                sites=_once("--site", site or []),
            )
    console.print(runs)
    folders, summaries = [run.folder for run in runs], [run.summary for run in runs]
    noted: set[str] = set()
    for folder, summary in zip(folders, summaries, strict=True):
        # Several methods have the same to say about one graph.
        notes = [note for note in summary.get("notes", ()) if note not in noted]
        noted.update(notes)
        for note in notes:
            console.print(f"Note: {note}.", markup=False, soft_wrap=True)
        if "model_file" in summary:
            console.print(f"Model: {folder.path / summary['model_file']}", markup=False, soft_wrap=True)
        if (folder.path / "nodes" / "forecasts").is_dir():
            console.print(f"Forecasts: {folder.path / 'nodes' / 'forecasts'}", markup=False, soft_wrap=True)
        console.print(f"Run folder: {folder.path}", soft_wrap=True)
    report = place_of_report(runs)
    if report.is_file():
        console.print(f"Report: {report}", markup=False, soft_wrap=True)
    if json_ is not None:
        json_.write_text(json.dumps(runs.as_json(), indent=2) + "\n")
    if plot is not None:
        with messages_for_people():
            runs.plot().savefig(plot)


def _once(option: str, entries: list[str]) -> dict[str, str]:
    """Return the values of an option by key, each of which is given once."""
    found = pairs(option, entries)
    if len(found) < len(entries):
        raise ExperimentError(f"{option} is given twice for one name: {', '.join(entries)}")
    return found


def _by_site(config: dict[str, str]) -> dict[str, Any]:
    """Return keys of the node config, those of single sites, ``site:key``, as a table of each site."""
    found: dict[str, Any] = {key: value for key, value in config.items() if ":" not in key}
    for key, value in config.items():
        site, colon, own = key.rpartition(":")
        if colon:
            found.setdefault(site, {})[own] = value
    return found


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
