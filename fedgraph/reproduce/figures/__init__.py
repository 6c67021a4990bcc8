"""The figure of a table, drawn from the run folders of its cells; a file per kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedgraph.reproduce.figures.client_graphs import of_client_graphs
from fedgraph.reproduce.figures.columns import over_columns
from fedgraph.reproduce.figures.entropies import of_entropies
from fedgraph.reproduce.figures.fairness import of_fairness
from fedgraph.reproduce.figures.peers import of_peers
from fedgraph.reproduce.figures.permutations import of_permutations
from fedgraph.reproduce.figures.rounds import by_round
from fedgraph.reproduce.figures.rows import by_row
from fedgraph.reproduce.results import Results

KINDS: dict[str, Callable[[Results], Any]] = {
    "bars": partial(by_row, bars=True),
    "dots": partial(by_row, bars=False),
    "lines": over_columns,
    "curves": by_round,
    "adjacency": of_client_graphs,
    "entropies": of_entropies,
    "permutations": of_permutations,
    "peers": of_peers,
    "fairness": of_fairness,
    "none": lambda results: None,
}
"""By name in ``[table] figure``, functions that return a matplotlib figure, or None when there is nothing to draw."""


def draw(results: Results, path: Path) -> bool:
    """Draw the figure of a table; return False, without a file, when there is nothing to draw yet."""
    figure = KINDS[results.table.table.figure](results)
    if figure is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True
