"""Learning curves of every row: the first metric with a value after every evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph.reproduce.cells import Cell
from fedgraph.reproduce.figures.panels import calm, legend_columns, palette, panels
from fedgraph.reproduce.quantity import Quantity
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.table import ColumnTable, MetricTable
from fedgraph.runs import RunFolder


def by_round(results: Results) -> Any:
    """Draw a panel per column and a line per row: the mean over seeds, with a band from lowest to highest."""
    curves = {column.key: _curves(results, column) for column in results.columns}
    drawn = [column for column in results.columns if curves[column.key]]
    if not drawn:
        return None
    labels = [row.label for row in results.table.rows if any(row.label in curves[column.key] for column in drawn)]
    figure, axes = panels(len(drawn), width=4.6, height=3.4)
    colours = palette(len(labels))
    for axis, column in zip(axes, drawn, strict=True):
        metric = _metric(results, column)
        for label, (rounds, values) in curves[column.key].items():
            colour, style = colours[labels.index(label)]
            highlighted = label.startswith(results.table.table.highlight)
            look = {"color": colour, "linestyle": style, "linewidth": 2.6 if highlighted else 1.6}
            axis.plot(rounds, values.mean(axis=0), label=label, **look)
            axis.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.13, linewidth=0)
        calm(axis, column.title, "round", f"{metric.title} on each client's {metric.quantity.split} data")
        axis.xaxis.get_major_locator().set_params(integer=True)
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    chosen = [label for label in labels if label in handles]
    look = {"loc": "outside lower center", "fontsize": 8, "frameon": False}
    figure.legend([handles[label] for label in chosen], chosen, ncols=legend_columns(figure, chosen), **look)
    return figure


def _metric(results: Results, column: ColumnTable) -> MetricTable:
    metrics = results.table.metrics_of(column)
    return next((metric for metric in metrics if metric.quantity.has_course), metrics[0])


def _curves(results: Results, column: ColumnTable) -> dict[str, tuple[list[int], NDArray[np.float64]]]:
    """Return the rounds evaluated by all seeds and their values ``[seeds, rounds]``, by row label."""
    metric = _metric(results, column)
    curves = {}
    for row in results.rows(column):
        quantity = results.table.quantity(row, column, metric)
        seeds = [
            _history(outcome.cell, quantity, metric.factor) for outcome in results.at(row, column) if outcome.summary
        ]
        rounds = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
        if rounds:
            curves[row.label] = (rounds, np.array([[seed[number] for number in rounds] for seed in seeds]))
    return curves


def _history(cell: Cell, quantity: Quantity, factor: float) -> dict[int, float]:
    """Return the metric of a run after each evaluation."""
    if quantity.client is not None:
        history = {number: values.get(quantity.client) for number, values in quantity.by_round(cell.path).items()}
    else:
        history = {
            line["round"]: line["metrics"].get(quantity.metric, {}).get(quantity.statistic)
            for line in RunFolder(cell.path).evaluations(quantity.split)
        }
    return {number: value * factor for number, value in history.items() if value is not None}
