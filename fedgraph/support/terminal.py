"""Messages of commands to the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from fedgraph.support.errors import FedgraphError


@contextmanager
def messages_for_people() -> Iterator[None]:
    """Print errors raised on purpose, with their notes, and exit with status 1; other errors keep their traceback."""
    try:
        yield
    except FedgraphError as error:
        text = "\n".join([f"Error: {error}", *getattr(error, "__notes__", ())])
        Console(stderr=True).print(text, style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
