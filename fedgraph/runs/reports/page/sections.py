"""Charts of single methods in a report: F3's owners, distances of IPA's peers, FedNGM's dependencies."""

from __future__ import annotations

import csv
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fedgraph.graph import GraphChart, in_a_circle
from fedgraph.graphical import GraphicalModel
from fedgraph.runs.finished import Run
from fedgraph.runs.reports.charts import AnyChart, HeatMap, bars
from fedgraph.runs.reports.peer_comparison import FILE, PeerComparison

_MOST_QUERIED = 6
_ENTROPY_BINS = 6


def method_charts(run: Run) -> list[AnyChart]:
    """Return the charts of a run, as far as it has the files for them."""
    makers: dict[str, Callable[[Run], list[AnyChart]]] = {
        "alignment.npz": _alignment,
        "entropies.csv": _disagreement,
        FILE: _peers,
        "dependencies.csv": _dependencies,
    }
    charts = [chart for name, make in makers.items() if (run.path / name).is_file() for chart in make(run)]
    if run.method == "ipa" and not (run.path / FILE).is_file():
        charts += _distances(run)
    if "model_file" in run.summary:
        charts += _answer(run.graphical_model)
    return charts


def _alignment(run: Run) -> list[AnyChart]:
    with np.load(run.path / "alignment.npz", allow_pickle=False) as content:
        owners, matrices = content["owners"].tolist(), content["matrices"].astype(np.float64)
    flat = torch.from_numpy(matrices.reshape(len(owners), -1))
    distances = torch.cdist(flat, flat).numpy()
    text = (
        "Frobenius distance between the alignment matrices of two owners: how differently their embeddings are turned "
        "before they are fused. 0 means alike."
    )
    return [HeatMap(owners, distances, "distance", "Alignment of the owners", text)]


def _disagreement(run: Run) -> list[AnyChart]:
    """Return a chart of the entropy of the owners' predictions, and of the fusion's accuracy by entropy."""
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
    values: dict[str, list[float | None]] = {"share of samples": [*shares], "fusion right": accuracy}
    return [bars(labels, values, "share", "entropy, bits", title="Where owners disagree", text=text)]


def _peers(run: Run) -> list[AnyChart]:
    compared = PeerComparison.read(run.path / FILE)
    share = compared.matrix("hamming").double().numpy() / compared.examples
    text = f"Share of {compared.examples:,} test examples for which two peers predict different classes."
    return [HeatMap(compared.names, share, "share", "Predictions of the peers", text)]


def _distances(run: Run) -> list[AnyChart]:
    models = run.models.at_server
    names = list(models)
    flat = torch.stack([torch.cat([value.flatten() for value in models[name].values()]) for name in names])
    distances = torch.cdist(flat.double(), flat.double()).numpy()
    text = "Euclidean distance between the parameters of two peers at the end of the run."
    return [HeatMap(names, distances, "distance", "Distances of the peers", text)]


def _dependencies(run: Run) -> list[AnyChart]:
    with (run.path / "dependencies.csv").open(newline="") as stream:
        rows = [(row["feature"], row["depends on"], float(row["strength"])) for row in csv.DictReader(stream)]
    names = run.graphical_model.graph.names if "model_file" in run.summary else tuple({one for one, *_ in rows})
    rows = [(one, other, strength) for one, other, strength in rows if {one, other} <= set(names)]
    matrix = np.zeros((len(names), len(names)))
    for one, other, strength in rows:
        matrix[names.index(one), names.index(other)] = strength
    wide = "The consensus graph of the features; the wider an edge, the stronger the dependency in the global model."
    text = "How much the feature of a row changes with that of a column, in the global model."
    return [
        GraphChart.of(rows, in_a_circle(names), named=True, title="What depends on what", text=wide),
        HeatMap(names, matrix, "strength", "Strength of the dependencies", text),
    ]


def _answer(model: GraphicalModel) -> list[AnyChart]:
    """Return a chart of the conditional distribution of a feature, given each category of a neighbour."""
    schema = model.encoding.schema
    few = [name for name in schema.names if schema[name].categories and len(schema[name].categories) <= _MOST_QUERIED]
    degree = {name: sum(name in edge for edge in model.graph.edges) for name in few}
    pairs = [edge for edge in model.graph.edges if set(edge) <= set(few)]
    if not pairs:
        return []
    target, evidence = max(pairs, key=lambda edge: (degree[edge[0]] + degree[edge[1]], edge))
    categories = [str(each) for each in schema[evidence].categories]
    answers = {}
    for category in schema[evidence].categories:
        answer: Any = model.conditional({evidence: category}, [target])[target]
        answers[f"{evidence} = {category}"] = [float(share) for share in answer.probabilities[0]]
    text = f"The distribution of {target} given {evidence} alone, for each of its {len(categories)} values."
    labels = [str(each) for each in schema[target].categories]
    return [bars(labels, answers, "probability", target, title="An answer of the model", text=text)]
