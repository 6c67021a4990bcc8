"""The results of a run of FedNGM: graph, model, dependencies, metrics of targets, and notes on the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.fedngm_settings import FedNGMRecovery, FedNGMSettings
from fedgraph.algorithms.phases import Outcome
from fedgraph.data.columns import two_categories
from fedgraph.data.encoding import Encoding
from fedgraph.data.schema import Agreement, ExclusionReason, Feature
from fedgraph.graph import FeatureGraph, client_similarity, write_feature_graph, write_graph
from fedgraph.graphical import GraphicalModel
from fedgraph.graphical.inference import draw
from fedgraph.graphical.learning import SERVER, dependencies, derivatives, write_dependencies
from fedgraph.graphical.network import Network
from fedgraph.support.errors import quoted, similar

_MODEL = "graphical-model.safetensors"
_LOOKED_AT = 256
"""Number of samples at which derivatives are computed."""

_WHY_NONE: dict[ExclusionReason, str] = {
    "empty": "without a value",
    "rare": "no value occurs in least-rows rows or more ([data.table-schema])",
}


@dataclass(frozen=True)
class PhaseResults:
    """The results of all phases.

    Attributes
    ----------
    agreement : what clients have in common.
    excluded_columns : by client, as far as known, its columns that are not features, and why.
    graphs : clients' graphs; empty where they sent none.
    encoding : how values become units of the network.
    network, parameters : the global model, ``[1, parameters]``.
    scores : by client, by ``<split>/<target>-<measure>``.
    """

    agreement: Agreement
    excluded_columns: Mapping[str, Mapping[str, ExclusionReason]]
    graphs: Mapping[str, FeatureGraph]
    encoding: Encoding
    network: Network
    parameters: Tensor
    scores: Mapping[str, Mapping[str, float]]


def build_outcome(
    settings: FedNGMSettings,
    found: PhaseResults,
    seed: int,
    expected: Collection[str] = (),
    truth: FeatureGraph | None = None,
) -> Outcome:
    """Return metrics, notes, and graph, model and dependencies as files.

    Parameters
    ----------
    found : what all phases have found.
    expected : columns that the experiment keeps private, which are not mentioned.
    truth : the graph of the network that rows were sampled from.
    """
    names, network, parameters = found.agreement.common.names, found.network, found.parameters
    targets = settings.targets or names
    graph = FeatureGraph.from_adjacency(names, network.adjacency)
    private = {name: list(own) for name, own in found.agreement.private.items() if own}
    facts: dict[str, Any] = {"features": len(names), "private_features": private, "graph_edges": len(graph.edges)}
    if truth is not None:
        facts["graph_score"] = asdict(graph.score(truth))
    facts["model_file"] = _MODEL
    facts |= _privacy(settings)
    facts["notes"] = [
        *excluded_notes(found.agreement, found.excluded_columns, expected),
        *category_notes(found.agreement, found.excluded_columns),
        *without_neighbours(graph, targets, settings.recovery),
        *([] if truth is None else [against_truth(graph, truth)]),
        *without_ranges(found.encoding),
        *without_own_models(found.scores),
    ]
    samples = draw(network, parameters, _LOOKED_AT, [SERVER], seed, settings=settings.sampling)
    strengths = dependencies(network, parameters, derivatives(network, parameters, samples))
    files: dict[str, Callable[[Path], object]] = {
        "feature-graph.json": partial(write_feature_graph, graph),
        _MODEL: GraphicalModel(network, parameters[0], found.encoding).save,
        "dependencies": partial(write_dependencies, names, strengths[0]),
    }
    if found.graphs:
        files["learned-graph.npz"] = partial(write_graph, client_similarity(found.graphs))
    measured = (
        f"{len(found.scores)} clients, each target predicted from all other features by the global model; own model "
        "(-local): by the client's, before it is given the global one; personal model (-personal): by the "
        "client's, after it was given the global one"
    )
    return Outcome(
        tuple(found.scores), measured, target_metrics(list(found.scores.values()), targets), parameters[0],
        settings.rounds, facts, {name: values[0] for name, values in network.state(parameters).items()}, files,
    )  # fmt: skip


def target_metrics(scores: Sequence[Mapping[str, float]], targets: Sequence[str]) -> dict[str, Tensor]:
    """Stack clients' scores of target features, and put means over the targets before them.

    Returns float64 ``[clients]`` by name, NaN for clients without it. ``<split>/mean-<measure>`` is the mean over
    targets with that measure, of measures without a unit.

    Parameters
    ----------
    scores : of every client, by ``<split>/<target>-<measure>``.
    targets : the features that models are evaluated by.
    """
    names = dict.fromkeys(name for one in scores for name in one)
    stacked = {
        name: torch.tensor([one.get(name, torch.nan) for one in scores], dtype=torch.float64) for name in sorted(names)
    }
    return _means(stacked, targets) | stacked


def _means(stacked: Mapping[str, Tensor], targets: Sequence[str]) -> dict[str, Tensor]:
    of_measure: dict[str, list[Tensor]] = {}
    # Metrics start with the longest matching name, of "age" and "age-group".
    longest = sorted(targets, key=len, reverse=True)
    for name, values in stacked.items():
        split, _, metric = name.rpartition("/")
        target = next((target for target in longest if metric.startswith(f"{target}-")), None)
        measure = metric.removeprefix(f"{target}-")
        if target is not None and not {"mae", "mse", "rmse"} & set(measure.split("-")):
            of_measure.setdefault(f"{split}/mean-{measure}", []).append(values)
    return {name: torch.stack(found).nanmean(0) for name, found in sorted(of_measure.items()) if len(found) > 1}


def without_neighbours(graph: FeatureGraph, targets: Sequence[str], settings: FedNGMRecovery) -> list[str]:
    """Return notes on targets without neighbours, or a graph without edges."""
    if settings.method in ("graphical-lasso", "uglad"):
        ways = ["lower deviations or threshold of [fedngm.recovery]", "give them target-neighbours"]
        if settings.source == "own-rows" and settings.method == "graphical-lasso":
            ways.append('set source = "summed-statistics"')
        advice = f"{', '.join(ways[:-1])}, or {ways[-1]}"
    else:
        advice = 'use method = "graphical-lasso" in [fedngm.recovery], which supports target-neighbours'
    if not graph.edges:
        return [f"the consensus graph has no edges, so every feature is predicted by its mean: {advice}"]
    isolated = [name for name in targets if not any(name in edge for edge in graph.edges)]
    if not isolated:
        return []
    words = "has no neighbour in the consensus graph and is predicted by its mean"
    if len(isolated) > 1:
        words = "have no neighbour in the consensus graph and are predicted by their means"
    return [f"{', '.join(isolated)} {words}: {advice}"]


def without_ranges(encoding: Encoding) -> list[str]:
    """Return a note on features without a common range, which the model file lacks."""
    if not encoding.without_range:
        return []
    return [
        f"the model file has no range of {', '.join(encoding.without_range)}, as each client has its own: only the "
        "other features can be used, unless GraphicalModel.load is given ranges; for common ones, set source of "
        '[fedngm.scaling], as to "shared-ranges"'
    ]


def without_own_models(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a note on clients whose nodes have lost their own models, so that these could not be scored."""
    lost = [client for client, own in scores.items() if own and not any(name.endswith("-local") for name in own)]
    if not lost:
        return []
    return [
        f"no scores of the own models (-local) of {quoted(lost)}: their nodes no longer had these models, or only "
        "those of an earlier round"
    ]


