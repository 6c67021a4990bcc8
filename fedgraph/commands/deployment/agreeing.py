"""What a site agrees to by starting a node: the experiment in words, and what has changed since it last agreed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from fedgraph.clients.engine.agreement import changed_keys, keys_of
from fedgraph.experiment import Experiment
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import json_digest, load_json, private_folder, write_atomically


def agreement_lines(experiment: Experiment) -> list[str]:
    """Return what a node answers, in words."""
    table, head = experiment.agreement, experiment.experiment
    limit = f"; none without noise, and all about the same rows within epsilon {table.epsilon}, delta {table.delta:g}"
    return [
        f"requests of runs of {experiment.method.name} with the client class {experiment.method.client_class}",
        f"at most {head.rounds} rounds, and as many different trainings over all runs",
        "all keys that reach a node as in this file, except what is open",
        f"open: {', '.join(table.open) or 'nothing but the name of the run'}",
        f"about at least {table.least_rows} rows of each split and sum{'' if table.epsilon is None else limit}",
    ]


def agree(experiment: Experiment, clients: Sequence[str], state: Path, accepted: bool, console: Console) -> None:
    """Keep the experiment as the one agreed to, after a person has accepted what differs from the one before.

    Raises ExperimentError when it differs and nobody is there to accept it.

    Parameters
    ----------
    clients : the clients of the node, whose agreement it is.
    state : state folder of the node.
    accepted : whether it has been accepted already, by an option.
    """
    kept = _file(state, clients)
    changes = show_changes(experiment, clients, state, console)
    if changes and not accepted:
        if not console.is_terminal:
            raise ExperimentError("this is not the experiment that was agreed to before: accept it with --agree")
        typer.confirm("Agree to it?", abort=True)
    if changes or not kept.exists():
        private_folder(kept.parent)
        agreed = {"clients": list(clients), "keys": keys_of(experiment)}
        write_atomically(kept, json.dumps(agreed, indent=1).encode(), private=True)


def show_changes(experiment: Experiment, clients: Sequence[str], state: Path, console: Console) -> list[str]:
    """Print and return the keys in which an experiment differs from the one agreed to before, if any."""
    kept = _file(state, clients)
    before: Mapping[str, Any] = load_json(kept)["keys"] if kept.exists() else keys_of(experiment)
    changes = changed_keys(before, keys_of(experiment))
    if changes:
        console.print("Not as agreed before", style="bold yellow")
        for line in changes:
            console.print(f"  {line}", markup=False, soft_wrap=True, highlight=False)
        console.print()
    return changes


def _file(state: Path, clients: Sequence[str]) -> Path:
    return state / "agreements" / f"{json_digest(list(clients))[:16]}.json"
