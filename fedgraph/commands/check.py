"""The command ``fedgraph check``: tests of a strategy, client class or data set against the contract."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fedgraph.support.terminal import messages_for_people

_STATES = {
    "pass": ("green", "passed"),
    "fail": ("bold red", "failed"),
    "skipped": ("dim", "skipped"),
    "expected": ("yellow", "failed as expected"),
}
"""Style and word of each status."""


def check(
    what: Annotated[str, typer.Argument(help="my_module:MyStrategy, MyClient or MyData, or a built-in method.")],
    experiment: Annotated[
        str | None, typer.Option(help="Experiment to run three rounds of, if the class does not run on digits.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key: train.learning-rate=0.05")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Also run it on Ray, which takes a minute.")] = False,
) -> None:
    """Test a strategy, client class or data set against the contract, in short runs.

    Runs must finish, be reproducible, not depend on the number of nodes, resume, and survive absent clients and
    malformed replies. A class declares what it cannot do by design: expected_failures = {"number-of-nodes": "all data
    is in one place"}.

    A data set must return the same examples on every call, with the shapes of its task. Set its keys with --set
    data.path=wards.csv, or in an experiment.
    """
    from fedgraph.commands.checking import checks_of
    from fedgraph.experiment import plugin_folders
    from fedgraph.support.plugins import add_plugin_paths

    console = Console()
    with messages_for_people():
        add_plugin_paths(plugin_folders(experiment))
        checks = checks_of(what, experiment, set_ or (), ray)
    console.print(checks[0].target.title, markup=False, highlight=False)
    counts = Counter[str]()
    for name, words, status, text in (each.result() for each in checks):
        counts[status] += 1
        console.print(f"{status:10}", style=_STATES[status][0], end="", markup=False, highlight=False)
        console.print(f"{name:19}{words}", markup=False, highlight=False)
        if text:
            remark = Text(text, style="" if status == "fail" else "dim")
            console.print(Padding(remark, (0, 0, 0, 10), expand=False), end="")
    console.print(", ".join(f"{counts[status]} {word}" for status, (_, word) in _STATES.items() if counts[status]))
    if counts["fail"]:
        raise typer.Exit(1)
