"""The command ``fedgraph run``: run an experiment with one or several methods, or resume a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedgraph.commands.deployment.node_command import pairs
from fedgraph.commands.predict import TRUST
from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import ended_by_hand, messages_for_people

_DEFAULT = "sfl/digits.toml"
_NOTHING_LEFT = "Stopped.\nNothing was computed yet, and no files are left."


def run(
    experiment: Annotated[str, typer.Argument(help="TOML file, or the name of an included one.")] = _DEFAULT,
    grid: Annotated[str, typer.Option(help="local: in this process; flower: `flwr run`, nodes on Ray.")] = "local",
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 2,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: train.learning-rate=0.05")] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Also run this method (name or dotted path), and compare.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to put run folders, instead of [output] dir.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the summaries to this file as a list.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw graph and learning curves to this file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    site: Annotated[
        list[str] | None, typer.Option(help="A node with its own file, as in a deployment: mercy=mercy.csv.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="An existing model of a client or site: client=path.")] = None,
    node_config: Annotated[
        list[str] | None, typer.Option(help="A key of all node configs: key=value; of one site: mercy:key=value.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help=f"With --resume: {TRUST[0].lower()}{TRUST[1:]}")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live display, only the results.")] = False,
) -> None:
    """Run an experiment, or resume one that was stopped.

    `fedgraph runs` lists runs, `fedgraph compare` shows finished ones in one table.

    With --site, repeated for each site, the run rehearses a deployment in this process: each site is a node with its
    own file instead of [data] path. A site's name is its client's, unless its file names clients.
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
                    "--resume cannot be combined with --set, --compare, --out, --model, --node-config and --site"
                )
            runs = side_by_side(
                [go_on(resume, grid=grid, nodes=nodes, data_dir=data_dir, progress=not quiet, trust=trust)]
            )
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
    printed: set[str] = set()
    for folder, summary in zip(folders, summaries, strict=True):
        # Several methods have the same notes on one graph.
        notes = [note for note in summary.get("notes", ()) if note not in printed]
        printed.update(notes)
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
    """Return the values of an option by key. Raises ExperimentError for repeated keys."""
    values = pairs(option, entries)
    if len(values) < len(entries):
        raise ExperimentError(f"{option} has a repeated name: {', '.join(entries)}")
    return values


def _by_site(config: dict[str, str]) -> dict[str, Any]:
    """Return the node config, with keys of single sites, ``site:key``, as a table per site."""
    tables: dict[str, Any] = {key: value for key, value in config.items() if ":" not in key}
    for key, value in config.items():
        site, colon, own_key = key.rpartition(":")
        if colon:
            tables.setdefault(site, {})[own_key] = value
    return tables


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
        raise ExperimentError(f"cannot draw to {file}: the suffix must be one of {', '.join(suffixes)}")
