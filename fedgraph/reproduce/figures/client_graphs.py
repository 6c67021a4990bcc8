"""Client graphs as adjacency matrices: the given one above those that rows have learned."""

from __future__ import annotations

from typing import Any

from fedgraph.graph import ClientGraph, read_graph
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.table import ColumnTable

MOST_CLIENTS = 25
"""Number of clients in a picture of adjacency matrices, as in Fig. 4 of Chen et al. 2022."""


def of_client_graphs(results: Results) -> Any:
    """Draw adjacency matrices of the same clients in the same order, a stack per column: given above learned ones.

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
    """Return headings and graphs, the given one and those of the rows, of the seed with the most graphs."""
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
    """Choose up to ``most`` clients, community by community of the graph, the largest first, by name within each."""
    import networkx as nx  # takes a fifth of a second

    related = nx.Graph(graph.without_self_loops().to_networkx())
    communities = nx.community.greedy_modularity_communities(related, weight="weight") if related.size() else []
    ordered = [name for community in communities for name in sorted(community)]
    ordered += sorted(set(graph.names) - set(ordered))
    return ordered[:most]
