"""The figure of a table: its first metric by row or by round, or the client graphs, given and learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fedgraph.client_graph import ClientGraph, read_graph, to_networkx
from fedgraph.metrics import direction
from fedgraph.reproduce.cells import Cell
from fedgraph.reproduce.results import Results, Spread
from fedgraph.reproduce.table import ColumnTable, MetricTable, PublishedValue

MOST_CLIENTS = 25
"""Clients in a picture of adjacency matrices, as many as in Fig. 4 of Chen et al. 2022."""

_SFL, _OTHERS, _PUBLISHED = "#1f6fb4", "#9aa7b3", "#c04a1d"


def draw(results: Results, path: Path) -> bool:
    """Draw the figure that the table asks for; False, and no file, when there is nothing to draw yet."""
    kind = results.table.table.figure
    figure = None
    if kind in ("bars", "dots"):
        figure = _by_row(results, bars=kind == "bars")
    elif kind == "curves":
        figure = _by_round(results)
    elif kind == "adjacency":
        figure = _graphs(results)
    if figure is None:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True


def _panels(count: int, width: float, height: float, most: int = 2) -> tuple[Any, list[Any]]:
    """A figure with ``count`` panels of the given size in inches, at most ``most`` side by side."""
    from matplotlib.figure import Figure

    across = min(count, most)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), dpi=150, layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


# ---- by row ------------------------------------------------------------------------------------------------------


def _by_row(results: Results, bars: bool) -> Any:
    """A line per row: ours with the deviation over seeds, and the published value as an open diamond."""
    drawn = []
    for column in results.columns:
        metric = results.table.metrics_of(column)[0]
        every = (
            (row.label, (row.method or "").startswith("sfl"), results.ours(row, column, metric),
             results.published(row, column, metric))
            for row in results.rows(column)
        )  # fmt: skip
        lines = [line for line in every if line[2] is not None or line[3] is not None]
        if any(ours is not None for _, _, ours, _ in lines):
            drawn.append((column, metric, lines))
    if not drawn:
        return None
    figure, axes = _panels(len(drawn), width=6.4, height=1.3 + 0.27 * max(len(lines) for _, _, lines in drawn))
    for axis, (column, metric, lines) in zip(axes, drawn, strict=True):
        for height, line in enumerate(lines):
            _draw_line(axis, height, *line, bars=bars)
        if any(published is not None for *_, published in lines):
            axis.plot([], [], "D", markerfacecolor="none", markeredgecolor=_PUBLISHED, label="published")
        axis.plot([], [], "s" if bars else "o", color=_SFL, label="ours, SFL")
        axis.plot([], [], "s" if bars else "o", color=_OTHERS, label="ours, others")
        axis.legend(fontsize=7, frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, columnspacing=1.2)
        axis.set_yticks(range(len(lines)), [label for label, *_ in lines], fontsize=8)
        axis.set_ylim(len(lines) - 0.4, -0.6)
        axis.margins(x=0.12)
        axis.set_xlabel(f"{metric.title} ({direction(metric.quantity.metric)} is better)", fontsize=8)
        axis.set_title(column.title, fontsize=10, pad=20, fontweight="bold")
        axis.grid(axis="x", color="0.9", zorder=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="x", labelsize=8)
        axis.tick_params(axis="y", length=0)
    return figure


def _draw_line(
    axis: Any,
    height: int,
    label: str,
    is_sfl: bool,
    ours: Spread | None,
    published: PublishedValue | None,
    bars: bool,
) -> None:
    colour = _SFL if is_sfl else _OTHERS
    if ours is not None:
        deviation = ours.deviation or 0.0
        if bars:
            axis.barh(height, ours.mean, color=colour, height=0.7, zorder=2)
        else:
            axis.plot(ours.mean, height, "o", color=colour, markersize=7, zorder=3)
        if deviation:
            axis.errorbar(ours.mean, height, xerr=deviation, color="0.2", capsize=2.5, linewidth=1, zorder=4)
        # Right of a bar; left of a dot, where no published value of its own hides it: ours are mostly the smaller.
        side = 1 if bars else -1
        axis.annotate(
            f"{ours.mean:.3f}" if abs(ours.mean) < 10 else f"{ours.mean:.2f}",
            (ours.mean + side * deviation, height), xytext=(7 * side, 0), textcoords="offset points", va="center",
            ha="left" if bars else "right", fontsize=7.5, color="0.2", zorder=5,
        )  # fmt: skip
    if published is not None:
        number = published[0] if isinstance(published, tuple) else published
        axis.plot(number, height, "D", markerfacecolor="none", markeredgecolor=_PUBLISHED, markersize=6, zorder=6)


# ---- by round ----------------------------------------------------------------------------------------------------


def _by_round(results: Results) -> Any:
    """A panel per column, a line per row: the mean over seeds, with a band from the lowest to the highest seed."""
    curves = {column.key: _curves(results, column) for column in results.columns}
    drawn = [column for column in results.columns if curves[column.key]]
    if not drawn:
        return None
    labels = [row.label for row in results.table.rows if any(row.label in curves[column.key] for column in drawn)]
    figure, axes = _panels(len(drawn), width=4.6, height=3.4)
    palette = _palette(len(labels))
    for axis, column in zip(axes, drawn, strict=True):
        metric = results.table.metrics_of(column)[0]
        for label, (rounds, values) in curves[column.key].items():
            colour, style = palette[labels.index(label)]
            axis.plot(rounds, values.mean(axis=0), color=colour, linestyle=style, linewidth=1.6, label=label)
            axis.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.13, linewidth=0)
        axis.set_title(column.title, fontsize=10)
        axis.set_xlabel("round", fontsize=8)
        axis.set_ylabel(f"{metric.title} on each client's {metric.quantity.split} data", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    chosen = [label for label in labels if label in handles]
    figure.legend(
        [handles[label] for label in chosen], chosen, loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    return figure


def _palette(count: int) -> list[tuple[Any, str]]:
    """Ten colours that stay apart, then the same ones dashed and dotted."""
    from matplotlib import colormaps

    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    return [(colours[number % 10], ("-", "--", ":")[number // 10 % 3]) for number in range(count)]


def _curves(results: Results, column: ColumnTable) -> dict[str, tuple[list[int], NDArray[np.float64]]]:
    """By row label, the rounds that every seed has measured and the values ``[seeds, rounds]``."""
    metric = results.table.metrics_of(column)[0]
    curves = {}
    for row in results.rows(column):
        seeds = [_history(outcome.cell, metric) for outcome in results.at(row, column) if outcome.summary]
        rounds = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
        if rounds:
            curves[row.label] = (rounds, np.array([[seed[number] for number in rounds] for seed in seeds]))
    return curves


def _history(cell: Cell, metric: MetricTable) -> dict[int, float]:
    """The metric of a run after each round in which it was measured."""
    quantity = metric.quantity
    found: dict[int, float] = {}
    for line in map(json.loads, (cell.path / "metrics.jsonl").read_text().splitlines()):
        # With early stopping the last line is of models of an earlier round.
        if line["phase"] == "evaluation" and line["split"] == quantity.split and not line.get("restored"):
            value = line["metrics"].get(quantity.metric, {}).get(quantity.statistic)
            if value is not None:
                found[line["round"]] = value * metric.factor
    return found


# ---- client graphs -----------------------------------------------------------------------------------------------


def _graphs(results: Results) -> Any:
    """Per column, adjacency matrices of the same clients in the same order: the given one on top, learned ones below.

    All are of one seed, without self loops, each in shades of its own largest weight.
    """
    stacks = [(column, stack) for column in results.columns if len(stack := _stack(results, column)) > 1]
    if not stacks:
        return None
    from matplotlib.figure import Figure

    down = max(len(stack) for _, stack in stacks)
    figure = Figure(figsize=(3.3 * len(stacks), 3.2 * down), dpi=150, layout="constrained")
    axes = figure.subplots(down, len(stacks), squeeze=False)
    for across, (column, stack) in enumerate(stacks):
        names = shown_clients(stack[0][1])
        for height in range(down):
            axis = axes[height, across]
            if height >= len(stack):
                axis.set_axis_off()
                continue
            title, graph = stack[height]
            weights = graph.without_self_loops().subgraph(names).dense().numpy()
            image = axis.imshow(weights, cmap="viridis", vmin=0, vmax=weights.max() or 1, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(f"{column.title}\n{title}" if height == 0 else title, fontsize=8.5)
            bar = figure.colorbar(image, ax=axis, shrink=0.75, pad=0.02)
            bar.ax.tick_params(labelsize=6.5)
        axes[min(down, len(stack)) - 1, across].set_xlabel(f"{len(names)} of {stack[0][1].num_clients} clients")
    return figure


def _stack(results: Results, column: ColumnTable) -> list[tuple[str, ClientGraph]]:
    """Headings and graphs of one seed: the given one, then what each row learned; of the seed with most to show."""
    stacks = [_stack_of(results, column, seed) for seed in results.seeds]
    return max(stacks, key=len, default=[])


def _stack_of(results: Results, column: ColumnTable, seed: int) -> list[tuple[str, ClientGraph]]:
    folders = [
        (row.label, outcome.cell.path)
        for row in results.rows(column)
        for outcome in results.at(row, column)
        if outcome.summary and outcome.cell.seed == seed
    ]
    given = next((folder / "graph.npz" for _, folder in folders if (folder / "graph.npz").exists()), None)
    if given is None:
        return []
    learned = [(label, folder / "learned-graph.npz") for label, folder in folders]
    return [
        ("given", read_graph(given)),
        *((f"learned: {label}", read_graph(file)) for label, file in learned if file.exists()),
    ]


def shown_clients(graph: ClientGraph, most: int = MOST_CLIENTS) -> list[str]:
    """At most so many clients, community by community of the graph, the largest first, and by name within each."""
    related = nx.Graph(to_networkx(graph.without_self_loops()))
    communities = nx.community.greedy_modularity_communities(related, weight="weight") if related.size() else []
    ordered = [name for community in communities for name in sorted(community)]
    ordered += sorted(set(graph.names) - set(ordered))
    return ordered[:most]
