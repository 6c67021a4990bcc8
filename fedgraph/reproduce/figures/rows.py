"""Bars or dots of the first metric of every row, with published values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedgraph.reproduce.figures.panels import panels
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.spreads import Spread
from fedgraph.reproduce.table import MetricTable, PublishedValue

_HIGHLIGHTED, _OTHERS, _PUBLISHED = "#1f6fb4", "#9aa7b3", "#c04a1d"


class _Panel(NamedTuple):
    """A panel: title, metric, and rows (label, whether to highlight it, our and the published value)."""

    title: str
    metric: MetricTable
    lines: Sequence[tuple[str, bool, Spread | None, PublishedValue | None]]


def by_row(results: Results, bars: bool) -> Any:
    """Draw a line per row: our value with the deviation over seeds, and the published value as an open diamond.

    Published values on other data than ours have their own panel, titled with that data.
    """
    drawn: list[_Panel] = []
    table = results.table.table
    for column in results.columns:
        metric = results.table.metrics_of(column)[0]
        every = (
            (row.label, row.label.startswith(table.highlight), results.ours(row, column, metric),
             results.published(row, column, metric))
            for row in results.rows(column)
        )  # fmt: skip
        shown = [line for line in every if line[2] is not None or line[3] is not None]
        if not any(ours is not None for _, _, ours, _ in shown):
            continue
        elsewhere = results.published_of(column)
        if elsewhere and any(published is not None for *_, published in shown):
            ours_alone = [(label, high, ours, None) for label, high, ours, _ in shown if ours is not None]
            theirs = [(label, high, None, printed) for label, high, _, printed in shown if printed is not None]
            drawn.append(_Panel(column.title, metric, ours_alone))
            drawn.append(_Panel(f"{column.title}:\npublished, {elsewhere}", metric, theirs))
        else:
            drawn.append(_Panel(column.title, metric, shown))
    if not drawn:
        return None
    figure, axes = panels(len(drawn), width=6.4, height=1.3 + 0.27 * max(len(panel.lines) for panel in drawn))
    for axis, (title, metric, lines) in zip(axes, drawn, strict=True):
        for height, line in enumerate(lines):
            _draw_line(axis, height, *line, bars=bars)
        if any(published is not None for *_, published in lines):
            axis.plot([], [], "D", markerfacecolor="none", markeredgecolor=_PUBLISHED, label="published")
        marker, several = "s" if bars else "o", any(highlighted for _, highlighted, *_ in lines)
        if any(ours is not None for _, _, ours, _ in lines):
            if several:
                axis.plot([], [], marker, color=_HIGHLIGHTED, label=f"ours, {table.method}")
            axis.plot([], [], marker, color=_OTHERS, label="ours, others" if several else "ours")
        axis.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, columnspacing=1.2)
        axis.set_yticks(range(len(lines)), [label for label, *_ in lines], fontsize=8)
        axis.set_ylim(len(lines) - 0.4, -0.6)
        axis.margins(x=0.12)
        better = f" ({metric.quantity.better} is better)" if metric.quantity.better else ""
        axis.set_xlabel(f"{metric.title}{better}", fontsize=8)
        axis.set_title(title, fontsize=10, pad=20, fontweight="bold")
        axis.grid(axis="x", color="0.9", zorder=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="x", labelsize=8)
        axis.tick_params(axis="y", length=0)
    return figure


def _draw_line(
    axis: Any,
    height: int,
    label: str,
    highlighted: bool,
    ours: Spread | None,
    published: PublishedValue | None,
    bars: bool,
) -> None:
    colour = _HIGHLIGHTED if highlighted else _OTHERS
    if ours is not None:
        deviation = ours.deviation or 0.0
        if bars:
            axis.barh(height, ours.mean, color=colour, height=0.7, zorder=2)
        else:
            axis.plot(ours.mean, height, "o", color=colour, markersize=7, zorder=3)
        if deviation:
            axis.errorbar(ours.mean, height, xerr=deviation, color="0.2", capsize=2.5, linewidth=1, zorder=4)
        # Right of a bar; for dots at the right edge, where no published value hides it.
        place, xycoords = (ours.mean + deviation, "data") if bars else (1, ("axes fraction", "data"))
        axis.annotate(
            f"{ours.mean:.3f}" if abs(ours.mean) < 10 else f"{ours.mean:.2f}", (place, height), xycoords=xycoords,
            xytext=(7, 0), textcoords="offset points", va="center", ha="left", fontsize=7.5, color="0.2", zorder=5,
        )  # fmt: skip
    if published is not None:
        number = published[0] if isinstance(published, tuple) else published
        axis.plot(number, height, "D", markerfacecolor="none", markeredgecolor=_PUBLISHED, markersize=6, zorder=6)
    if published is not None and ours is None:
        axis.annotate(
            f"{number:g}", (number, height), xytext=(7, 0), textcoords="offset points", va="center", fontsize=7.5,
            color=_PUBLISHED,
        )  # fmt: skip
