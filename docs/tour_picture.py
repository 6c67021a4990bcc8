"""Draws ``docs/tour.png`` from the numbers of the tour in the README: ``python docs/tour_picture.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

DOCS = Path(__file__).resolve().parent
GROUPS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
OURS, OTHERS, CONTROL = "#0072b2", "#b8bec6", "#e3b98f"
# Part of the tour: a title for it, and its rows: the label in the tour, that in the picture, and its colour.
PANELS = {
    "SFL": (
        "40 clients, 24 images each, in four groups",
        [
            ("each client alone", "each client alone", OTHERS),
            ("FedAvg, and a round of training at home", "FedAvg, fine-tuned", OTHERS),
            ("mixtures that find the groups themselves (pFedGraph)", "pFedGraph", OTHERS),
            ("SFL over the same graph with the clients in wrong places", "SFL, clients in wrong places", CONTROL),
            ("SFL over the graph of the groups", "SFL over the graph", OURS),
        ],
    ),
    "F3": (
        "Four participants of an electricity grid: stable?",
        [
            ("the best participant alone", "the best participant alone", OTHERS),
            ("vertical learning, with 451 exchanges", "vertical learning, 451 exchanges", OTHERS),
            ("fused after one exchange, without a graph", "F3 without a graph, one exchange", CONTROL),
            ("fused over a learned graph", "F3 over a learned graph", OURS),
        ],
    ),
    "IPA": (
        "Five peers, two digits each, tested on all ten",
        [
            ("each for itself", "each for itself", OTHERS),
            ("one model for all, drift corrected (FedDyn)", "one model for all (FedDyn)", OTHERS),
            ("with iterative parameter alignment, mean of the five", "IPA", OURS),
        ],
    ),
}


def numbers_of_the_tour(readme: str) -> dict[str, dict[str, str]]:
    """Return what the README shows of the tour: values by label, by the first word of their part's title."""
    block = re.search(r"^```text\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    assert block is not None
    parts: dict[str, dict[str, str]] = {}
    for line in block[1].splitlines():
        if not line.startswith(" "):
            rows = parts[line.partition(":")[0]] = {}
        else:
            label, value = re.split(r" {2,}", line.strip())
            rows[label] = value
    return parts


def described(parts: dict[str, dict[str, str]]) -> str:
    """Return what the picture shows, in words; kept in the picture, so that an old one is found out."""
    return "\n".join(
        f"{title}: " + ", ".join(f"{shown} {parts[part][label]}" for label, shown, _ in rows)
        for part, (title, rows) in PANELS.items()
    )


def draw(parts: dict[str, dict[str, str]], target: Path) -> None:
    """Draw it so that it can be read at a width of 390 pixels."""
    heights = [2.6, *(1.3 + len(rows) for _, rows in PANELS.values())]
    with plt.rc_context({"font.size": 14, "font.family": "DejaVu Sans"}):
        figure, axes = plt.subplots(
            len(heights), figsize=(4.8, 7.4), height_ratios=heights, layout="constrained", facecolor="white"
        )
        _graph(axes[0])
        for number, (axis, (part, (title, rows))) in enumerate(zip(axes[1:], PANELS.items(), strict=True)):
            # The title of the first panel stands above the graph of its clients.
            axes[number and number + 1].set_title(title, loc="left", fontsize=13, fontweight="bold")
            _bars(axis, [(shown, parts[part][label], colour) for label, shown, colour in rows])
        figure.savefig(target, dpi=200, metadata={"Description": described(parts)})
    plt.close(figure)


def _graph(axis: Axes) -> None:
    around = 2 * np.pi * np.arange(10) / 10
    ring = 0.42 * np.c_[np.cos(around), np.sin(around)]
    places = np.concatenate([ring + centre for centre in ((0, 0), (1, 0), (2, 0), (3, 0))])
    edges = [(a, b) for a in range(40) for b in range(a) if a // 10 == b // 10]
    axis.add_collection(LineCollection([places[list(edge)] for edge in edges], colors="#c9ced6", linewidths=0.5))
    axis.scatter(*places.T, s=26, c=[GROUPS[client // 10] for client in range(40)], zorder=2)
    axis.set(xlim=(-0.47, 3.55), ylim=(-0.5, 0.5), aspect="equal", anchor="W")
    axis.axis("off")


def _bars(axis: Axes, rows: list[tuple[str, str, str]]) -> None:
    for place, (label, value, colour) in enumerate(rows):
        right = float(value.split()[0])
        axis.barh(-place, right, color=colour, height=0.82)
        axis.text(1.5, -place, label, va="center", fontsize=13, color="white" if colour == OURS else "#1b1f24")
        axis.text(117, -place, value, va="center", ha="right", fontweight="bold", color="#1b1f24")
    axis.set(xlim=(0, 117), ylim=(0.5 - len(rows), 0.5))
    axis.axis("off")


if __name__ == "__main__":
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    sys.exit(draw(numbers_of_the_tour(readme), DOCS / "tour.png"))
