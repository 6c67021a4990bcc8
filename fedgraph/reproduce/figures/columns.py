"""The first metric of every row over the columns of a table, such as the error over days of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedgraph.reproduce.figures.panels import calm, legend_columns, palette, panels
from fedgraph.reproduce.result_file import ResultFile
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.spreads import Spread
from fedgraph.reproduce.table import ColumnTable, MetricTable, PublishedTable, RowTable
from fedgraph.support.errors import ExperimentError, if_any


def over_columns(results: Results) -> Any:
    """Draw a line per row over ``at`` of the columns, with deviations over seeds; a panel per ``panel``."""
    return _drawn(results.table, results.table.rows, results.ours)


def over_columns_of_file(file: ResultFile, rows: Sequence[str]) -> Any:
    """Draw the same for some rows of a result file.

    Raises
    ------
    ExperimentError
        When the file has no table with such a figure, or the table lacks a row.
    """
    if file.table is None or file.table.table.figure != "lines":
        raise ExperimentError(f'{file.path}: its table does not have figure = "lines"')
    known = {row.label: row for row in file.table.rows}
    for label in rows:
        if label not in known:
            raise ExperimentError(
                f"the table of {file.path} has no row '{label}'{if_any('; known: ', '; '.join(known))}"
            )

    def values(row: RowTable, column: ColumnTable, metric: MetricTable) -> Spread | None:
        spread = file.spread(row.label, column.key, metric.title)
        return spread._replace(deviation=None) if spread is not None and column.seeds_differ else spread

    return _drawn(file.table, [known[label] for label in rows], values)


def _drawn(
    table: PublishedTable,
    rows: Sequence[RowTable],
    values: Callable[[RowTable, ColumnTable, MetricTable], Spread | None],
) -> Any:
    drawn: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for column in table.columns:
        metric = table.metrics_of(column)[0]
        for row in rows:
            ours = values(row, column, metric)
            if ours is not None and column.at is not None:
                point = column.at, ours.mean, ours.deviation or 0.0
                drawn.setdefault(column.panel, {}).setdefault(row.label, []).append(point)
    if not drawn:
        return None
    labels = [row.label for row in rows if any(row.label in lines for lines in drawn.values())]
    styles = dict(zip(labels, palette(len(labels)), strict=True))
    figure, axes = panels(len(drawn), width=5.2, height=4.0)
    for axis, (panel, lines) in zip(axes, drawn.items(), strict=True):
        for label, points in lines.items():
            x, means, deviations = zip(*sorted(points), strict=True)
            colour, dashes = styles[label]
            width = 2.2 if label.startswith(table.table.highlight) else 1.2
            axis.errorbar(
                x, means, yerr=deviations, label=label, color=colour, linestyle=dashes, linewidth=width, marker="o",
                markersize=3, capsize=2,
            )  # fmt: skip
        axis.set_xscale("log")
        ticks = sorted({x for points in lines.values() for x, *_ in points})
        axis.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=8)
        axis.minorticks_off()
        calm(axis, panel, "", table.metrics_of(table.columns[0])[0].title)
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(
        [handles[label] for label in labels], labels, fontsize=8, frameon=False, loc="outside lower center",
        ncols=legend_columns(figure, labels),
    )  # fmt: skip
    return figure
