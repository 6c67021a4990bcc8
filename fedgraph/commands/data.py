"""The command ``fedgraph data``: which data sets there are, which of them are here, and how to get the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape

from fedgraph.support.catalogue import CatalogueEntry, data_folder, downloads, find
from fedgraph.support.errors import ExperimentError
from fedgraph.support.listing_cache import cached_listing
from fedgraph.support.terminal import messages_for_people

_ENTRIES = TypeAdapter(tuple[CatalogueEntry, ...])


def data(
    name: Annotated[str | None, typer.Argument(help="A data set to describe: licence, files and source.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    download: Annotated[str | None, typer.Option(help="Download the files of this data set.")] = None,
) -> None:
    """List the data sets and which are available, or describe one."""
    console = Console()
    folder = data_folder(str(data_dir) if data_dir else os.environ.get("FEDGRAPH_DATA"))
    known = cached_listing("data", _known)
    entries = {entry.name: entry for entry in _ENTRIES.validate_python(known["entries"])}
    with messages_for_people():
        if name is not None and download is not None:
            raise ExperimentError("give either NAME or --download NAME, not both")
        wanted = download or name
        if wanted in known["sets"] and wanted not in entries:
            console.print(f"{wanted} has no files to download: see `fedgraph keys {wanted}`.")
            return
        if wanted is not None and wanted not in entries:
            raise ExperimentError(f"unknown data set '{wanted}'; known: {', '.join(entries)}")
        if download is not None:
            _download(entries[download], folder, console)
            return
    console.print(f"Data folder: {folder}\n", soft_wrap=True, highlight=False)
    if name is not None:
        _tell(entries[name], folder, console)
        return
    width = max(map(len, entries))
    for entry in entries.values():
        state = "here    " if not entry.alternatives or find(entry, folder) is not None else "not here"
        line = f"{entry.name:{width}}  {state}  {entry.title}, {entry.size}"
        console.print(line, markup=False, soft_wrap=True, highlight=False)
    console.print(
        "\nLicence, files and source: `fedgraph data NAME`; download: `fedgraph data --download NAME`.\n"
        f"Your own data: {', '.join(known['of-ones-own'])}, read from [data] path, or on each node from its own file "
        "(node config key data); see `fedgraph keys series` and so on.",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def _known() -> dict[str, Any]:
    """Return the catalogue, the names of all data sets, and of those that read users' files."""
    from fedgraph.data import OWN_FILE_SETS, catalogue_entries, settings_by_set

    entries = _ENTRIES.dump_python(catalogue_entries(), mode="json")
    return {"entries": entries, "sets": list(settings_by_set()), "of-ones-own": OWN_FILE_SETS}


def _tell(entry: CatalogueEntry, folder: Path, console: Console) -> None:
    """Print the details of a data set."""
    console.print(f"[bold]{entry.name}[/bold]  {escape(entry.title)}, {escape(entry.size)}", soft_wrap=True)
    lines = [f"licence: {entry.licence}", *([entry.notes] if entry.notes else []), *_where(entry, folder)]
    for line in lines:
        console.print(f"    {line}", markup=False, soft_wrap=True)


def _where(entry: CatalogueEntry, folder: Path) -> list[str]:
    """Describe where the files of a data set are, or where they are expected and how to get them."""
    if not entry.alternatives:
        return ["needs no files"]
    paths = find(entry, folder)
    if paths is not None:
        return ["found: " + ", ".join(map(str, paths))]
    wanted = [" + ".join(str(folder / file.path) for file in files) for files in entry.alternatives]
    served = downloads(entry) or entry.alternatives[0]
    how = f"fedgraph data --download {entry.name}" if all(file.download for file in served) else "by hand from"
    return [
        "not found; looked for: " + ", or ".join(wanted),
        f"get it: {how} ({', '.join(dict.fromkeys(file.url for file in served))})",
    ]


def _download(entry: CatalogueEntry, folder: Path, console: Console) -> None:
    from rich.progress import Progress

    from fedgraph.support.download import fetch

    if not entry.alternatives:
        console.print(f"{entry.name} needs no download.")
        return
    files = downloads(entry) or entry.alternatives[0]
    if all((folder / file.path).exists() for file in files):
        console.print(f"{entry.name} is already in {folder}.")
        return
    for file in files:
        target = folder / file.path
        if target.exists():
            continue
        if not file.download:
            console.print(f"{file.url} offers no direct download: download it by hand to {target}")
            continue
        with Progress(console=console) as progress:
            task = progress.add_task(file.path.name, total=file.size_bytes)
            fetch(
                file.url,
                target,
                sha256=file.sha256,
                progress=lambda done, total: progress.update(task, completed=done, total=total),  # noqa: B023
            )
