"""``fedgraph reproduce`` for a study: call its function, write its page and print its summary."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgraph.reproduce.cells import text_digest
from fedgraph.reproduce.result_file import check_no_overrides, export_study
from fedgraph.reproduce.study import (
    Study,
    StudyContext,
    StudyPage,
    StudyProfileTable,
    merged_options,
    parse_study,
    study_function,
)
from fedgraph.reproduce.toml_files import TableFile
from fedgraph.runs import environment
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import write_atomically

_PAGE = "page.md"


@dataclass(frozen=True)
class StudyCall:
    """Options of the command line for a study.

    Attributes
    ----------
    profile : str
        ``small`` or ``full``.
    seeds : tuple of int or None
        Seeds in place of the study's own.
    overrides : sequence of str
        ``options.key=value``.
    out : Path
        Folder that contains the page's own folder.
    only_list : bool
        List profiles and pages, and run nothing.
    results : Path or None
        Folder of the result file for the numbers of the page; None for no such file.
    """

    profile: str
    seeds: tuple[int, ...] | None
    overrides: tuple[str, ...]
    out: Path
    data_dir: Path
    only_list: bool = False
    results: Path | None = None


def reproduce_study(file: TableFile, call: StudyCall, console: Console, progress: Console) -> None:
    """Run a study, which reports to ``progress``, write its page and print its summary.

    Raises
    ------
    ExperimentError
        For a wrong file, profile or option, and where nothing can be written.
    """
    study = parse_study(file)
    profile = study.profile(call.profile, file.name)
    options = merged_options(study, profile, call.overrides)
    if call.results is not None:
        check_no_overrides(call.overrides)
    if call.only_list:
        console.print(_progress(file.name, study, call.out))
        return
    usual = profile.seeds or study.study.seeds
    seeds = call.seeds or usual
    changes = [*call.overrides, *([f"seeds {seeds}"] if seeds != usual else [])]
    folder = call.out / "-".join((file.name, call.profile, *((text_digest(*changes),) if changes else ())))
    function = study_function(study)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperimentError(f"--out: cannot write to {folder}: {error}") from None
    began = time.process_time()
    page = function(StudyContext(folder, seeds, options, call.data_dir, progress))
    seconds = time.process_time() - began
    about = _about(file.name, call, profile, seeds, seconds)
    # Written last, so that a page never refers to missing files.
    for table in (page.summary, *page.tables):
        write_atomically(folder / f"{table.name}.csv", table.csv().encode())
    write_atomically(folder / _PAGE, _markdown(study, page, about).encode())
    console.print(page.summary.for_terminal())
    written = [folder / _PAGE, folder / f"{page.summary.name}.csv"]
    if call.results is not None:
        commit = environment().get("commit")
        written.append(export_study(file.path.stem, call.profile, page, seeds, commit, call.results))
    for path in written:
        console.print(f"{path}", markup=False, soft_wrap=True, highlight=False)


def _markdown(study: Study, page: StudyPage, about: Sequence[str]) -> str:
    """Return title, caption, summary, the function's text, and how the page was made."""
    head = study.study
    parts = [f"# {head.title}", f"Published at <{head.paper}>." if head.paper else "", head.caption]
    parts += [page.summary.markdown(), page.text.strip(), "## About these numbers"]
    parts += ["\n".join(f"- {line}" for line in about)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _about(name: str, call: StudyCall, profile: StudyProfileTable, seeds: tuple[int, ...], seconds: float) -> list[str]:
    command = ["fedgraph", "reproduce", name, "--profile", call.profile]
    command += ["--seeds", ",".join(map(str, seeds))] if call.seeds else []
    command += [part for override in call.overrides for part in ("--set", override)]
    return [
        f"Profile `{call.profile}`{f': {profile.differs}' if profile.differs else ''}. "
        f"Seeds: {', '.join(map(str, seeds))}.",
        f"Made in {seconds:.0f} s of processor time, with commit {environment().get('commit') or 'unknown'}.",
        f"Again: `{shlex.join(command)}`",
    ]


def _progress(name: str, study: Study, out: Path) -> Table:
    """Return a table of all profiles with their pages, if these are up to date."""
    table = Table(title=escape(study.study.title), title_justify="left", caption="pages made, without any --set")
    for heading in ("profile", "page"):
        table.add_column(heading, overflow="fold")
    for profile in study.profiles:
        page = out / f"{name}-{profile}" / _PAGE
        table.add_row(profile, escape(str(page)) if page.exists() else "not made")
    return table
