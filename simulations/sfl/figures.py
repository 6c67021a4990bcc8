"""Figure 4 of Chen et al. 2022: client graphs as adjacency matrices, the given one above those that rows learned."""

from __future__ import annotations

from typing import Any

from fedgraph.graph import ClientGraph, read_graph
from fedgraph.reproduce import ColumnTable, Results

MOST_CLIENTS = 25


def adjacency(results: Results) -> Any:
    """Draw a stack of matrices per column, of the same clients in the same order: given above learned ones.

    All are of one seed, without self loops, each in shades relative to its own largest weight.
    """
    stacks = [(column, stack) for column in results.columns if len(stack := _stack(results, column)) > 1]
    if not stacks:
        return None
    from matplotlib.figure import Figure

    down = max(len(stack) for _, stack in stacks)
    figure = Figure(figsize=(3.3 * len(stacks), 3.2 * down), dpi=150, layout="constrained")
    axes = figure.subplots(down, len(stacks), squeeze=False)
    for across, (column, stack) in enumerate(stacks):
        given = stack["given"]
        names = shown_clients(given)
        for axis, (title, graph) in zip(axes[:, across], stack.items(), strict=False):
            weights = graph.without_self_loops().subgraph(names).dense().numpy()
            image = axis.imshow(weights, cmap="viridis", vmin=0, vmax=weights.max() or 1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"{column.title}\n{title}" if graph is given else title, fontsize=8.5)
            figure.colorbar(image, ax=axis, shrink=0.75, pad=0.02).ax.tick_params(labelsize=6.5)
        axes[len(stack) - 1, across].set_xlabel(f"{len(names)} of {given.num_clients} clients")
        for axis in axes[len(stack) :, across]:
            axis.set_axis_off()
    return figure


def _stack(results: Results, column: ColumnTable) -> dict[str, ClientGraph]:
    """Return the graphs by heading, the given one and those of the rows, of the seed with the most graphs."""
    return max((_stack_of(results, column, seed) for seed in results.seeds), key=len, default={})


def _stack_of(results: Results, column: ColumnTable, seed: int) -> dict[str, ClientGraph]:
    folders = {
        row.label: outcome.cell.path
        for row in results.rows(column)
        for outcome in results.at(row, column)
        if outcome.summary and outcome.cell.seed == seed
    }
    files = {"given": next((path / "graph.npz" for path in folders.values() if (path / "graph.npz").exists()), None)}
    files |= {f"learned: {label}": folder / "learned-graph.npz" for label, folder in folders.items()}
    return {title: read_graph(file) for title, file in files.items() if file is not None and file.exists()}


def shown_clients(graph: ClientGraph, most: int = MOST_CLIENTS) -> list[str]:
    """Choose up to ``most`` clients, community by community of the graph, the largest first, by name within each."""
    import networkx as nx  # takes a fifth of a second

    related = nx.Graph(graph.without_self_loops().to_networkx())
    communities = nx.community.greedy_modularity_communities(related, weight="weight") if related.size() else []
    ordered = [name for community in communities for name in sorted(community)]
    ordered += sorted(set(graph.names) - set(ordered))
    return ordered[:most]