def excluded_notes(
    agreement: Agreement, excluded_columns: Mapping[str, Mapping[str, ExclusionReason]], expected: Collection[str] = ()
) -> list[str]:
    """Return a note on columns that are not common features, and why.

    Parameters
    ----------
    agreement : what the clients have in common.
    excluded_columns : by client, as far as known, its columns that are not features, and why.
    expected : columns that the experiment keeps private, which are not mentioned.
    """
    reasons: dict[str, str] = dict.fromkeys(agreement.constant, "constant")
    reasons |= dict.fromkeys(agreement.disputed, "defined differently by clients, so private to each")
    owners: dict[str, list[str]] = {}
    for client, schema in agreement.schemas.items():
        for name in schema.names:
            owners.setdefault(name, []).append(client)
    excluded = dict.fromkeys(name for columns in excluded_columns.values() for name in columns)
    for name in dict.fromkeys([*owners, *excluded]):
        if name in reasons or name in agreement.common.names:
            continue
        ways = [f"only at {quoted(owners[name])}"] if name in owners else []
        for why, words in _WHY_NONE.items():
            clients = [client for client, columns in excluded_columns.items() if columns.get(name) == why]
            if clients:
                ways.append(words if len(clients) == len(agreement.schemas) else f"{words} at {quoted(clients)}")
        reasons[name] = ", ".join(ways)
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if name not in expected:
            names.setdefault(reason, []).append(name)
    text = "; ".join(f"{quoted(columns, 8)} ({reason})" for reason, columns in names.items())
    return [f"not among the common features: {text}"] if text else []


