"""The files of a sweep: a table of its trials, the same as CSV, and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedgraph.reproduce.figures.panels import panels
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.sweeps.axes import Axis
from fedgraph.reproduce.sweeps.search import Tried
from fedgraph.support.files import as_csv

_CHOSEN, _OTHERS = "tab:orange", "tab:blue"


def trials_table(tried: Sequence[Tried], axes: Sequence[Axis], quantity: Quantity) -> Table:
    """Return a table of the trials for the terminal, in the order given."""
    table = Table(title=_counts(tried), title_justify="left")
    table.add_column("trial", justify="right")
    for axis in axes:
        table.add_column(escape(axis.key), justify="right", overflow="fold")
    for heading in (str(quantity), "seconds"):
        table.add_column(escape(heading), justify="right", overflow="fold")
    table.add_column("state", overflow="fold")
    for each in tried:
        state = each.state if not each.problem else f"{each.state}: {each.problem}"
        settings = [_short(value) for _, value in each.trial.settings]
        cells = (str(each.number), *settings, mean_in_words(each.values), f"{each.seconds:.1f}", state)
        table.add_row(*map(escape, cells))
    return table


def mean_in_words(values: Sequence[float]) -> str:
    """Return the mean over seeds, with the deviation where there are several."""
    if not values:
        return ""
    return f"{fmean(values):.4g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def trials_csv(tried: Sequence[Tried], axes: Sequence[Axis], quantity: Quantity) -> str:
    """Format trials as CSV, a line per trial, with the values of its seeds and the names of its runs."""
    lines: list[tuple[Any, ...]] = [
        (
            "trial",
            "state",
            *(axis.key for axis in axes),
            str(quantity),
            "deviation",
            "seeds",
            "values",
            "seconds",
            "runs",
            "problem",
        )
    ]
    for each in tried:
        lines.append(
            (
                each.number,
                each.state,
                *(value if isinstance(value, str) else json.dumps(value) for _, value in each.trial.settings),
                each.mean,
                each.deviation,
                " ".join(str(cell.seed) for cell in each.trial.cells),
                " ".join(map(str, each.values)),
                round(each.seconds, 3),
                " ".join(cell.path.name for cell in each.trial.cells),
                each.problem,
            )
        )
    return as_csv(lines)


def picture(tried: Sequence[Tried], axes: Sequence[Axis], quantity: Quantity) -> Any:
    """Draw the complete trials, the best of them first: a curve over one key, a map over two, a panel per key of more.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.
    """
    complete = [each for each in tried if each.mean is not None]
    figure, found = panels(1 if len(axes) <= 2 else len(axes), width=5.2, height=3.8)
    if len(axes) == 2:
        _map(figure, found[0], complete, axes, quantity)
    else:
        for number, (panel, axis) in enumerate(zip(found, axes, strict=True)):
            _along(panel, complete, axis, number, joined=len(axes) == 1)
            panel.set_ylabel(f"{quantity}, mean over seeds" if len(complete[0].values) > 1 else str(quantity))
    figure.suptitle(_counts(tried), fontsize=9)
    return figure


def _along(panel: Any, complete: Sequence[Tried], axis: Axis, number: int, joined: bool) -> None:
    """Draw the values of trials over those of one key."""
    points = sorted(
        (_place(axis, each.trial.settings[number][1]), each.mean, each.deviation or 0.0) for each in complete
    )
    places, means, deviations = zip(*points, strict=True)
    line = "-" if joined else ""
    panel.errorbar(places, means, yerr=deviations, marker="o", markersize=4, linestyle=line, color=_OTHERS, capsize=2)
    best = complete[0]
    panel.plot(_place(axis, best.trial.settings[number][1]), best.mean, "o", color=_CHOSEN, label="chosen", zorder=3)
    _scale(panel, axis, "x")
    panel.legend(frameon=False, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _map(figure: Any, panel: Any, complete: Sequence[Tried], axes: Sequence[Axis], quantity: Quantity) -> None:
    """Draw trials over two keys: a square of a heat map each, or a point where a key has a range."""
    import numpy as np

    if all(axis.is_list for axis in axes):
        wide, high = (
            [axis.values.index(each.trial.settings[n][1]) for each in complete] for n, axis in enumerate(axes)
        )
        grid = np.full((len(axes[1].values), len(axes[0].values)), np.nan)
        grid[high, wide] = [each.mean for each in complete]
        middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
        for x, y in zip(wide, high, strict=True):
            colour = "black" if grid[y, x] > middle else "white"
            text = f"{grid[y, x]:.3g}" + ("\nchosen" if (x, y) == (wide[0], high[0]) else "")
            panel.text(x, y, text, ha="center", va="center", fontsize=8, color=colour)
        drawn = panel.imshow(grid, cmap="viridis", aspect="auto", origin="lower")
        for axis, which in zip(axes, "xy", strict=True):
            getattr(panel, f"set_{which}ticks")(range(len(axis.values)), [_short(value) for value in axis.values])
            getattr(panel, f"set_{which}label")(axis.key)
    else:
        places = [[_place(axis, each.trial.settings[n][1]) for each in complete] for n, axis in enumerate(axes)]
        drawn = panel.scatter(*places, c=[each.mean for each in complete], cmap="viridis", s=36)
        panel.scatter(*([each[0]] for each in places), s=110, facecolors="none", edgecolors=_CHOSEN, label="chosen")
        panel.legend(frameon=False, fontsize=8)
        for axis, which in zip(axes, "xy", strict=True):
            _scale(panel, axis, which)
    figure.colorbar(drawn, ax=panel, label=str(quantity))


def _place(axis: Axis, value: Any) -> float:
    """Return where a value is drawn: numbers at their value, others one after the other."""
    return float(value) if axis.is_numeric else float(axis.values.index(value))


def _scale(panel: Any, axis: Axis, which: str) -> None:
    getattr(panel, f"set_{which}label")(axis.key)
    positive = axis.is_list and axis.is_numeric and min(axis.values) > 0
    if axis.log or (positive and max(axis.values) >= 100 * min(axis.values)):
        getattr(panel, f"set_{which}scale")("log")
    if not axis.is_numeric:
        getattr(panel, f"set_{which}ticks")(range(len(axis.values)), [_short(value) for value in axis.values])


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def _counts(tried: Sequence[Tried]) -> str:
    states = [each.state for each in tried]
    return ", ".join(f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed") if state in states)
