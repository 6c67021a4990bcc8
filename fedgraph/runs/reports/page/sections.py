"""What each method has to show in a report: F3's owners, the distances of IPA's peers, FedNGM's dependencies."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fedgraph.graphical import GraphicalModel
from fedgraph.runs.finished import Run
from fedgraph.runs.reports.page import charts
from fedgraph.runs.reports.peer_comparison import FILE, PeerComparison

_MOST_QUERIED = 6
_ENTROPY_BINS = 6


@dataclass(frozen=True)
class Shown:
    """A chart with what it says.

    Attributes
    ----------
    title, text : str
        Heading, and an explanation in a sentence or two.
    figure : Figure
        The chart.
    """

    title: str
    text: str
    figure: Any


def method_charts(run: Run) -> list[Shown]:
    """Return the charts that the files of a run allow; none for methods that leave no such files."""
    makers: dict[str, Callable[[Run], list[Shown]]] = {
        "alignment.npz": _alignment,
        "entropies.csv": _disagreement,
        FILE: _peers,
        "dependencies.csv": _dependencies,
    }
    found = [shown for name, make in makers.items() if (run.path / name).is_file() for shown in make(run)]
    if run.method == "ipa" and not (run.path / FILE).is_file():
        found += _distances(run)
    if "model_file" in run.summary:
        found += _answer(run.graphical_model)
    return found


def _alignment(run: Run) -> list[Shown]:
    with np.load(run.path / "alignment.npz", allow_pickle=False) as content:
        owners, matrices = content["owners"].tolist(), content["matrices"].astype(np.float64)
    flat = torch.from_numpy(matrices.reshape(len(owners), -1))
    distances = torch.cdist(flat, flat).numpy()
    text = (
        "Frobenius distance between the alignment matrices of two owners: how differently their embeddings are turned "
        "before they are fused. 0 means alike."
    )
    return [Shown("Alignment of the owners", text, charts.heat_map(owners, distances, "distance"))]


def _disagreement(run: Run) -> list[Shown]:
    """Show in how many test samples the owners disagree, and how often the fusion is right there."""
    with (run.path / "entropies.csv").open(newline="") as stream:
        entropies = {row["key"]: float(row["entropy"]) for row in csv.DictReader(stream) if row["split"] == "test"}
    right: dict[str, bool] = {}
    if (run.path / "predictions.csv").is_file():
        with (run.path / "predictions.csv").open(newline="") as stream:
            right = {row["key"]: row["label"] == row["predicted"] for row in csv.DictReader(stream)}
    keys = [key for key in entropies if key in right]
    if not keys:
        return []
    bits, correct = np.array([entropies[key] for key in keys]), np.array([right[key] for key in keys])
    edges = np.linspace(0, max(bits.max(), 1e-9), _ENTROPY_BINS + 1)
    place = np.clip(np.searchsorted(edges, bits, side="right") - 1, 0, _ENTROPY_BINS - 1)
    labels = [f"{low:.2g} to {high:.2g}" for low, high in pairwise(edges)]
    accuracy = [float(correct[place == number].mean()) if (place == number).any() else None for number in
                range(_ENTROPY_BINS)]  # fmt: skip
    shares = [float((place == number).mean()) for number in range(_ENTROPY_BINS)]
    text = (
        "Test samples by how much the owners' own predictions differ (entropy in bits; 0: all agree): which share of "
        "the samples this is, and for how many of them the fusion is right."
    )
    figure = charts.bars(labels, {"share of samples": shares, "fusion right": accuracy}, "share", "entropy, bits")
    return [Shown("Where owners disagree", text, figure)]


def _peers(run: Run) -> list[Shown]:
    compared = PeerComparison.read(run.path / FILE)
    share = compared.matrix("hamming").double().numpy() / compared.examples
    text = f"Share of {compared.examples:,} test examples for which two peers predict different classes."
    return [Shown("Predictions of the peers", text, charts.heat_map(compared.names, share, "share"))]


def _distances(run: Run) -> list[Shown]:
    models = run.models.at_server
    names = list(models)
    flat = torch.stack([torch.cat([value.flatten() for value in models[name].values()]) for name in names])
    distances = torch.cdist(flat.double(), flat.double()).numpy()
    text = "Euclidean distance between the parameters of two peers at the end of the run."
    return [Shown("Distances of the peers", text, charts.heat_map(names, distances, "distance"))]


def _dependencies(run: Run) -> list[Shown]:
    with (run.path / "dependencies.csv").open(newline="") as stream:
        rows = [(row["feature"], row["depends on"], float(row["strength"])) for row in csv.DictReader(stream)]
    names = run.graphical_model.graph.names if "model_file" in run.summary else tuple({one for one, *_ in rows})
    position = {name: number for number, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)))
    strongest: dict[tuple[str, str], float] = {}
    for feature, other, strength in rows:
        if feature in position and other in position:
            matrix[position[feature], position[other]] = strength
            pair = (min(feature, other), max(feature, other))
            strongest[pair] = max(strength, strongest.get(pair, 0.0))
    edges = [(*pair, strength) for pair, strength in strongest.items()]
    return [
        Shown(
            "What depends on what",
            "The consensus graph of the features; the wider an edge, the stronger the dependency in the global model.",
            feature_graph_chart(names, edges),
        ),
        Shown(
            "Strength of the dependencies",
            "How much the feature of a row changes with that of a column, in the global model.",
            charts.heat_map(names, matrix, "strength"),
        ),
    ]


def feature_graph_chart(names: Sequence[str], edges: Sequence[tuple[str, str, float]]) -> Any:
    """Draw a graph of features, each in the same place of a circle whatever the edges are.

    Parameters
    ----------
    names : sequence of str
        The features.
    edges : sequence of tuple
        Pairs of features, and the strength of their dependency.
    """
    import networkx as nx  # takes a fifth of a second

    places = {name: (float(x), float(y)) for name, (x, y) in nx.circular_layout(names).items()}
    return charts.feature_graph(names, edges, places)


def _answer(model: GraphicalModel) -> list[Shown]:
    """Ask the model about a feature with few categories, for each category of one that it is joined to."""
    schema = model.encoding.schema
    few = [name for name in schema.names if schema[name].categories and len(schema[name].categories) <= _MOST_QUERIED]
    degree = {name: sum(name in edge for edge in model.graph.edges) for name in few}
    pairs = [edge for edge in model.graph.edges if set(edge) <= set(few)]
    if not pairs:
        return []
    asked, given = max(pairs, key=lambda edge: (degree[edge[0]] + degree[edge[1]], edge))
    categories = [str(each) for each in schema[given].categories]
    answers = {}
    for category in schema[given].categories:
        answer: Any = model.conditional({given: category}, [asked])[asked]
        answers[f"{given} = {category}"] = [float(share) for share in answer.probabilities[0]]
    text = f"The distribution of {asked} if all that is known is {given}, for each of its {len(categories)} values."
    figure = charts.bars([str(each) for each in schema[asked].categories], answers, "probability", asked)
    return [Shown("An answer of the model", text, figure)]
