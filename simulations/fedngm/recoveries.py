"""The ways in which the study of graphs recovers them from rows of clients: ours, and rivals that make other graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.data.encoding import Encoding, Scaling
from fedgraph.data.schema import Schema
from fedgraph.data.tables import BayesianNetwork
from fedgraph.graph import FeatureGraph
from fedgraph.graphical.learning import MergeSettings, merge
from fedgraph.graphical.recovery import (
    RecoverySettings,
    UnitSums,
    UnitTable,
    equivalence_search,
    parents_of,
    recover,
    recover_from_sums,
)
from fedgraph.simulations.fedngm.notears_admm import agreed_weights, edges
from fedgraph.support.randomness import generator

Method = Literal["graphical-lasso", "uglad", "ges", "notears-admm"]


class Graphs(NamedTuple):
    """What a method takes for the moral graph and for the skeleton: the same where it cannot tell them apart."""

    moral: FeatureGraph
    skeleton: FeatureGraph

    @classmethod
    def of_network(cls, names: Sequence[str], directed: NDArray[np.bool_]) -> Graphs:
        """Of a Bayesian network with an edge from the first to the second, bool ``[features, features]``."""
        parents = parents_of(names, directed)
        pairs = tuple((parent, child) for child, of in parents.items() for parent in of)
        return cls(FeatureGraph.moral(names, parents), FeatureGraph(tuple(names), pairs))


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Rows of one client, drawn from a network.

    categories : int64 ``[rows, features]``.
    table      : the same, encoded.
    """

    schema: Schema
    categories: Tensor
    table: UnitTable

    @classmethod
    def drawn(cls, network: BayesianNetwork, client: str, rows: int, seed: int) -> ClientRows:
        """``rows`` of them, which the seed and the name of the client determine."""
        schema = network.schema
        drawn = network.sample(rows, generator(seed, "graphs", client))
        units = Encoding(schema, Scaling()).encode(drawn.double().numpy())
        return cls(schema, drawn, UnitTable(client, schema.names, units, schema.unit_feature))


def recovered(method: Method, clients: Sequence[ClientRows], seed: int) -> dict[str, list[Graphs]]:
    """Recover graphs by one method with its default settings.

    Returns
    -------
    dict of str to list of Graphs
        By source of the graphs: ``own`` rows of each client; ``union`` and ``votes``, the graphs of all;
        ``sums`` over all rows; weights ``agreed`` on; all rows ``pooled``.
    """
    if method == "notears-admm":
        return {"agreed": [_by_notears(clients)]}
    if method == "ges":
        own = [_by_equivalence_search(client.schema, client.categories) for client in clients]
        pooled = _by_equivalence_search(clients[0].schema, torch.cat([client.categories for client in clients]))
        return {"own": own, **_fused(clients, own), "pooled": [pooled]}
    tables = [client.table for client in clients]
    own = [Graphs(each.graph, each.graph) for each in recover(RecoverySettings(method=method), tables, seed)]
    sums = {"sums": [_from_sums(clients)]} if method == "graphical-lasso" else {}
    return {"own": own, **_fused(clients, own), **sums}


def _fused(clients: Sequence[ClientRows], own: Sequence[Graphs]) -> dict[str, list[Graphs]]:
    """What the clients' graphs become together."""
    rows = {client.table.client: len(client.categories) for client in clients}
    moral, skeleton = (dict(zip(rows, graphs, strict=True)) for graphs in zip(*own, strict=True))

    def fused(how: Literal["union", "votes"], graphs: Mapping[str, FeatureGraph]) -> FeatureGraph:
        return merge(MergeSettings(edges=how, min_clients=1), graphs, rows)

    return {
        "union": [Graphs(fused("union", moral), fused("union", skeleton))],
        "votes": [Graphs(fused("votes", moral), fused("votes", skeleton))],
    }


def _from_sums(clients: Sequence[ClientRows]) -> Graphs:
    schema = clients[0].schema
    flat = torch.stack([UnitSums.of(client.table.units, schema).flat() for client in clients]).sum(0)
    graph = recover_from_sums(RecoverySettings(), schema, UnitSums.from_flat(flat, schema)).graph
    return Graphs(graph, graph)


def _by_equivalence_search(schema: Schema, categories: Tensor) -> Graphs:
    return Graphs.of_network(schema.names, equivalence_search(categories.numpy()))


def _by_notears(clients: Sequence[ClientRows]) -> Graphs:
    """Units are standardised at each client; of a feature, the one that is commonest in all rows is left out."""
    schema = clients[0].schema
    shares = np.mean([client.table.units.double().numpy().mean(0) for client in clients], axis=0)
    kept = (shares > 0) & (shares < 1)
    for own in schema.slices.values():
        if own.stop - own.start > 1:
            kept[own.start + int(shares[own].argmax())] = False
    unit_feature = schema.unit_feature.numpy()[kept]
    weights = agreed_weights(
        [_correlation(client.table.units.double().numpy()[:, kept]) for client in clients], unit_feature
    )
    return Graphs.of_network(schema.names, edges(weights, unit_feature, len(schema.names)))


def _correlation(units: NDArray[np.float64]) -> NDArray[np.float64]:
    """0 with units that do not vary here."""
    centred = units - units.mean(0)
    deviation = centred.std(0)
    standardised = centred / np.where(deviation > 0, deviation, 1.0)
    found: NDArray[np.float64] = standardised.T @ standardised / len(units)
    return found
