"""Figures 3 and 4 of Gorbett, Shirazi and Ray 2023, drawn from the run folders of their tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph.reproduce import FAIRNESS, ColumnTable, Quantity, Results, RowTable, calm, panels
from fedgraph.runs import fairness as fairness_of
from fedgraph.runs.reports import FILE, PeerComparison

MOST_NAMED = 30
"""Number of peers whose names fit along a side."""

_SIDE, _SMALLEST = 3.4, 5.0
"""Length of a side in inches, about; numbers that would have to be smaller than so many points are not written."""

_ORANGE = "#e8710a"
_MARK: dict[str, Any] = {"linewidth": 1.8, "linestyle": (0, (1.5, 0.7))}


def peers(results: Results) -> Any:
    """Draw figure 3: numbers of test examples that two peers predict differently, of the first seed that has them.

    There is a panel for every column and row; shades are shares of the test examples, in one scale.
    """
    compared = {title: PeerComparison.read(each[0] / FILE) for title, each in results.folders_with(FILE).items()}
    if not compared:
        return None
    from matplotlib import colormaps

    figure, axes = panels(len(compared), width=_SIDE + 1.1, height=_SIDE + 1.2)
    figure.set_layout_engine("compressed")
    shares = [100 * each.hamming.double().numpy() / each.examples for each in compared.values()]
    for each in shares:
        np.fill_diagonal(each, np.nan)
    low, high = float(min(map(np.nanmin, shares))), float(max(map(np.nanmax, shares)))
    if low == high:
        low, high = 0.0, 100.0
    colours = colormaps["YlGnBu"].with_extremes(bad="0.93")
    for axis, (title, comparison), each in zip(axes, compared.items(), shares, strict=True):
        image = axis.imshow(each, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        axis.set_title(f"{title}\nmean {comparison.mean('hamming'):,.1f} of {comparison.examples:,}", fontsize=9)
        _name_peers(axis, comparison.names)
        _write_numbers(axis, comparison, each > low + 0.55 * (high - low))
    bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, aspect=30)
    bar.set_label("test examples predicted differently (%)", fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)
    return figure


def _name_peers(axis: Any, names: tuple[str, ...]) -> None:
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labelsize=7.5)
    if len(names) > MOST_NAMED:
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(f"{len(names)} peers", fontsize=8)
        return
    short = [name if len(name) <= 14 else f"{name[:6]}…{name[-7:]}" for name in names]
    axis.set_xticks(range(len(names)), short, rotation=90 if max(map(len, names)) > 2 else 0)
    axis.set_yticks(range(len(names)), short)


def _write_numbers(axis: Any, comparison: PeerComparison, dark: NDArray[np.bool_]) -> None:
    """Write numbers into the cells, where they are large enough to be read."""
    count, digits = len(comparison.names), len(f"{int(comparison.hamming.max()):,}")
    # A digit is about 0.6 times as wide as a letter is high, which is given in points of 1/72 inch.
    size = min(9.0, 0.85 * 72 * _SIDE / (count * 0.6 * digits))
    if size < _SMALLEST:
        return
    for row, column in np.argwhere(~np.eye(count, dtype=bool)):
        text, colour = f"{comparison.hamming[row, column]:,}", "white" if dark[row, column] else "0.15"
        axis.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


class _Course(NamedTuple):
    """One run, for clients that have a value in the stand-alone run, sorted by that value.

    ``alone`` is what each reaches alone, ``[clients]``; ``values`` what each reaches here, ``[rounds, clients]``, NaN
    without a value; ``fairness`` is ``[rounds]``, NaN where undefined.
    """

    rounds: list[int]
    alone: NDArray[np.float64]
    values: NDArray[np.float64]
    fairness: NDArray[np.float64]


def fairness(results: Results) -> Any:
    """Draw figure 4: a thin line per client, lighter the more it reaches alone, and the fairness of all in orange.

    Panels show the first seed that is there, of the highlighted rows, if any; a row without any fairness, such as one
    model for all, has no panel. The metric is the first of the column with fairness, else the first.
    """
    drawn = [
        (column, row, quantity, course)
        for column in results.columns
        for quantity in [_quantity(results, column)]
        for row in _rows(results, column)
        if (course := _course(results, row, column, quantity)) is not None
    ]
    if not drawn:
        return None
    from matplotlib.lines import Line2D

    several = len({row.label for _, row, _, _ in drawn}) > 1
    lowest = min(0.0, *(float(np.nanmin(course.fairness)) for *_, course in drawn))
    figure, axes = panels(len(drawn), width=5.4, height=3.5)
    for axis, (column, row, quantity, course) in zip(axes, drawn, strict=True):
        title = f"{column.title}, {row.label}" if several else column.title
        calm(axis, title, "round", f"{quantity.metric} of each client on {quantity.split} data")
        _draw(axis, course, lowest)
    handles = [
        Line2D([], [], color="0.45", linewidth=0.9, label="a client, the lighter the more it reaches alone"),
        Line2D([], [], color="0.45", **_MARK, label="what it reaches alone"),
        Line2D([], [], color=_ORANGE, linewidth=2.2, label="fairness: 100 × their correlation"),
    ]
    # Three in a row are wider than a single panel.
    columns = 3 if len(drawn) > 1 else 1
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def _draw(axis: Any, course: _Course, lowest: float) -> None:
    """Draw one panel; ``lowest`` is the lower end of the axis of fairness."""
    from matplotlib import colormaps
    from matplotlib.patheffects import Normal, Stroke

    rounds, alone = course.rounds, course.alone
    span = max(1, rounds[-1] - rounds[0])
    # The upper end of the map is too light on white.
    shades = colormaps["viridis"](0.88 * (alone - alone.min()) / (np.ptp(alone) or 1.0))
    for value, values, shade in zip(alone, course.values.T, shades, strict=True):
        axis.plot(rounds, values, color=shade, linewidth=0.9, zorder=2)
        # Left of the first round.
        axis.plot([rounds[0] - 0.08 * span, rounds[0] - 0.02 * span], [value, value], color=shade, **_MARK)
    axis.set_xlim(rounds[0] - 0.1 * span, rounds[-1] + 0.01 * span)
    axis.xaxis.get_major_locator().set_params(integer=True)
    right = axis.twinx()
    outlined = [Stroke(linewidth=4, foreground="white", alpha=0.8), Normal()]
    right.plot(rounds, course.fairness, color=_ORANGE, linewidth=2.2, path_effects=outlined)
    right.set_ylim(lowest - 4, 104)
    right.set_ylabel("fairness", fontsize=8, color=_ORANGE, labelpad=0)
    right.tick_params(labelsize=8, colors=_ORANGE)
    right.spines[["top", "left"]].set_visible(False)
    right.spines["right"].set_color(_ORANGE)


def _quantity(results: Results, column: ColumnTable) -> Quantity:
    quantities = [metric.quantity for metric in results.table.metrics_of(column)]
    return next((quantity for quantity in quantities if quantity.statistic == FAIRNESS), quantities[0])


def _rows(results: Results, column: ColumnTable) -> list[RowTable]:
    about = results.table.table
    rows = [row for row in results.rows(column) if row.label != about.stand_alone]
    return [row for row in rows if row.label.startswith(about.highlight)] or rows


def _course(results: Results, row: RowTable, column: ColumnTable, quantity: Quantity) -> _Course | None:
    """Return the first seed for which both the row and the stand-alone row exist; None without any fairness."""
    for outcome in results.at(row, column):
        summary = results.stand_alone(outcome.cell)
        if outcome.summary is None or summary is None:
            continue
        alone = {name: value for name, value in quantity.by_client(summary).items() if value is not None}
        history = quantity.by_round(outcome.cell.path)
        course = np.array([fairness_of(alone, values) for values in history.values()])
        if np.isnan(course).all():
            return None
        names = sorted(alone, key=lambda name: alone[name])
        return _Course(
            rounds=list(history),
            alone=np.array([alone[name] for name in names]),
            values=np.array([[values.get(name) for name in names] for values in history.values()], dtype=float),
            fairness=course,
        )
    return None
