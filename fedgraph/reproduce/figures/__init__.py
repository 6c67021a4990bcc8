"""The figure of a table, drawn from the run folders of its cells; a file per kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedgraph.reproduce.figures.columns import over_columns
from fedgraph.reproduce.figures.rounds import by_round
from fedgraph.reproduce.figures.rows import by_row
from fedgraph.reproduce.results import Results
from fedgraph.support.plugins import load_object

KINDS: dict[str, Callable[[Results], Any]] = {
    "bars": partial(by_row, bars=True),
    "dots": partial(by_row, bars=False),
    "lines": over_columns,
    "curves": by_round,
    "none": lambda results: None,
}
"""By name in ``[table] figure``, functions that return a matplotlib figure, or None when there is nothing to draw."""


def draw(results: Results, path: Path) -> bool:
    """Draw the figure of a table; return False, without a file, when there is nothing to draw yet.

    Raises
    ------
    ExperimentError
        When ``[table] figure`` names a function that cannot be found.
    """
    kind = results.table.table.figure
    make = KINDS[kind] if kind in KINDS else load_object(kind, "[table] figure")
    figure = make(results)
    if figure is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True
