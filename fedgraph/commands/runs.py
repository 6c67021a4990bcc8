"""The commands ``fedgraph runs``, ``compare`` and ``report``: run folders as a list, a table, a page."""

from __future__ import annotations

import fcntl
import json
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgraph.commands.predict import TRUST
from fedgraph.support.errors import RunError
from fedgraph.support.terminal import messages_for_people
from fedgraph.support.untrusted import check_files

_EXPERIMENT = "experiment.toml"
_TAIL_BYTES = 1 << 20
_REASON_LENGTH = 300
_WIDEST = 1000
_PHASES_OF_ROUNDS = ("training", "evaluation", "fairness")
_STOPPED = re.compile(r"^\S+ \S+ ERROR the run stopped: (.*)")


@dataclass(frozen=True)
class ListedRun:
    """A row of ``fedgraph runs``.

    Attributes
    ----------
    name, path : str
        Name and absolute path of the run folder.
    method, data : str
        The method, and the value of ``[data] set``.
    state : str
        For example ``finished``, ``running, after round 3 of 20``, ``stopped after round 3 of 20`` or ``failed``.
    reason : str
        Why the run failed; empty for other states.
    metric : str or None
        The first metric on test data, or else on the last split, as ``test/accuracy``.
    value : float or None
        Its mean over clients.
    seconds : float or None
        Duration of a finished run.
    """

    name: str
    path: str
    method: str
    data: str
    state: str
    reason: str = ""
    metric: str | None = None
    value: float | None = None
    seconds: float | None = None


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with run folders, or a run folder.")] = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """List runs and their results, newest first.

    The result is the first metric on test data, as a mean over clients. The runs of `fedgraph reproduce` are in
    reproductions/cells.
    """
    with messages_for_people():
        listed, problems = list_runs(folder)
    if json_:
        typer.echo(json.dumps([asdict(run) for run in listed], indent=2))
    elif listed:
        # Each run is one line; a narrow terminal wraps it.
        console = Console(width=_WIDEST)
        console.print(_table(listed))
        for run in listed:
            if run.reason:
                reason = shorten(run.reason, _REASON_LENGTH, placeholder=" ... (see its logs/run.log)")
                console.print(f"{run.name} failed: {reason}", markup=False, soft_wrap=True, highlight=False)
    else:
        typer.echo(f"No runs in {folder}.")
    errors = Console(stderr=True)
    for problem in problems:
        errors.print(f"Left out: {problem}", style="yellow", markup=False, soft_wrap=True, highlight=False)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs with the same data.")],
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
) -> None:
    """Show the results of finished runs side by side."""
    from fedgraph.runs import compare as side_by_side

    with messages_for_people():
        compared = side_by_side(runs, trust)
    console = Console()
    console.print(compared)
    for label, run in zip(compared.labels, compared, strict=True):
        console.print(f"{label}: {run.path}", markup=False, soft_wrap=True, highlight=False)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a finished run, or of several with the same data.")],
    out: Annotated[Path | None, typer.Option(help="The file, instead of report.html or comparison.html.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
) -> None:
    """Write a page about a run, or one that compares several.

    The page is a self-contained HTML file with charts, by default in the folder of the (first) run.
    """
    from fedgraph.runs.reports.page import report as write

    with messages_for_people():
        written = write(runs, out, trust)
    Console().print(f"Report: {written}", markup=False, soft_wrap=True, highlight=False)


def list_runs(folder: Path) -> tuple[list[ListedRun], list[str]]:
    """List the run folders in a folder, or the folder itself if it is one.

    Only small files, and the ends of growing ones, are read. Files and hidden folders are ignored.

    Returns
    -------
    list of ListedRun
        Newest first.
    list of str
        Why each other folder is left out.

    Raises
    ------
    RunError
        When the folder does not exist.
    """
    if not folder.is_dir():
        raise RunError(f"no folder {folder}: `fedgraph run` creates it, or give the folder of your runs")
    one = (folder / _EXPERIMENT).is_file()
    listed: list[tuple[float, ListedRun]] = []
    problems = []
    for path in [folder] if one else sorted(folder.iterdir()):
        if not path.is_dir() or (path.name.startswith(".") and not one):
            continue
        try:
            listed.append((_began(path), look_at_run(path.resolve())))
        except RunError as error:
            problems.append(str(error))
    listed.sort(key=lambda pair: (pair[0], pair[1].name), reverse=True)
    return [run for _, run in listed], problems


def look_at_run(path: Path) -> ListedRun:
    """Read the row of one run folder. Raises RunError when it is not a run folder, or a file is damaged."""
    check_files(path)
    try:
        experiment = tomllib.loads((path / _EXPERIMENT).read_text(encoding="utf-8"))
        head, data = experiment["experiment"], str(experiment["data"]["set"])
        method = str(head.get("method") or head["strategy"].rpartition(":")[2])
    except FileNotFoundError:
        raise RunError(f"{path} is not a run folder: it has no {_EXPERIMENT}") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: invalid {_EXPERIMENT}: {_described(error)}") from None
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        metric, value = _main_metric(summary["metrics"])
        seconds = float(summary["seconds"])
    except FileNotFoundError:
        state, reason = _state_of_unfinished(path, head.get("rounds"))
        return ListedRun(path.name, str(path), method, data, state, reason)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: invalid summary.json: {_described(error)}") from None
    return ListedRun(path.name, str(path), method, data, "finished", "", metric, value, seconds)


def _began(path: Path) -> float:
    """Return the time at which a run folder was created, when its experiment is written."""
    try:
        return (path / _EXPERIMENT).stat().st_mtime
    except OSError:
        return 0.0


def _main_metric(metrics: dict[str, dict[str, dict[str, float | None]]]) -> tuple[str | None, float | None]:
    for split in ("test", *reversed(metrics)):
        for name, values in metrics.get(split, {}).items():
            return f"{split}/{name}", values["mean"]
    return None, None


def _state_of_unfinished(path: Path, rounds: object) -> tuple[str, str]:
    """Return the state in words, and the reason for a failure in its log."""
    where = ""
    last = _last_line(path / "metrics.jsonl")
    if last is not None:
        phase, number = last.get("phase"), last.get("round")
        of_rounds = f"after round {number}{f' of {rounds}' if isinstance(rounds, int) else ''}"
        where = of_rounds if phase in _PHASES_OF_ROUNDS else f"in {phase}, epoch {number}"
    if _is_held(path / ".lock"):
        return f"running{f', {where}' if where else ''}", ""
    for line in reversed(_tail(path / "logs" / "run.log")):
        if stopped := _STOPPED.match(line):
            return f"failed{f' {where}' if where else ''}", stopped[1].rstrip(":")
        if " INFO run folder " in line:
            break
    return f"stopped {where or 'before its first round'}", ""


def _last_line(path: Path) -> dict[str, Any] | None:
    """Return the last complete JSON object of a file with one per line."""
    for line in reversed(_tail(path)):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None


def _tail(path: Path) -> list[str]:
    """Return the last lines of a text file; none if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _is_held(lock: Path) -> bool:
    """Return whether a process holds the lock of a run folder."""
    try:
        with lock.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _described(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _table(runs: list[ListedRun]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("run", "method", "data", "state"):
        table.add_column(heading)
    table.add_column("test data, mean", justify="right")
    table.add_column("seconds", justify="right")
    for run in runs:
        metric = (run.metric or "").removeprefix("test/")
        value = "-" if run.value is None else f"{metric} {run.value:.3f}"
        seconds = "-" if run.seconds is None else f"{run.seconds:.1f}"
        table.add_row(*map(escape, (run.name, run.method, run.data, run.state, value, seconds)))
    return table
