"""Plot of finished runs: the client graph, and the metrics of the models round by round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph.graph import ClientGraph, read_graph
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports.results import shown_split
from fedgraph.support.errors import RunError

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg")


def plot_runs(folders: Sequence[RunFolder], path: Path) -> None:
    """Draw runs of the same clients into an image file, whose format follows the suffix of ``path``.

    Left, where a run has one: the given client graph, each client coloured by the metric of its final model in the
    first run. Right: mean over clients of the first metric, round by round, with the middle half of the clients shaded.

    Raises
    ------
    RunError
        When nothing was measured in a run.
    """
    from matplotlib.figure import Figure

    histories = [_history(folder) for folder in folders]
    metric, split = histories[0]["metric"], histories[0]["split"]
    graph = next((folder.path / "graph.npz" for folder in folders if (folder.path / "graph.npz").exists()), None)
    figure = Figure(figsize=(9.6, 3.8) if graph else (5.6, 3.8), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2 if graph else 1, squeeze=False)[0]
    if graph is not None:
        _draw_graph(panels[0], figure, read_graph(graph), histories[0])
    lines = panels[-1]
    for history in histories:
        values = np.array(history["values"], dtype=float)
        (line,) = lines.plot(history["rounds"], np.nanmean(values, axis=1), label=history["method"])
        low, high = np.nanpercentile(values, [25, 75], axis=1)
        lines.fill_between(history["rounds"], low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    lines.set_xlabel("round")
    lines.set_ylabel(f"{metric} on each client's {split} data")
    lines.set_title("mean over clients (shaded: middle half)", fontsize=10)
    lines.xaxis.get_major_locator().set_params(integer=True)
    lines.legend(frameon=False)
    lines.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _history(folder: RunFolder) -> dict[str, Any]:
    """Return the first metric of a run on its test data (else the last split), one row of clients per evaluation."""
    summary = folder.summary()
    split = shown_split([summary])
    if not summary["metrics"].get(split):
        raise RunError(f"{folder.path} measured nothing: there is nothing to draw")
    metric = next(iter(summary["metrics"][split]))
    measured = {
        line["round"]: list(line["per_client"][metric].values())
        for line in folder.lines()
        if line["phase"] == "evaluation" and line["split"] == split
    }
    rounds = sorted(measured)
    last = summary["per_client"][split][metric]
    return {
        "method": summary["method"], "split": split, "metric": metric, "last": last,
        "rounds": rounds, "values": [measured[number] for number in rounds],
    }  # fmt: skip


def spring_layout(drawn: Any) -> dict[str, Any]:
    """Return where each vertex of a NetworkX graph is drawn: neighbours together, every time in the same places."""
    import networkx as nx

    places: dict[str, Any] = nx.spring_layout(drawn, weight=None, seed=0, k=1.6 / np.sqrt(max(len(drawn), 1)))
    return places


def _draw_graph(panel: Any, figure: Any, graph: ClientGraph, history: dict[str, Any]) -> None:
    import networkx as nx

    drawn = nx.Graph(graph.without_self_loops().to_networkx())
    places = spring_layout(drawn)
    colours = np.array([history["last"].get(name) for name in drawn.nodes], dtype=float)
    nx.draw_networkx_edges(drawn, places, ax=panel, edge_color="0.8", width=0.8)
    points = nx.draw_networkx_nodes(
        drawn, places, ax=panel, node_color=colours, cmap="viridis", node_size=70, linewidths=0.5, edgecolors="white"
    )
    figure.colorbar(points, ax=panel, shrink=0.7, label=history["metric"])
    panel.set_title(f"client graph, coloured by {history['method']}", fontsize=10)
    panel.axis("off")
