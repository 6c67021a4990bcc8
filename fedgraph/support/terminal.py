"""Messages of commands to the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from fedgraph.support.errors import ExperimentError, FedgraphError

GOES_ON = "Stopped. The same command goes on from here."


@contextmanager
def messages_for_people() -> Iterator[None]:
    """Print errors of this project with their notes, and exit with status 1; other errors keep their traceback."""
    try:
        yield
    except FedgraphError as error:
        text = "\n".join([f"Error: {error}", *getattr(error, "__notes__", ())])
        Console(stderr=True).print(text, style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


@contextmanager
def ended_by_hand(console: Console, message: str) -> Iterator[None]:
    """Print the notes of the exception, or ``message``, after Ctrl-C, and exit with status 130."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        notes = getattr(stopped, "__notes__", None)
        text = "\n".join(["Stopped.", *notes]) if notes else message
        console.print(f"\n{text}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None


def seeds_given(text: str | None) -> tuple[int, ...]:
    """Return the numbers of ``--seeds 0,1,2``, each once; none for None.

    Raises
    ------
    ExperimentError
        For anything else than whole numbers with commas between them.
    """
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ExperimentError(f"--seeds takes whole numbers with commas between them; got '{text}'")
    return tuple(dict.fromkeys(map(int, parts)))
