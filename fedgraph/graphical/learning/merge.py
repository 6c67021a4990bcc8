"""The common feature graph of several clients.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1 and 2.6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from fedgraph.graph import FeatureGraph, Pair
from fedgraph.support.errors import GraphError
from fedgraph.support.settings import Settings


class MergeSettings(Settings):
    """How the graphs of clients are merged.

    Attributes
    ----------
    edges       : ``union``: edges of any client, as in the paper; ``votes``: edges of sufficiently many.
    share       : of the votes that an edge needs, at least.
    weights     : of a client's vote: its ``examples``, or ``equal`` for all clients.
    min_clients : k: with fewer contributing clients no graph is computed, as it might disclose the graph of one of
        them.
    """

    edges: Literal["union", "votes"] = "union"
    share: float = Field(default=0.5, gt=0, le=1)
    weights: Literal["equal", "examples"] = "equal"
    min_clients: int = Field(default=2, ge=1)


def merge(settings: MergeSettings, graphs: Mapping[str, FeatureGraph], num_examples: Mapping[str, int]) -> FeatureGraph:
    """Merge the graphs of clients, given by name.

    Returns a FeatureGraph over the features that all clients have, in alphabetical order. Raises GraphError when fewer
    than ``min_clients`` contributed, or no feature is common to all.
    """
    if len(graphs) < settings.min_clients:
        raise GraphError(
            f"{len(graphs)} of at least {settings.min_clients} clients have contributed a feature graph: with fewer, "
            "the common graph might disclose that of one of them (min-clients)"
        )
    shares = vote_shares(graphs, num_examples if settings.weights == "examples" else dict.fromkeys(graphs, 1))
    needed = settings.share if settings.edges == "votes" else 0.0
    return FeatureGraph(common_features(graphs), tuple(edge for edge, share in shares.items() if share >= needed))


def common_features(graphs: Mapping[str, FeatureGraph]) -> tuple[str, ...]:
    """Return the features of all clients' graphs, in alphabetical order; raise GraphError where there are none."""
    common = set.intersection(*(set(graph.names) for graph in graphs.values()))
    if not common:
        raise GraphError(f"no feature is common to the graphs of {', '.join(sorted(graphs))}")
    return tuple(sorted(common))


def vote_shares(graphs: Mapping[str, FeatureGraph], weights: Mapping[str, int]) -> dict[Pair, float]:
    """Return the weighted share of clients that have each edge, for the edges of any client between common features."""
    names = common_features(graphs)
    votes: Counter[Pair] = Counter()
    for client, graph in graphs.items():
        votes.update(dict.fromkeys(graph.subgraph(names).edges, weights[client]))
    total = sum(weights[client] for client in graphs)
    return {edge: given / total for edge, given in sorted(votes.items()) if given}
