"""The command ``fedgraph test-credentials``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.support.terminal import messages_for_people


def credentials_for_testing(
    folder: Annotated[Path, typer.Argument(help="New folder for them.")],
    node: Annotated[list[str], typer.Option(help="A node, named after the client that it hosts; once for each.")],
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the server; once for each.")] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 30,
) -> None:
    """Make certificates and keys for TESTING: an authority, a certificate for the server, a key for each node."""
    with messages_for_people():
        made = make_test_credentials(folder, [*(host or []), "localhost", "127.0.0.1"], node, days)
    lines = {
        made.authority: "for every node, and for those who submit runs",
        made.certificate.parent: "for the server alone",
        made.public_keys: "for the server",
        made.folder / "nodes": "a private key for each node; give each node its own and nothing else",
    }
    console = Console()
    for path, whose in lines.items():
        console.print(f"{path}: {whose}", soft_wrap=True, highlight=False)
    console.print(
        "These are for testing. For real data, have a certificate made by an authority that your sites trust, and let "
        "each site make its own key (ssh-keygen -t ecdsa -b 384 -N '' -f NAME) and send you NAME.pub only.",
        style="yellow",
        soft_wrap=True,
    )