def category_notes(agreement: Agreement, excluded_columns: Mapping[str, Mapping[str, ExclusionReason]]) -> list[str]:
    """Return notes on rare values that count as missing, and on categories that may be the same at several clients."""
    notes = []
    clients: dict[str, list[str]] = {}
    for client, columns in excluded_columns.items():
        for name in (name for name, why in columns.items() if why == "partly"):
            clients.setdefault(name, []).append(client)
    if clients:
        listed = [f"'{name}' at {quoted(names)}" for name, names in clients.items()]
        more = f" and {len(listed) - 8} more columns" if len(listed) > 8 else ""
        notes.append(
            "values in fewer than least-rows rows of a client count as missing unless another client has more: some "
            f"of {'; '.join(listed[:8])}{more}. To keep them, list all categories under kinds of [data.table-schema]"
        )
    for feature in agreement.common.features:
        notes += two_categories(feature.name, feature.categories)
        notes += _own_words(feature.name, {client: own[feature.name] for client, own in agreement.schemas.items()})
    return notes


def _own_words(name: str, features: Mapping[str, Feature]) -> list[str]:
    """Return a note on clients without any category of a feature that another client has, else none."""
    counts = Counter(category for own in features.values() for category in own.categories)
    alone = {
        client: own.categories
        for client, own in features.items()
        if len(counts) > len(own.categories) > 0 and all(counts[category] == 1 for category in own.categories)
    }
    listed = [f"'{client}' ({quoted(categories)})" for client, categories in alone.items()]
    if not listed:
        return []
    more = f" and {len(listed) - 5} more clients" if len(listed) > 5 else ""
    return [
        f"no category of '{name}' at {', '.join(listed[:5])}{more} occurs at another client: if they mean the same as "
        "those of others, they must be written alike"
    ]


def _privacy(settings: FedNGMSettings) -> dict[str, Any]:
    """Return the guarantee of noise on statistics, the entry ``privacy`` of ``summary.json``; empty without noise."""
    noise, disclosed, total = settings.statistics.noise, settings.disclosed, settings.disclosed_loss
    if noise is None or total is None:
        return {}
    return {
        "privacy": {
            "epsilon": total[0],
            "delta": total[1],
            "epsilon_of_each_release": noise.loss[0],
            "delta_of_each_release": noise.loss[1],
            "mechanism": noise.mechanism,
            "releases": len(disclosed),
            "covers": list(disclosed),
        }
    }


def lacking_columns(agreement: Agreement) -> str:
    """Describe which clients lack which columns of others, and similar names of theirs; empty if none does."""
    schemas = agreement.schemas
    columns = dict.fromkeys(name for schema in schemas.values() for name in schema.names)
    listed = []
    for name in columns:
        ways = []
        for client, schema in schemas.items():
            if name not in schema.names:
                others = [own for own in schema.names if own not in agreement.common.names]
                like = next((own for own in others if _similar_names(own, name)), None)
                ways.append(f"'{client}'" if like is None else f"'{client}', which has '{like}'")
        if ways:
            more = f" and {len(ways) - 5} more" if len(ways) > 5 else ""
            listed.append(f"'{name}' (no values at {', '.join(ways[:5])}{more})")
    if not listed:
        return ""
    more = f"; and {len(listed) - 8} more" if len(listed) > 8 else ""
    return f"no common features, because not all clients have these columns: {'; '.join(listed[:8])}{more}"


def _similar_names(one: str, other: str) -> bool:
    """Whether names only differ in case, spaces and punctuation, or in one or two letters."""
    first, second = ("".join(letter for letter in name.casefold() if letter.isalnum()) for name in (one, other))
    return first == second or bool(similar([first], [second]))


def against_truth(graph: FeatureGraph, truth: FeatureGraph) -> str:
    """Return a note that compares the graph with that of the network that rows were sampled from."""
    score = graph.score(truth)
    return (
        f"edges of the consensus graph: {len(graph.edges)}; of the moral graph of the network: {len(truth.edges)}; "
        f"precision {score.precision:.2f}, recall {score.recall:.2f}, F1 {score.f1:.2f}"
    )
