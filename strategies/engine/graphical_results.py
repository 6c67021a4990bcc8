"""What a run of ``fedngm`` tells: metrics of its targets and their means, and notes about its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedgraph.graph import FeatureGraph
from fedgraph.methods.fedngm import FedNGMRecovery


def metrics_of(scores: Sequence[Mapping[str, float]], targets: Sequence[str]) -> dict[str, Tensor]:
    """Stack clients' scores of target features, and put means over the targets before them.

    Parameters
    ----------
    scores : sequence of mapping of str to float
        Of every client, by ``<split>/<target>-<measure>``.
    targets : sequence of str
        The features that models are evaluated by.

    Returns
    -------
    dict of str to Tensor
        Float64 ``[clients]`` by name, NaN for clients without it. ``<split>/mean-<measure>`` is the mean over targets
        with that measure, of measures without a unit.
    """
    names = dict.fromkeys(name for one in scores for name in one)
    stacked = {
        name: torch.tensor([one.get(name, torch.nan) for one in scores], dtype=torch.float64) for name in sorted(names)
    }
    return _means(stacked, targets) | stacked


def _means(stacked: Mapping[str, Tensor], targets: Sequence[str]) -> dict[str, Tensor]:
    of_measure: dict[str, list[Tensor]] = {}
    # Of two names that a metric may begin with, such as "age" and "age-group", the longer one is meant.
    longest = sorted(targets, key=len, reverse=True)
    for name, values in stacked.items():
        split, _, metric = name.rpartition("/")
        target = next((target for target in longest if metric.startswith(f"{target}-")), None)
        measure = metric.removeprefix(f"{target}-")
        if target is not None and not {"mae", "mse", "rmse"} & set(measure.split("-")):
            of_measure.setdefault(f"{split}/mean-{measure}", []).append(values)
    return {name: torch.stack(found).nanmean(0) for name, found in sorted(of_measure.items()) if len(found) > 1}


def without_neighbours(graph: FeatureGraph, targets: Sequence[str], settings: FedNGMRecovery) -> list[str]:
    """Return notes about a graph in which targets, or all features, have no neighbour."""
    if settings.method in ("graphical-lasso", "uglad"):
        advice = (
            'lower deviations or threshold of [fedngm.recovery], set source = "summed-statistics", or give them '
            "target-neighbours"
        )
    else:
        advice = 'take method = "graphical-lasso" in [fedngm.recovery], which can give them target-neighbours'
    if not graph.edges:
        return [f"the consensus graph has no edge, so that every feature is predicted by its mean alone: {advice}"]
    alone = [name for name in targets if not any(name in edge for edge in graph.edges)]
    if not alone:
        return []
    return [f"{', '.join(alone)} has no neighbour in the consensus graph, and is predicted by its mean alone: {advice}"]


def against_truth(graph: FeatureGraph, truth: FeatureGraph) -> str:
    """Return a note about the edges of the network that rows were drawn from."""
    score = graph.score(truth)
    return (
        f"edges of the consensus graph: {len(graph.edges)}; of the moral graph of the network: {len(truth.edges)}; "
        f"precision {score.precision:.2f}, recall {score.recall:.2f}, F1 {score.f1:.2f}"
    )
