"""The numbers of a table as CSV: of single runs, over seeds, and as differences to one row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedgraph.reproduce.quantity import GRAPH, PEERS
from fedgraph.reproduce.results import Results
from fedgraph.support.csv_text import as_csv


def long_csv(results: Results) -> str:
    """Format all metrics, statistics and groups of all runs as CSV, a number per line."""
    lines: list[tuple[Any, ...]] = [
        ("table", "profile", "row", "column", "seed", "split", "metric", "group", "statistic", "value", "run")
    ]
    for outcome in results.outcomes:
        for split, metric, group, statistic, value in _numbers(outcome.summary or {}):
            cell = outcome.cell
            where = (results.name, results.profile_name, cell.row, cell.column, cell.seed)
            lines.append((*where, split, metric, group, statistic, value, cell.path.name))
    return as_csv(lines)


def _numbers(summary: dict[str, Any]) -> Iterator[tuple[str, str, str, str, float | None]]:
    for split, metrics in summary.get("metrics", {}).items():
        for metric, statistics in metrics.items():
            yield from ((split, metric, "", statistic, value) for statistic, value in statistics.items())
    for split, groups in summary.get("per_group", {}).items():
        for group, metrics in groups.items():
            for metric, statistics in metrics.items():
                yield from ((split, metric, group, statistic, value) for statistic, value in statistics.items())
    for split in (PEERS, GRAPH):
        yield from ((split, measure, "", "mean", value) for measure, value in summary.get(split, {}).items())


def summary_csv(results: Results) -> str:
    """Format our values over seeds and the published value as CSV: a line per row, column and metric."""
    lines: list[tuple[Any, ...]] = [
        ("table", "profile", "row", "column", "metric", "value", "factor", "mean", "deviation", "seeds",
         "published", "published deviation", "published data", "differs", "missing because")
    ]  # fmt: skip
    for column in results.columns:
        for row in results.rows(column):
            for metric in results.table.metrics_of(column):
                ours, printed = results.ours(row, column, metric), results.published(row, column, metric)
                number, deviation = printed if isinstance(printed, tuple) else (printed, None)
                lines.append(
                    (
                        results.name, results.profile_name, row.label, column.key, metric.title,
                        str(results.table.quantity(row, column, metric)), metric.factor,
                        ours.mean if ours else None, ours.deviation if ours else None,
                        " ".join(map(str, ours.values)) if ours else None, number, deviation,
                        column.published_data or None,
                        results.differs(row, column), results.trouble(row, column),
                    )
                )  # fmt: skip
    return as_csv(lines)


def paired_csv(results: Results) -> str:
    """Format differences to the reference row as CSV: a line per row, column and metric."""
    lines: list[tuple[object, ...]] = [
        ("table", "profile", "column", "metric", "reference", "row", "mean", "low", "high", "above", "seeds", "values")
    ]
    for column in results.columns:
        for row, differences in results.differences(column):
            for metric, each in zip(results.table.metrics_of(column), differences, strict=True):
                if each is not None:
                    low, high = (None if each.margin is None else each.mean + sign * each.margin for sign in (-1, 1))
                    where = (results.name, results.profile_name, column.key, metric.title, results.table.table.compare)
                    values = " ".join(f"{seed}:{value}" for seed, value in each.values.items())
                    lines.append((*where, row.label, each.mean, low, high, each.above, len(each.values), values))
    return as_csv(lines)
