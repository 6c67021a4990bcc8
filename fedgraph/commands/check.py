"""The command ``fedgraph check``: tests of a strategy, client class or data set against the contract."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fedgraph.support.terminal import messages_for_people

_STYLES = {"pass": "green", "fail": "bold red", "skipped": "dim", "expected": "yellow"}


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
    results = []
    for each in checks:
        results.append(result := each.result())
        console.print(f"{result.status:10}", style=_STYLES[result.status], end="", markup=False, highlight=False)
        console.print(f"{result.name:19}{result.words}", markup=False, highlight=False)
        if result.text:
            remark = Text(result.text, style="" if result.status == "fail" else "dim")
            console.print(Padding(remark, (0, 0, 0, 10), expand=False), end="")
    counts = {status: sum(result.status == status for result in results) for status in _STYLES}
    words = {"pass": "passed", "fail": "failed", "skipped": "skipped", "expected": "failed as expected"}
    console.print(", ".join(f"{counts[status]} {words[status]}" for status in _STYLES if counts[status]), markup=False)
    if counts["fail"]:
        raise typer.Exit(1)
