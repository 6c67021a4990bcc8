"""How a command speaks to the person who typed it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from fedgraph.support.errors import FedgraphError


@contextmanager
def messages_for_people() -> Iterator[None]:
    """Errors raised on purpose are printed as their message, with exit status 1; others keep their traceback."""
    try:
        yield
    except FedgraphError as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
