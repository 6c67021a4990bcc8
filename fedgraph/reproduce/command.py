"""The command ``fedgraph reproduce``: run the cells of a published table, then write and print it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgraph.reproduce.cells import Cell, CellMaker, overrides_that_count, text_digest
from fedgraph.reproduce.choosing import plan_cells, plan_choices, trials_csv
from fedgraph.reproduce.csv_files import long_csv, paired_csv, summary_csv
from fedgraph.reproduce.execution import Execution, run_cells
from fedgraph.reproduce.figures import draw
from fedgraph.reproduce.result_file import check_no_overrides, export
from fedgraph.reproduce.results import Results, read_outcomes
from fedgraph.reproduce.table import Profile
from fedgraph.reproduce.table_files import files_that_come_along, load_table
from fedgraph.reproduce.text import markdown, terminal_tables
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import ExperimentError, if_any
from fedgraph.support.files import write_atomically
from fedgraph.support.plugins import add_plugin_paths
from fedgraph.support.terminal import GOES_ON, ended_by_hand, messages_for_people, seeds_given


def reproduce(
    name: str | None,
    *,
    profile: str,
    rows: str | None,
    columns: str | None,
    seeds: str | None,
    nodes: int,
    out: Path,
    data_dir: Path | None,
    overrides: Sequence[str],
    only_list: bool,
    results_dir: Path | None,
    keep_models: bool,
    quiet: bool,
) -> None:
    """Run the command; see :mod:`fedgraph.commands.reproduce` for its options."""
    console, progress = Console(), Console(quiet=quiet)
    if name is None:
        _list_tables(console)
        return
    with messages_for_people():
        folder = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
        chosen_seeds = seeds_given(seeds)
        short, table, file = load_table(name)
        known = [known for known in get_args(Profile) if known in table.profiles]
        if profile not in known:
            raise ExperimentError(f"{short} has no profile '{profile}'{if_any('; known: ', ', '.join(known))}")
        size = table.profiles[profile]  # type: ignore[index]
        plugins = (str(file.parent), str(Path.cwd()))
        add_plugin_paths(plugins)
        usual = size.seeds or table.table.seeds
        wanted = chosen_seeds or usual
        planned = tuple(dict.fromkeys((*usual, *wanted)))
        maker = CellMaker(table, size, tuple(overrides), (out / "cells").resolve(), file.parent)
        choices = plan_choices(maker, usual)
        cells = plan_cells(maker, planned, choices)
        if cells and all(cell.experiment is None for cell in cells):
            raise ExperimentError(cells[0].problem)
        counting = overrides_that_count(overrides)
        if results_dir is not None:
            check_no_overrides(counting)

        def results() -> Results:
            return Results(short, table, profile, size, planned, counting, read_outcomes(cells, folder))

        labels = _chosen(_parts(rows), [row.label for row in table.rows], "row", short)
        keys = _chosen(_parts(columns), [column.key for column in results().columns], "column", short)
        if only_list:
            console.print(_progress(results(), labels, keys))
            return
        try:
            (out / "cells").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExperimentError(f"--out: cannot write to {out}: {error}") from None
        if not os.access(out / "cells", os.W_OK | os.X_OK):
            raise ExperimentError(f"--out: no permission to write to {out / 'cells'}")
        target = out / "-".join((short, profile, *((text_digest(*counting),) if counting else ())))
        how = Execution(nodes, folder, keep_models, plugins)
        with ended_by_hand(console, GOES_ON):
            chosen = [choice for choice in choices if choice.row.label in labels and choice.column.key in keys]
            run_cells([cell for choice in chosen for cell in choice.missing], how, progress)
            cells = plan_cells(maker, planned, choices)
            selected = [cell for cell in cells if cell.row in labels and cell.column in keys and cell.seed in wanted]
            run_cells(selected, how, progress, on_end=lambda cell: _write(results(), target))
        final = results()
        has_figure = draw(final, target / "figure.png")
        _write(final, target)
        files = ["table.md", "table.csv", "summary.csv"]
        if choices:
            write_atomically(target / "trials.csv", trials_csv(choices).encode())
            files.append("trials.csv")
        if table.table.compare:
            write_atomically(target / "differences.csv", paired_csv(final).encode())
            files.append("differences.csv")
        if has_figure:
            files.append("figure.png")
        for shown in terminal_tables(console, final, labels, keys):
            console.print(shown)
        written = [target / name for name in files]
        if results_dir is not None:
            written.append(export(final, selected, file.parent, results_dir))
        _conclude(console, final, selected, written)


def _write(results: Results, target: Path) -> None:
    """Write table and numbers of all finished cells, including those not selected."""
    text = markdown(results, (target / "figure.png").exists())
    write_atomically(target / "table.md", text.encode())
    write_atomically(target / "table.csv", long_csv(results).encode())
    write_atomically(target / "summary.csv", summary_csv(results).encode())


def _conclude(console: Console, results: Results, selected: Sequence[Cell], files: Sequence[Path]) -> None:
    """Print missing cells with reasons, and the files written; exit with status 1 if a run failed."""
    chosen = {(cell.row, cell.column, cell.seed) for cell in selected}
    unfinished: dict[tuple[str, str, str], list[Cell]] = {}
    for outcome in results.outcomes:
        cell = outcome.cell
        if (cell.row, cell.column, cell.seed) in chosen and outcome.state != "finished":
            unfinished.setdefault((outcome.state, cell.column, outcome.reason), []).append(cell)
    for (state, column, reason), cells in unfinished.items():
        rows, seeds = (
            dict.fromkeys(each) for each in zip(*((cell.row, str(cell.seed)) for cell in cells), strict=True)
        )
        which = f"{', '.join(rows)}, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        where = f" ({cells[0].path})" if state == "failed" and cells[0].experiment else ""
        text = f"{state}: {column} ({which}): {reason}{where}"
        console.print(text, style="red" if state == "failed" else "yellow", markup=False, soft_wrap=True)
    for file in files:
        console.print(str(file), markup=False, soft_wrap=True, highlight=False)
    if any(state == "failed" for state, *_ in unfinished):
        raise typer.Exit(1)


def _progress(results: Results, labels: Sequence[str], keys: Sequence[str]) -> Table:
    """Return a table with the number of finished runs by row and column."""
    table = Table(title=escape(results.table.table.title), title_justify="left", caption="runs finished, of all seeds")
    table.add_column("row")
    shown = [column for column in results.columns if column.key in keys]
    for column in shown:
        table.add_column(escape(column.key), justify="right", overflow="fold")
    for row in results.table.rows:
        if row.label not in labels:
            continue
        entries = []
        for column in shown:
            outcomes = results.at(row, column)
            done = sum(outcome.state == "finished" for outcome in outcomes)
            states = dict.fromkeys(outcome.state for outcome in outcomes if outcome.state in ("failed", "no data"))
            text = f"{done} of {len(outcomes)}{''.join(f', {state}' for state in states)}"
            entries.append(text if outcomes else "published" if column.key in row.published else "")
        table.add_row(escape(row.label), *entries)
    return table


def _list_tables(console: Console) -> None:
    table = Table()
    for heading in ("table", "what it shows", "columns", "rows"):
        table.add_column(heading, overflow="fold")
    with messages_for_people():
        for name in files_that_come_along():
            _, content, _ = load_table(name)
            keys = ", ".join(column.key for column in content.columns)
            table.add_row(name, escape(content.table.title), escape(keys), str(len(content.rows)))
    console.print(table)
    console.print("fedgraph reproduce TABLE [--profile small|full] [--rows ...]; --list: what is done", markup=False)


def _parts(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _chosen(wanted: list[str] | None, known: list[str], what: str, table: str) -> list[str]:
    """Return the wanted names as the table spells them, ignoring case."""
    if wanted is None:
        return known
    by_name = {name.casefold(): name for name in known}
    unknown = [name for name in wanted if name.casefold() not in by_name]
    if unknown:
        raise ExperimentError(f"{table} has no {what} '{unknown[0]}'{if_any('; known: ', ', '.join(known))}")
    return [by_name[name.casefold()] for name in wanted]
