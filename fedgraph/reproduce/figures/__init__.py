"""The figure of a table, drawn from its run folders; a module per kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedgraph.reproduce.figures.columns import over_columns
from fedgraph.reproduce.figures.rounds import by_round
from fedgraph.reproduce.figures.rows import by_row
from fedgraph.reproduce.results import Results
from fedgraph.support.plugins import a_function, load_object

KINDS: dict[str, Callable[[Results], Any]] = {
    "bars": partial(by_row, bars=True),
    "dots": partial(by_row, bars=False),
    "lines": over_columns,
    "curves": by_round,
    "none": lambda results: None,
}
"""Functions by ``[table] figure``, which return a Matplotlib figure, or None if there is nothing to draw."""


def draw(results: Results, path: Path) -> bool:
    """Draw the figure of a table, and return whether there was anything to draw.

    Raises ExperimentError when the function of ``[table] figure`` cannot be imported.
    """
    kind = results.table.table.figure
    make = KINDS[kind] if kind in KINDS else load_object(kind, "[table] figure", a_function)
    figure = make(results)
    if figure is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True
