"""The command ``fedgraph simulate``: run any Flower app in this process, without Ray."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgraph.support.status import warnings_on
from fedgraph.support.terminal import ended_by_hand, messages_for_people


def simulate(
    app: Annotated[Path, typer.Argument(help="Folder of a Flower app, as for `flwr run`.")] = Path("."),
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of nodes; by default one per --node-config, or 2.", show_default=False),
    ] = None,
    node_config: Annotated[
        list[str] | None,
        typer.Option(help="As for `flower-supernode`: 'client=\"mercy\"'. Once per node, in order."),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", "-c", help="As for `flwr run`: 'num-server-rounds=3 lr=0.1', or a TOML file."),
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="reply: exceptions of clients are shown and sent as replies; raise: they end the run.")
    ] = "reply",
    seed: Annotated[
        int | None, typer.Option(help="Seed the global generators of Python, NumPy and PyTorch first.")
    ] = None,
) -> None:
    """Run any Flower app in this process, one node after the other.

    Takes the folder and run config of `flwr run`, and needs neither Ray nor a SuperLink: breakpoints work, and replies
    come in the order of nodes, so that a seeded app is reproducible bit for bit. For slow clients and many cores,
    `flwr run` is faster.
    """
    # Importing Flower takes a second.
    from fedgraph.starting.simulate import simulate as run

    console = Console(stderr=True)
    logging.getLogger("flwr").setLevel(logging.INFO)
    with messages_for_people(), ended_by_hand(console, "Stopped."), warnings_on(console):
        done = run(app, num_nodes=nodes, node_configs=node_config, run_config=run_config, on_error=on_error, seed=seed)
    failed = len(done.failures)
    if failed:
        console.print(
            f"{failed} of {failed + done.answered} messages ended in an exception of the ClientApp, shown above; use "
            "--on-error raise to stop at the first one.", style="red", markup=False, soft_wrap=True,
        )  # fmt: skip
    if failed and not done.answered:
        raise typer.Exit(1)
